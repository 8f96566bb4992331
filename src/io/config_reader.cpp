#include "io/config_reader.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "io/text.h"
#include "io/units.h"

namespace longnet {
namespace {

const JsonNode& empty_object() {
  static const JsonNode kEmpty = JsonNode::object();
  return kEmpty;
}

// What was written, short enough for a message.
std::string shown(const JsonNode& node) {
  const std::string text = dump_json(node);
  return text.size() <= 40 ? text : text.substr(0, 37) + "...";
}

std::string expected_integer(const IntRule& rule) {
  std::string text = rule.tokens ? "a number of tokens" : "an integer";
  if (rule.world) text += " or \"world\"";
  if (rule.divisors) text += " or \"divisors\"";
  return text;
}

std::string integer_hint(const IntRule& rule) {
  return rule.tokens ? "write 8192, \"8K\", \"1M\" or \"1B\" (2^10, 2^20, 2^30)"
                     : "write a whole number without quotes";
}

void read_range(ObjectReader& range, const std::string& path, const IntRule& rule, IntAxis& out) {
  Problems& problems = range.problems();
  IntAxis axis{.is_range = true};
  IntRule from_rule = rule;
  from_rule.world = from_rule.divisors = false;
  const bool complete = range.node().find("from") && range.node().find("to");
  range.integer("from", axis.from, from_rule);
  IntRule to_rule = rule;
  to_rule.divisors = false;
  range.integer("to", axis.to, to_rule);
  range.real("factor", axis.factor, {.min = 1, .min_excluded = true});
  range.integer("step", axis.step, {.tokens = rule.tokens});
  range.unknown_keys();
  if (!complete)
    problems.add(range.node(), path, "a range needs \"from\" and \"to\"",
                 "write {\"from\": 1, \"to\": 8, \"factor\": 2}, or a list");
  const bool factor = range.node().find("factor"), step = range.node().find("step");
  if (factor == step)
    problems.add(
        range.node(), path,
        factor ? "a range has a factor or a step, not both" : "a range needs a factor or a step",
        "\"factor\": 2 doubles, \"step\": 1 counts");
  if (complete && axis.to != kWorld && axis.from > axis.to && axis.from > 0 && axis.to > 0)
    problems.add(range.node(), path, concat("from ", axis.from, " is greater than to ", axis.to),
                 "a range goes upwards: swap them");
  out = axis;
}

}  // namespace

void Problems::add(const JsonNode& where, std::string_view path, std::string_view what,
                   std::string_view hint) {
  std::string text =
      concat(where.where(), ": ", path.empty() ? "" : path, path.empty() ? "" : ": ", what);
  if (!hint.empty()) text += concat("\n  hint: ", hint);
  if (std::find(texts_.begin(), texts_.end(), text) == texts_.end()) texts_.push_back(text);
}

void Problems::throw_if_any() const {
  if (!texts_.empty()) throw UsageError(join(texts_, "\n"));
}

bool read_integer(const JsonNode& node, const std::string& path, const IntRule& rule,
                  Problems& problems, int64_t& out) {
  int64_t value = 0;
  if (rule.world && node.is_string() && node.string == "world") {
    out = kWorld;
    return true;
  }
  if (rule.divisors && node.is_string() && node.string == "divisors") {
    out = kDivisors;
    return true;
  }
  const auto tokens =
      rule.tokens && node.is_string() ? try_parse_tokens(node.string) : std::nullopt;
  if (tokens) {
    value = *tokens;
  } else if (node.kind == JsonNode::Kind::kInteger) {
    value = node.integer;
  } else if (node.kind == JsonNode::Kind::kNumber && node.number == std::floor(node.number) &&
             std::abs(node.number) < 9e15) {
    value = int64_t(node.number);  // 1e6 is as whole as 1000000
  } else {
    problems.add(node, path, concat("must be ", expected_integer(rule), ", is ", shown(node)),
                 integer_hint(rule));
    return false;
  }
  if (value < rule.min || value > rule.max) {
    const bool below = value < rule.min;
    problems.add(node, path,
                 concat("must be at ", below ? "least " : "most ", below ? rule.min : rule.max,
                        ", is ", value),
                 integer_hint(rule));
    return false;
  }
  if (value % rule.multiple_of != 0) {
    const int64_t up = (value / rule.multiple_of + 1) * rule.multiple_of;
    problems.add(node, path, concat("must be a multiple of ", rule.multiple_of, ", is ", value),
                 concat("the next one is ", std::min(up, rule.max)));
    return false;
  }
  out = value;
  return true;
}

bool read_name(const JsonNode& node, const std::string& path, std::span<const std::string> known,
               Problems& problems, std::string& out) {
  if (!node.is_string() || node.string.empty()) {
    problems.add(node, path, concat("must be a name, is ", shown(node)),
                 known.empty() ? "write it in double quotes" : "known: " + join(known, ", "));
    return false;
  }
  if (!known.empty() && std::find(known.begin(), known.end(), node.string) == known.end()) {
    problems.add(node, path, concat("'", node.string, "' is not known"),
                 name_hint(node.string, known));
    return false;
  }
  out = node.string;
  return true;
}

std::vector<const JsonNode*> as_list(const JsonNode& node, const std::string& path,
                                     Problems& problems) {
  if (!node.is_array()) return {&node};
  std::vector<const JsonNode*> items;
  for (const JsonNode& item : node.items) items.push_back(&item);
  if (items.empty())
    problems.add(node, path, "is an empty list, so there is nothing to run",
                 "name at least one value, or leave the key out");
  return items;
}

ObjectReader::ObjectReader(const JsonNode* node, std::string path, Problems& problems)
    : node_(node ? node : &empty_object()), path_(std::move(path)), problems_(problems) {
  if (!node_->is_object()) {
    problems_.add(*node_, path_, concat("must be an object, is ", node_->kind_name()),
                  "write { \"key\": value, ... }");
    node_ = &empty_object();
  }
}

const JsonNode* ObjectReader::take(std::string_view key) {
  known_.emplace_back(key);
  return node_->find(key);
}

std::string ObjectReader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : concat(path_, ".", key);
}

