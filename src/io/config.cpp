#include "io/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/check.h"
#include "io/config_reader.h"
#include "io/filter.h"

namespace longnet {
namespace {

constexpr int64_t kMaxAxisValues = 10000;

void read_batch(FieldReader r, BatchConfig& batch) {
  std::string rule = "fixed";
  r("rule", rule, {.words = {"fixed", "constant_tokens"}});
  batch.constant_tokens = rule == "constant_tokens";
  r("size", batch.size, {.min = 1});
  std::optional<int64_t> given = 0;
  r("tokens_per_batch", given,
    {.min = 1, .max = kMaxSeqLen, .unit = Unit::kTokens, .words = {"device"}});
  batch.tokens_of_device = !given.has_value();
  batch.tokens_per_batch = given.value_or(BatchConfig::kTokensOfNoDevice);
  const JsonNode* tokens = r.node().find("tokens_per_batch");
  if (batch.constant_tokens && !tokens)
    r.problems().add(r.node(), r.path_of("tokens_per_batch"), "is missing",
                     "the rule \"constant_tokens\" needs it, e.g. \"1M\"");
  if (tokens && !r.node().find("rule"))
    r.problems().add(*tokens, r.path_of("tokens_per_batch"), "belongs to another rule",
                     "add \"rule\": \"constant_tokens\"");
  r.unknown_keys();
}

void read_sweep(FieldReader r, const KnownNames& known, SweepConfig& sweep) {
  for (const Axis& axis : axes())
    if (axis.use.swept) r.axis(axis, known, sweep);
  if (const JsonNode* batch = r.take("batch"))
    read_batch(FieldReader(batch, r.path_of("batch"), r.problems()), sweep.batch);
  r.unknown_keys();
}

// An empty text asks nothing: the cluster as it is.
void check_what_if(const JsonNode& root, const KnownNames& known, Problems& problems) {
  const JsonNode* cluster = root.find("cluster");
  const JsonNode* list = cluster ? cluster->find("what_if") : nullptr;
  if (!list) return;
  std::vector<std::string> seen;
  for (const JsonNode* item : as_list(*list, "cluster.what_if", problems)) {
    const std::string why =
        known.why_bad_what_if ? known.why_bad_what_if(item->string) : std::string();
    if (!why.empty())
      problems.add(*item, "cluster.what_if", why, "lnbench simulate --help lists them");
    if (std::ranges::find(seen, item->string) != seen.end())
      problems.add(*item, "cluster.what_if", concat("'", item->string, "' stands there twice"),
                   "its points would be the same: leave one out");
    seen.push_back(item->string);
  }
}

void read_exclude(const JsonNode* list, const KnownNames& known, Problems& problems,
                  std::vector<ExcludeRule>& out) {
  if (!list) return;
  if (!list->is_array()) {
    problems.add(*list, "exclude", concat("must be a list, is ", list->kind_name()),
                 "write [ {\"where\": \"ranks > 4\", \"reason\": \"...\"} ]");
    return;
  }
  for (size_t i = 0; i < list->items.size(); ++i) {
    const JsonNode& item = list->items[i];
    const std::string path = concat("exclude[", i, "]");
    FieldReader r(&item, path, problems);
    ExcludeRule rule;
    ExcludeRule::fields(rule, r);
    r.unknown_keys();
    if (item.is_object() && rule.where.empty())
      problems.add(item, path + ".where", "is missing or empty", "name the points: \"ranks > 4\"");
    if (item.is_object() && rule.reason.empty())
      problems.add(item, path + ".reason", "is missing or empty",
                   "results show it in place of a number: say why");
    try {
      const Filter parsed(rule.where, known);
    } catch (const UsageError& e) {
      const JsonNode* where = item.find("where");
      problems.add(where ? *where : item, path + ".where", e.what(), "");
    }
    out.push_back(rule);
  }
}

}  // namespace

std::string_view to_string(RatioRule rule) {
  switch (rule) {
    case RatioRule::kGeometric:
      return "geometric";
    case RatioRule::kSqrt:
      return "sqrt";
    case RatioRule::kList:
      return "list";
    case RatioRule::kCapped:
      return "capped";
  }
  return "?";
}

std::string_view to_string(DilationPhase phase) {
  return phase == DilationPhase::kSegment ? "segment" : "shard";
}

std::vector<Value> axis_values(const AxisValues& axis, int64_t world_size, int64_t ranks) {
  std::vector<Value> values;
  const auto add = [&](const Value& v) {
    if (std::ranges::find(values, v) == values.end()) values.push_back(v);
  };
  const auto of_world = [&](const Value& v) { return v == Value(kWorld) ? world_size : v; };
  if (!axis.is_range) {
    for (const Value& v : axis.values) {
      if (v == Value(kDivisors)) {
        for (int64_t d = 1; d <= ranks; ++d)
          if (ranks % d == 0) add(d);
      } else {
        add(v == Value(kMostReplicas) ? Value(0) : of_world(v));
      }
    }
    return values;
  }
  const int64_t to = std::get<int64_t>(of_world(axis.to));
  int64_t last = 0;
  for (double v = double(axis.from); std::llround(v) <= to;) {
    if (int64_t(values.size()) >= kMaxAxisValues)
      throw UsageError(concat("a range from ", axis.from, " to ", to, " has more than ",
                              kMaxAxisValues, " values\n  hint: use a greater step or a factor"));
    const int64_t whole = std::llround(v);
    if (values.empty() || whole > last) values.emplace_back(last = whole);
    v = axis.factor > 0 ? v * axis.factor : v + double(std::max<int64_t>(1, axis.step));
  }
  return values;
}

std::vector<Value> Config::values_of(const Axis& axis, int64_t world_size, int64_t ranks) const {
  const AxisValues* asked = sweep.find(axis.key);
  if (!asked) return {axis.member.get(defaults)};
  return axis_values(*asked, world_size, ranks);
}

Config parse_config(std::string_view text, const std::string& path, const LoadOptions& options) {
  const JsonNode root = load_config_tree(text, path, options.overrides);
  Problems problems;
  Config c;
  c.path = path;
  c.name = std::filesystem::path(path).stem().string();
  FieldReader r(&root, "", problems);
  const auto section = [&](const std::string& key, auto*... parts) {
    FieldReader reader(r.take(key), key, problems);
    (std::remove_pointer_t<decltype(parts)>::fields(*parts, reader), ...);
    for (const Axis& axis : axes())
      if (axis.use.section == key) reader.value(axis, options.known, c.defaults);
    reader.unknown_keys();
  };
  int64_t version = 0;
  r("schema_version", version, {.min = 1, .max = 1});
  if (!root.find("schema_version"))
    problems.add(root, "schema_version", "is missing", "add \"schema_version\": 1");
  r("name", c.name);
  r("description", c.description);
  r.take("extends");
  section("model");
  section("dilated", &c.dilated);
  section("sparse", &c.sparse);
  read_sweep(FieldReader(r.take("sweep"), "sweep", problems), options.known, c.sweep);
  section("run", &c.run);
  read_exclude(r.take("exclude"), options.known, problems, c.exclude);
  section("measure", &c.measure);
  section("check", &c.check);
  section("memory", &c.memory);
  section("virtual", &c.virtual_ranks);
  section("cluster", &c.cluster);
  r.unknown_keys();
  check_what_if(root, options.known, problems);
  check_config(c, root, problems);
  problems.throw_if_any();
  return c;
}

}  // namespace longnet
