// Merges a file, those that it extends and --set into one tree; checks rules over several keys.
#include <algorithm>
#include <filesystem>
#include <sstream>

#include "core/check.h"
#include "io/config_reader.h"

namespace longnet {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path, const JsonNode* asked_by) {
  if (!asked_by)
    return read_file_text(path.string(), "configs/ holds the suite's own, e.g. configs/quick.json");
  try {
    return read_file_text(path.string(),
                          "the path counts from the folder of the file that extends");
  } catch (const UsageError& e) {
    throw UsageError(asked_by->where(), ": extends: ", e.what());
  }
}

// A range or a batch is one value: keys of two of them mixed would mean something nobody wrote.
bool is_value(const JsonNode& object) { return object.find("from") || object.find("rule"); }

void merge(JsonNode& base, JsonNode over) {
  for (size_t i = 0; i < over.keys.size(); ++i) {
    JsonNode* old = base.find(over.keys[i]);
    if (old && old->is_object() && over.items[i].is_object() && !is_value(over.items[i])) {
      merge(*old, std::move(over.items[i]));
    } else {
      base.set(over.keys[i], std::move(over.items[i]));
    }
  }
  base.line = over.line;
  base.file = over.file;
}

JsonNode load_tree(std::string_view text, const std::string& path,
                   std::vector<std::string>& chain) {
  std::error_code error;  // ignored: a name that is too long is refused when it is read
  const std::string self = fs::weakly_canonical(path, error).string();
  JsonNode node = parse_json(text, path);
  if (!node.is_object())
    throw UsageError(node.where(), ": a config is an object, this is ", node.kind_name(),
                     "\n  hint: start with {");
  if (node.find("run") && node.find("environment"))
    throw UsageError(node.where(), ": this is a result, not a config",
                     "\n  hint: its config is under run.config");
  const JsonNode* extends = node.find("extends");
  if (!extends) return node;
  if (!extends->is_string())
    throw UsageError(extends->where(), ": extends: must be a string, is ", extends->kind_name(),
                     "\n  hint: name one file");
  chain.push_back(self);
  const fs::path base_path = fs::path(path).parent_path() / extends->string;
  const std::string base_self = fs::weakly_canonical(base_path, error).string();
  if (std::find(chain.begin(), chain.end(), base_self) != chain.end())
    throw UsageError(extends->where(), ": extends: '", extends->string,
                     "' leads back to itself\n  hint: a file cannot extend one that extends it");
  JsonNode base = load_tree(read_text(base_path, extends), base_path.string(), chain);
  merge(base, std::move(node));
  return base;
}

void relabel(JsonNode& node, const std::shared_ptr<const std::string>& file) {
  node.file = file;
  node.line = 0;
  for (JsonNode& item : node.items) relabel(item, file);
}

JsonNode parse_loosely(const std::string& text) {
  try {
    return parse_json(text, "--set");
  } catch (const UsageError&) {
    return JsonNode(text);
  }
}

// JSON, else a list at commas, else a string.
JsonNode override_value(const std::string& text) {
  JsonNode whole = parse_loosely(text);
  if (!whole.is_string() || whole.string != text || text.find(',') == std::string::npos)
    return whole;
  JsonNode list = JsonNode::array();
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto first = part.find_first_not_of(' ');
    const auto last = part.find_last_not_of(' ');
    if (first != std::string::npos) list.push(parse_loosely(part.substr(first, last - first + 1)));
  }
  return list;
}

constexpr size_t kLongestLabel = 200;

void apply_override(JsonNode& root, const std::string& text) {
  const auto label =
      std::make_shared<const std::string>("--set " + printable(text.substr(0, kLongestLabel)));
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw UsageError(*label, ": needs the form KEY=VALUE\n  hint: --set sweep.ranks=1,2,4");
  JsonNode value = override_value(text.substr(equals + 1));
  relabel(value, label);

  JsonNode* at = &root;
  std::istringstream path(text.substr(0, equals));
  std::vector<std::string> keys;
  for (std::string key; std::getline(path, key, '.');) keys.push_back(key);
  std::string walked;
  for (size_t i = 0; i + 1 < keys.size(); ++i) {
    walked += (i > 0 ? "." : "") + keys[i];
    if (!at->find(keys[i])) {
      JsonNode fresh = JsonNode::object();
      relabel(fresh, label);
      at->set(keys[i], fresh);
    }
    at = at->find(keys[i]);
    if (!at->is_object())
      throw UsageError(*label, ": ", walked, " is ", at->kind_name(), ", it has no key '",
                       keys[i + 1], "'\n  hint: replace the whole of ", walked);
  }
  at->set(keys.back(), std::move(value));
}

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

struct Rules {
  const Config& c;
  const JsonNode& root;
  Problems& problems;

  void add(const std::string& path, std::string_view what, std::string_view hint) const {
    problems.add(nearest(root, path), path, what, hint);
  }

  std::vector<int64_t> numbers(std::string_view key) const {
    std::vector<int64_t> values;
    for (const Value& v : c.values_of(*find_axis(key), 1)) values.push_back(std::get<int64_t>(v));
    return values;
  }