void ObjectReader::text(std::string_view key, std::string& out) {
  const JsonNode* n = take(key);
  if (!n) return;
  if (n->is_string()) {
    out = n->string;
  } else {
    problems_.add(*n, path_of(key), concat("must be a string, is ", shown(*n)),
                  "put it in double quotes");
  }
}

void ObjectReader::boolean(std::string_view key, bool& out) {
  std::vector<bool> values;
  booleans(key, values);
  if (values.size() == 1) out = values[0];
  if (values.size() > 1)
    problems_.add(*node_->find(key), path_of(key), "must be true or false, is a list",
                  "lists belong into sweep");
}

void ObjectReader::tokens_or(std::string_view key, std::string_view keyword,
                             std::optional<int64_t>& out) {
  const JsonNode* n = take(key);
  if (!n) return;
  if (n->is_string() && n->string == keyword) {
    out.reset();
    return;
  }
  if (n->is_string() && !try_parse_tokens(n->string)) {
    problems_.add(*n, path_of(key),
                  concat("must be tokens or \"", keyword, "\", is \"", n->string, "\""),
                  concat("write 128, \"8K\" or \"", keyword, "\""));
    return;
  }
  int64_t value = 0;
  if (read_integer(*n, path_of(key), {.max = kMaxSeqLen, .tokens = true}, problems_, value))
    out = value;
}

void ObjectReader::integer(std::string_view key, int64_t& out, const IntRule& rule) {
  if (const JsonNode* n = take(key)) read_integer(*n, path_of(key), rule, problems_, out);
}

void ObjectReader::real(std::string_view key, double& out, const Limits& limits) {
  const JsonNode* n = take(key);
  if (!n) return;
  const bool inside = n->is_number() && n->number <= limits.max &&
                      (limits.min_excluded ? n->number > limits.min : n->number >= limits.min);
  if (inside) {
    out = n->number;
    return;
  }
  std::string range = concat(limits.min_excluded ? "greater than " : "at least ", limits.min);
  if (std::isfinite(limits.max)) range += concat(" and at most ", limits.max);
  problems_.add(*n, path_of(key), concat("must be a number ", range, ", is ", shown(*n)),
                "write it without quotes");
}

void ObjectReader::choice(std::string_view key, std::string& out,
                          std::span<const std::string> names) {
  if (const JsonNode* n = take(key)) read_name(*n, path_of(key), names, problems_, out);
}

void ObjectReader::axis(std::string_view key, IntAxis& out, const IntRule& rule) {
  const JsonNode* n = take(key);
  if (!n) return;
  if (n->is_object()) {
    ObjectReader range(n, path_of(key), problems_);
    read_range(range, path_of(key), rule, out);
    return;
  }
  IntAxis axis;
  bool good = true;
  for (const JsonNode* item : as_list(*n, path_of(key), problems_)) {
    int64_t value = 0;
    good = read_integer(*item, path_of(key), rule, problems_, value) && good;
    axis.values.push_back(value);
  }
  if (good) out = axis;
}

void ObjectReader::names(std::string_view key, std::vector<std::string>& out,
                         std::span<const std::string> known) {
  const JsonNode* n = take(key);
  if (!n) return;
  std::vector<std::string> found;
  for (const JsonNode* item : as_list(*n, path_of(key), problems_)) {
    std::string name;
    if (read_name(*item, path_of(key), known, problems_, name)) found.push_back(name);
  }
  out = found;
}

void ObjectReader::booleans(std::string_view key, std::vector<bool>& out) {
  const JsonNode* n = take(key);
  if (!n) return;
  std::vector<bool> found;
  for (const JsonNode* item : as_list(*n, path_of(key), problems_)) {
    if (item->kind == JsonNode::Kind::kBool) {
      found.push_back(item->boolean);
    } else {
      problems_.add(*item, path_of(key), concat("must be true or false, is ", shown(*item)),
                    "write it without quotes");
    }
  }
  out = found;
}

void ObjectReader::unknown_keys() {
  for (size_t i = 0; i < node_->keys.size(); ++i) {
    const std::string& key = node_->keys[i];
    if (std::find(known_.begin(), known_.end(), key) == known_.end())
      problems_.add(node_->items[i], path_of(key), "unknown key", name_hint(key, known_));
  }
}

}  // namespace longnet
