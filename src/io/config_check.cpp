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

std::vector<int64_t> values_or(const IntAxis& axis, int64_t fallback) {
  if (!axis.is_range && axis.values.empty()) return {fallback};
  return axis_values(axis, 1);
}

void check_heads(const Config& c, const JsonNode& root, Problems& problems) {
  const std::vector<int64_t> heads = values_or(c.sweep.heads, c.model.heads);
  const std::vector<int64_t> kv_heads = values_or(c.sweep.kv_heads, c.model.kv_heads);
  for (int64_t h : heads)
    for (int64_t kv : kv_heads) {
      if (kv == 0 || h % kv == 0) continue;
      const bool swept = root.find("sweep") && root.find("sweep")->find("kv_heads");
      const std::string path = swept ? "sweep.kv_heads" : "model.kv_heads";
      problems.add(nearest(root, path), path, concat("must divide the ", h, " heads, is ", kv),
                   kv > h ? concat("use ", h, " or a divisor of it")
                          : "use a divisor, or leave the key out for as many as heads");
    }
}

void check_dilated(const Config& c, const JsonNode& root, Problems& problems) {
  const DilatedConfig& d = c.dilated;
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
  const auto greatest = [](const std::vector<int64_t>& values) {
    return double(*std::max_element(values.begin(), values.end()));
  };
  for (const IntAxis* axis : {&c.sweep.seq_len, &c.sweep.heads, &c.sweep.head_dim})
    if (axis->is_range && axis->from > axis->to) return;  // no value; expand says so
  const double longest = greatest(values_or(c.sweep.seq_len, 1)),
               heads = greatest(values_or(c.sweep.heads, c.model.heads)),
               head_dim = greatest(values_or(c.sweep.head_dim, c.model.head_dim));
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
  double points = double(c.sweep.algorithm.size());
  const auto count = [&](const char* key, const IntAxis& axis, int64_t fallback) {
    try {
      points *= double(values_or(axis, fallback).size());
    } catch (const UsageError& e) {
      const std::string path = concat("sweep.", key);
      problems.add(nearest(root, path), path, e.what(), "");
    }
  };
  count("seq_len", c.sweep.seq_len, 0);
  count("heads", c.sweep.heads, 0);
  count("kv_heads", c.sweep.kv_heads, 0);
  count("head_dim", c.sweep.head_dim, 0);
  count("seed", c.sweep.seed, 0);
  count("threads", c.sweep.threads, 0);
  count("ulysses_degree", c.sweep.ulysses_degree, 0);
  count("ring_inner", c.sweep.ring_inner, 0);
  count("head_slice", c.sweep.head_slice, 0);
  count("node_size", c.sweep.node_size, 0);
  count("replicas", c.sweep.replicas, 1);
  for (const auto* names : {&c.sweep.kernel, &c.sweep.layout, &c.sweep.collective})
    points *= double(std::max<size_t>(1, names->size()));
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