  void check_heads() const {
    for (int64_t h : numbers("heads"))
      for (int64_t kv : numbers("kv_heads"))
        if (kv != 0 && h % kv != 0)
          add(c.sweep.find("kv_heads") ? "sweep.kv_heads" : "model.kv_heads",
              concat("must divide the ", h, " heads, is ", kv),
              kv > h ? concat("use ", h, " or a divisor of it")
                     : "use a divisor, or leave the key out for as many as heads");
  }

  void check_dilated() const {
    const DilatedConfig& d = c.dilated;
    const JsonNode& dilated = nearest(root, "dilated");
    if (dilated.find("ratios") && !dilated.find("ratio_rule"))
      add("dilated.ratios", "ratios are a list for the ratio_rule \"list\"",
          "add \"ratio_rule\": \"list\" and one ratio per segment");
    if (d.ratio_rule != RatioRule::kList) return;
    if (d.ratios.empty())
      problems.add(nearest(root, "dilated.ratio_rule"), "dilated.ratios", "is missing",
                   "the rule \"list\" needs one ratio per segment, e.g. [1, 2, 4]");
    else if (d.ratios.size() != d.segments.size())
      add("dilated.ratios",
          concat("has ", d.ratios.size(), " ratios for ", d.segments.size(), " segments"),
          "give one ratio per segment, in the same order");
  }

  void check_sparse() const {
    const SparseConfig& s = c.sparse;
    if (s.segment && s.summary && *s.summary > *s.segment)
      add("sparse.summary", concat("is ", *s.summary, ", more than the segment of ", *s.segment),
          "the summary is the end of a segment: use fewer tokens");
  }

  // Bytes of Q, K, V and an fp32 output must fit into 63 bits; checked in floating point.
  void check_sizes() const {
    const auto greatest = [&](std::string_view key) {
      const std::vector<int64_t> values = numbers(key);
      return values.empty() ? 0.0 : double(std::ranges::max(values));  // expand() says so
    };
    const double longest = greatest("seq_len"), heads = greatest("heads"),
                 head_dim = greatest("head_dim");
    const BatchConfig& b = c.sweep.batch;
    const double tokens = b.constant_tokens ? std::max(longest, double(b.tokens_per_batch))
                                            : longest * double(b.size);
    constexpr double kBytes = 4 * 4;
    if (kBytes * tokens * heads * head_dim < 0x1p63) return;
    add("sweep.seq_len",
        concat("the largest point has ", tokens, " tokens x ", heads, " heads x ", head_dim,
               " numbers in each of Q, K, V and O: its bytes pass 2^63"),
        "use shorter sequences, a smaller batch or fewer heads");
  }

  void check_sweep() const {
    const JsonNode* sweep = root.find("sweep");
    for (const std::string key : {"algorithm", "seq_len"})
      if (!sweep || !sweep->find(key))
        problems.add(nearest(root, "sweep"), "sweep." + key,
                     "is missing, so there is nothing to run",
                     key == "algorithm"
                         ? "e.g. \"algorithm\": [\"dilated\", \"ring\"]"
                         : "e.g. \"seq_len\": {\"from\": \"8K\", \"to\": \"64K\", \"factor\": 2}");
    if (!problems.empty()) return;  // axes below may be half read
    // expand() counts again, when it is known how many ranks "world" stands for.
    check_combinations(c, 1, [this](const auto&... error) { add(error...); });
  }

  void check_name() const {
    constexpr std::string_view kAllowed =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    if (c.name.empty() || c.name[0] == '.' || c.name.size() > 100 ||
        c.name.find_first_not_of(kAllowed) != std::string::npos)
      add("name", concat("'", c.name, "' cannot be part of a folder's name"),
          "use letters, digits, '-', '_' and '.'");
  }
};

}  // namespace

void check_config(const Config& c, const JsonNode& root, Problems& problems) {
  const Rules rules{c, root, problems};
  rules.check_name();
  if (nearest(root, "run.transport").string == "virtual")
    rules.add("run.transport", "'virtual' is a mode",
              "write \"mode\": \"virtual\" in its place (--mode virtual)");
  const bool latency = c.virtual_ranks.latency_s.has_value();
  if (latency != c.virtual_ranks.bytes_per_s.has_value())
    problems.add(nearest(root, "virtual"), latency ? "virtual.bytes_per_s" : "virtual.latency_s",
                 "is missing", "a link has a latency_s and a bytes_per_s: give both or none");
  rules.check_sweep();
  rules.check_dilated();
  rules.check_sparse();
  if (problems.empty()) rules.check_heads();
  if (problems.empty()) rules.check_sizes();
  if (c.measure.max_samples < c.measure.min_samples)
    rules.add(
        "measure.max_samples",
        concat("is ", c.measure.max_samples, ", less than min_samples = ", c.measure.min_samples),
        "raise max_samples or lower min_samples");
}

JsonNode load_config_tree(std::string_view text, const std::string& path,
                          std::span<const std::string> overrides) {
  std::vector<std::string> chain;
  JsonNode root = load_tree(text, path, chain);
  for (const std::string& o : overrides) apply_override(root, o);
  return root;
}

Config load_config(const std::string& path, const LoadOptions& options) {
  return parse_config(read_text(path, nullptr), path, options);
}

}  // namespace longnet
