#include "io/config_reader.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "io/units.h"

namespace longnet {
namespace {

// The name of a whole number of each Unit, and the hint how to write it.
struct WholeNumber {
  std::string_view name, hint;
};
constexpr WholeNumber kWholeNumbers[] = {
    {"an integer", "write a whole number without quotes"},
    {"a number of tokens", "write 8192, \"8K\", \"1M\" or \"1B\" (2^10, 2^20, 2^30)"},
    {"a number of bytes", "write 8589934592 or \"8GiB\""},
    {"an integer", "write a whole number without quotes"}};

std::string or_words(const Field& field, std::string_view before) {
  std::string text;
  for (const std::string& word : field.words) text += concat(before, "\"", word, "\"");
  return text;
}

std::optional<int64_t> whole_number(const JsonNode& node, Unit unit) {
  if (node.kind == JsonNode::Kind::kInteger) return node.integer;
  if (node.kind == JsonNode::Kind::kNumber && node.number == std::floor(node.number) &&
      std::abs(node.number) < 9e15)
    return int64_t(node.number);  // 1e6 is as whole as 1000000
  if (node.is_string() && unit == Unit::kTokens) return try_parse_tokens(node.string);
  if (node.is_string() && unit == Unit::kBytes) return try_parse_bytes(node.string);
  return std::nullopt;
}

AxisValues read_range(FieldReader range, const std::string& path, const Field& field) {
  Problems& problems = range.problems();
  const JsonNode& node = range.node();
  AxisValues axis{.is_range = true};
  Field from = field, to = field;
  from.words.clear();
  std::erase_if(to.words, [](const std::string& word) { return word != kWorld; });
  range("from", axis.from, from);
  range("to", axis.to, to);
  range("factor", axis.factor, {.min = 1, .min_excluded = true});
  range("step", axis.step, {.min = 1, .unit = field.unit});
  range.unknown_keys();
  const bool complete = node.find("from") && node.find("to");
  if (!complete)
    problems.add(node, path, "a range needs \"from\" and \"to\"",
                 "write {\"from\": 1, \"to\": 8, \"factor\": 2}, or a list");
  const bool factor = node.find("factor"), step = node.find("step");
  if (factor == step)
    problems.add(
        node, path,
        factor ? "a range has a factor or a step, not both" : "a range needs a factor or a step",
        "\"factor\": 2 doubles, \"step\": 1 counts");
  const auto* last = std::get_if<int64_t>(&axis.to);
  if (complete && last && axis.from > *last && axis.from > 0 && *last > 0)
    problems.add(node, path, concat("from ", axis.from, " is greater than to ", *last),
                 "a range goes upwards: swap them");
  return axis;
}

}  // namespace

bool read_value(const JsonNode& node, const std::string& path, const Field& field,
                Problems& problems, Value& out) {
  if (auto* flag = std::get_if<bool>(&out)) return read_json(node, path, problems, *flag);
  if (auto* text = std::get_if<std::string>(&out)) {
    if (!field.words.empty()) return read_json(node, path, problems, *text, field.words);
    if (!(field.min > 0) || !node.is_string() || !node.string.empty())
      return read_json(node, path, problems, *text);
    problems.add(node, path, "is empty", "write something, or leave the key out");
    return false;
  }
  if (node.is_string() && std::ranges::find(field.words, node.string) != field.words.end()) {
    out = node.string;
    return true;
  }
  const std::optional<int64_t> value = whole_number(node, field.unit);
  if (!value) {
    const WholeNumber& whole = kWholeNumbers[size_t(field.unit)];
    problems.add(node, path,
                 concat("must be ", whole.name, or_words(field, " or "), ", is ", shown(node)),
                 concat(whole.hint, or_words(field, ", or ")));
    return false;
  }
  const double least = std::max(0.0, field.min);
  const bool below = double(*value) < least;
  if (below || double(*value) > field.max) {
    const int64_t limit = int64_t(below ? least : field.max);
    problems.add(node, path,
                 concat("must be at ", below ? "least " : "most ", limit, ", is ", *value),
                 concat("use ", limit, below ? " or more" : " or less", or_words(field, ", or ")));
    return false;
  }
  if (*value % field.multiple_of != 0) {
    const int64_t up = (*value / field.multiple_of + 1) * field.multiple_of;
    problems.add(node, path, concat("must be a multiple of ", field.multiple_of, ", is ", *value),
                 concat("the next one is ", int64_t(std::min(double(up), field.max))));
    return false;
  }
  out = *value;
  return true;
}

void FieldReader::axis(const Axis& axis, const KnownNames& known, SweepConfig& out) {
  const JsonNode* n = take(axis.key);
  if (!n) return;
  const std::string path = path_of(axis.key);
  AxisValues& values = out.axes[std::string(axis.key)];
  if (n->is_object() && std::holds_alternative<int64_t>(axis.standard)) {
    values = read_range(FieldReader(n, path, problems()), path, axis.field);
    return;
  }
  Field field = axis.field;
  field.words = known.values_of(axis);
  if (n->items.size() > size_t(kMaxAxisValues))
    return problems().add(*n, path, concat("has ", n->items.size(), " values"),
                          concat("give at most ", kMaxAxisValues));
  for (const JsonNode* item : as_list(*n, path, problems()))
    if (Value value = axis.standard; read_value(*item, path, field, problems(), value))
      values.values.push_back(value);
}

void FieldReader::value(const Axis& axis, const KnownNames& known, PointParams& out) {
  Field one = axis.field;
  one.words = known.values_of(axis);
  if (std::holds_alternative<int64_t>(axis.standard)) one.words.clear();  // they follow the point
  Value value = axis.standard;
  const JsonNode* n = take(axis.key);
  if (n && read_value(*n, path_of(axis.key), one, problems(), value)) axis.member.set(out, value);
}

}  // namespace longnet
