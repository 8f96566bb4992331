#include "io/config_reader.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "io/units.h"
#include "json/text.h"

namespace longnet {
namespace {

std::string expected_integer(const IntRule& rule) {
  std::string text = rule.tokens ? "a number of tokens" : "an integer";
  if (rule.world) text += " or \"world\"";
  if (rule.divisors) text += " or \"divisors\"";
  if (rule.automatic) text += " or \"auto\"";
  return text;
}

std::string integer_hint(const IntRule& rule) {
  return rule.tokens ? "write 8192, \"8K\", \"1M\" or \"1B\" (2^10, 2^20, 2^30)"
                     : "write a whole number without quotes";
}

// For a number of the right kind that is too small or too large.
std::string range_hint(const IntRule& rule, bool below) {
  const int64_t limit = below ? rule.min : rule.max;
  std::string text = concat("use ", limit, below ? " or more" : " or less");
  if (rule.world) text += ", or \"world\"";
  if (rule.divisors) text += ", or \"divisors\"";
  if (rule.automatic) text += ", or \"auto\"";
  return text;
}

void read_range(ObjectReader& range, const std::string& path, const IntRule& rule, IntAxis& out) {
  Problems& problems = range.problems();
  IntAxis axis{.is_range = true};
  IntRule from_rule = rule;
  from_rule.world = from_rule.divisors = from_rule.automatic = false;
  const bool complete = range.node().find("from") && range.node().find("to");
  range.integer("from", axis.from, from_rule);
  IntRule to_rule = rule;
  to_rule.divisors = to_rule.automatic = false;
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
  if (rule.automatic && node.is_string() && node.string == "auto") {
    out = kMostReplicas;
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
                 range_hint(rule, below));
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

void ObjectReader::tokens_or(std::string_view key, std::string_view keyword,
                             std::optional<int64_t>& out) {
  const JsonNode* n = take(key);
  if (!n) return;
  if (n->is_string() && n->string == keyword) {
    out.reset();
    return;
  }
  if (n->is_string() && !try_parse_tokens(n->string)) {
    problems().add(*n, path_of(key),
                   concat("must be tokens or \"", keyword, "\", is \"", n->string, "\""),
                   concat("write 128, \"8K\" or \"", keyword, "\""));
    return;
  }
  int64_t value = 0;
  if (read_integer(*n, path_of(key), {.max = kMaxSeqLen, .tokens = true}, problems(), value))
    out = value;
}

void ObjectReader::integer(std::string_view key, int64_t& out, const IntRule& rule) {
  if (const JsonNode* n = take(key)) read_integer(*n, path_of(key), rule, problems(), out);
}

void ObjectReader::axis(std::string_view key, IntAxis& out, const IntRule& rule) {
  const JsonNode* n = take(key);
  if (!n) return;
  if (n->is_object()) {
    ObjectReader range(n, path_of(key), problems());
    read_range(range, path_of(key), rule, out);
    return;
  }
  IntAxis axis;
  bool good = true;
  for (const JsonNode* item : as_list(*n, path_of(key), problems())) {
    int64_t value = 0;
    good = read_integer(*item, path_of(key), rule, problems(), value) && good;
    axis.values.push_back(value);
  }
  if (good) out = axis;
}

}  // namespace longnet
