// Rules over several keys of a config.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/check.h"
#include "io/config_reader.h"

namespace longnet {
namespace {

// The node at a dotted path, or the deepest one above it that exists: where an error points to.
const JsonNode& nearest(const JsonNode& root, const std::string& dotted) {
  const JsonNode* at = &root;
  std::istringstream path(dotted);
  for (std::string key; std::getline(path, key, '.');) {
    const JsonNode* next = at->find(key);
    if (!next) break;
    at = next;
  }
  return *at;
}

std::vector<int64_t> numbers(const Config& c, std::string_view key) {
  std::vector<int64_t> values;
  for (const Value& v : c.values_of(*find_axis(key), 1)) values.push_back(std::get<int64_t>(v));
  return values;
}

void check_heads(const Config& c, const JsonNode& root, Problems& problems) {
  for (int64_t h : numbers(c, "heads"))
    for (int64_t kv : numbers(c, "kv_heads")) {
      if (kv == 0 || h % kv == 0) continue;
      const std::string path = c.sweep.find("kv_heads") ? "sweep.kv_heads" : "model.kv_heads";
      problems.add(nearest(root, path), path, concat("must divide the ", h, " heads, is ", kv),
                   kv > h ? concat("use ", h, " or a divisor of it")
                          : "use a divisor, or leave the key out for as many as heads");
    }
}

void check_dilated(const Config& c, const JsonNode& root, Problems& problems) {
  const DilatedConfig& d = c.dilated;
  const JsonNode* ratios = nullptr;
  if (const JsonNode* dilated = root.find("dilated")) ratios = dilated->find("ratios");
  if (ratios && !root.find("dilated")->find("ratio_rule"))
    problems.add(*ratios, "dilated.ratios", "ratios are a list for the ratio_rule \"list\"",
                 "add \"ratio_rule\": \"list\" and one ratio per segment");
  if (d.ratio_rule != RatioRule::kList) return;
  if (d.ratios.empty()) {
    problems.add(nearest(root, "dilated.ratio_rule"), "dilated.ratios", "is missing",
                 "the rule \"list\" needs one ratio per segment, e.g. [1, 2, 4]");
  } else if (d.ratios.size() != d.segments.size()) {
    problems.add(nearest(root, "dilated.ratios"), "dilated.ratios",
                 concat("has ", d.ratios.size(), " ratios for ", d.segments.size(), " segments"),
                 "give one ratio per segment, in the same order");
  }
}

void check_sparse(const Config& c, const JsonNode& root, Problems& problems) {
  const SparseConfig& s = c.sparse;
  if (s.segment && s.summary && *s.summary > *s.segment)
    problems.add(nearest(root, "sparse.summary"), "sparse.summary",
                 concat("is ", *s.summary, ", more than the segment of ", *s.segment),
                 "the summary is the end of a segment: use fewer tokens");
}

// Bytes of Q, K, V and an fp32 output must fit into 63 bits; checked in floating point.
void check_sizes(const Config& c, const JsonNode& root, Problems& problems) {
  const auto greatest = [&](std::string_view key) {
    const std::vector<int64_t> values = numbers(c, key);
    return values.empty() ? 0.0 : double(std::ranges::max(values));  // expand() says so
  };
  const double longest = greatest("seq_len"), heads = greatest("heads"),
               head_dim = greatest("head_dim");
  const BatchConfig& b = c.sweep.batch;
  const double tokens =
      b.constant_tokens ? std::max(longest, double(b.tokens_per_batch)) : longest * double(b.size);
  constexpr double kBytes = 4 * 4;
  if (kBytes * tokens * heads * head_dim < 0x1p63) return;
  problems.add(nearest(root, "sweep.seq_len"), "sweep.seq_len",
               concat("the largest point has ", tokens, " tokens x ", heads, " heads x ", head_dim,
                      " numbers in each of Q, K, V and O: its bytes pass 2^63"),
               "use shorter sequences, a smaller batch or fewer heads");
}

void check_sweep(const Config& c, const JsonNode& root, Problems& problems) {
  const JsonNode* sweep = root.find("sweep");
  for (const std::string key : {"algorithm", "seq_len"})
    if (!sweep || !sweep->find(key))
      problems.add(nearest(root, "sweep"), "sweep." + key, "is missing, so there is nothing to run",
                   key == "algorithm"
                       ? "e.g. \"algorithm\": [\"dilated\", \"ring\"]"
                       : "e.g. \"seq_len\": {\"from\": \"8K\", \"to\": \"64K\", \"factor\": 2}");
  if (!problems.empty()) return;  // axes below may be half read
  constexpr int64_t kMaxPoints = 100000;
  double points = 1;
  for (const Axis& axis : axes()) {
    if (axis.key == "ranks") continue;
    try {
      points *= double(c.values_of(axis, 1).size());
    } catch (const UsageError& e) {
      const std::string path = concat("sweep.", axis.key);
      problems.add(nearest(root, path), path, e.what(), "");
    }
  }
  if (points > kMaxPoints)
    problems.add(nearest(root, "sweep"), "sweep",
                 concat("makes ", points, " combinations for each number of ranks"),
                 concat("stay below ", kMaxPoints, ": use ranges with a factor"));
}

void check_name(const Config& c, const JsonNode& root, Problems& problems) {
  const auto allowed = [](char x) {
    return (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z') || (x >= '0' && x <= '9') || x == '-' ||
           x == '_' || x == '.';
  };
  bool good = !c.name.empty() && c.name[0] != '.' && c.name.size() <= 100;
  for (char x : c.name) good = good && allowed(x);
  if (!good)
    problems.add(nearest(root, "name"), "name",
                 concat("'", c.name, "' cannot be part of a folder's name"),
                 "use letters, digits, '-', '_' and '.'");
}

}  // namespace

void check_config(const Config& c, const JsonNode& root, Problems& problems) {
  check_name(c, root, problems);
  if (nearest(root, "run.transport").string == "virtual")
    problems.add(nearest(root, "run.transport"), "run.transport", "'virtual' is a mode",
                 "write \"mode\": \"virtual\" in its place (--mode virtual)");
  const bool latency = c.virtual_ranks.latency_s.has_value();
  if (latency != c.virtual_ranks.bytes_per_s.has_value())
    problems.add(nearest(root, "virtual"), latency ? "virtual.bytes_per_s" : "virtual.latency_s",
                 "is missing", "a link has a latency_s and a bytes_per_s: give both or none");
  check_sweep(c, root, problems);
  check_dilated(c, root, problems);
  check_sparse(c, root, problems);
  if (problems.empty()) check_heads(c, root, problems);
  if (problems.empty()) check_sizes(c, root, problems);
  if (c.measure.max_samples < c.measure.min_samples)
    problems.add(
        nearest(root, "measure.max_samples"), "measure.max_samples",
        concat("is ", c.measure.max_samples, ", less than min_samples = ", c.measure.min_samples),
        "raise max_samples or lower min_samples");
}

}  // namespace longnet
