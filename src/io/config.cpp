#include "io/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/check.h"
#include "io/config_reader.h"
#include "io/filter.h"
#include "io/sha256.h"

namespace longnet {

namespace {

constexpr int64_t kMaxBatch = int64_t{1} << 40;

void read_batch(FieldReader r, BatchConfig& batch) {
  std::string rule = "fixed";
  r("rule", rule, {.words = {"fixed", "constant_tokens"}});
  batch.constant_tokens = rule == "constant_tokens";
  r("size", batch.size, {.min = 1, .max = double(kMaxBatch)});
  Value given = 0;
  r("tokens_per_batch", given,
    {.min = 1, .max = kMaxSeqLen, .unit = Unit::kTokens, .words = {"device"}});
  batch.tokens_of_device = std::holds_alternative<std::string>(given);
  batch.tokens_per_batch =
      batch.tokens_of_device ? BatchConfig::kTokensOfNoDevice : std::get<int64_t>(given);
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
      parse_filter(rule.where, known);
    } catch (const UsageError& e) {
      const JsonNode* where = item.find("where");
      problems.add(where ? *where : item, path + ".where", e.what(), "");
    }
    out.push_back(rule);
  }
}

JsonNode axis_node(const AxisValues& axis) {
  if (!axis.is_range) return to_json(axis.values);
  JsonNode range = JsonNode::object({{"from", axis.from}, {"to", to_json(axis.to)}});
  return axis.factor > 0 ? range.set("factor", axis.factor) : range.set("step", axis.step);
}

JsonNode sweep_node(const SweepConfig& s) {
  JsonNode n = JsonNode::object();
  const AxisValues one_rank{.values = {1}};
  for (const Axis& axis : axes()) {
    const AxisValues* values = s.find(axis.key);
    if (!values && axis.key == "ranks") values = &one_rank;  // was always written: hashes stay
    if (values) n.set(std::string(axis.key), axis_node(*values));
  }
  return n.set("batch", s.batch.constant_tokens
                            ? JsonNode::object({{"rule", "constant_tokens"},
                                                {"tokens_per_batch", s.batch.tokens_per_batch}})
                            : JsonNode::object({{"rule", "fixed"}, {"size", s.batch.size}}));
}

}  // namespace

JsonNode resolved_config(const Config& c) {
  JsonNode root =
      JsonNode::object({{"schema_version", 1}, {"name", c.name}, {"description", c.description}});
  PointParams defaults = c.defaults;
  // While heads are swept, kv_heads left open follow them.
  if (defaults.problem.num_kv_heads == 0 && !c.sweep.find("heads"))
    defaults.problem.num_kv_heads = defaults.problem.num_heads;
  const auto section = [&](const std::string& key, const auto*... parts) {
    JsonNode n = JsonNode::object();
    ((n = write_fields(*parts, std::move(n))), ...);
    for (const Axis& axis : axes())
      if (axis.use.section == key &&
          (axis.key != "kv_heads" || defaults.problem.num_kv_heads > 0) &&
          !(has_layers(axis.readers.scope) &&
            axis.is_standard(defaults)))  // such configs keep their hash
        n.set(std::string(axis.key), to_json(axis.member.get(defaults), axis.field));
    root.set(key, n);
  };
  section("model");
  section("dilated", &c.dilated);
  section("sparse", &c.sparse);
  root.set("sweep", sweep_node(c.sweep));
  section("run", &c.run);
  root.set("exclude", to_json(c.exclude));
  section("measure", &c.measure);
  section("check", &c.check);
  section("memory", &c.memory);
  section("virtual", &c.virtual_ranks);
  // Only where there is one: configs without keep their hash.
  if (!c.cluster.file.empty() || !c.cluster.what_if.empty()) section("cluster", &c.cluster);
  if (c.train) section("train", &*c.train);
  return root;
}

std::vector<Value> Config::values_of(const Axis& of, int64_t world_size, int64_t ranks) const {
  const AxisValues* asked = sweep.find(of.key);
  if (!asked) return {of.member.get(defaults)};
  const AxisValues& axis = *asked;
  std::vector<Value> values;
  const auto add = [&](const Value& v) {
    if (std::ranges::find(values, v) == values.end()) values.push_back(v);
  };
  const auto of_world = [&](const Value& v) { return v == Value(kWorld) ? world_size : v; };
  if (!axis.is_range) {
    for (const Value& v : axis.values) {
      if (v == Value(kDivisors)) {
        int64_t d = 1;
        for (; d * d < ranks; ++d)
          if (ranks % d == 0) add(d);
        for (; d >= 1; --d)
          if (ranks % d == 0) add(ranks / d);
      } else {
        add(v == Value(kMostReplicas) ? Value(0) : of_world(v));
      }
    }
    return values;
  }
  const int64_t to = std::get<int64_t>(of_world(axis.to));
  // A step is added to integers: a double beyond 2^53 would not grow by it.
  const int64_t step = std::max<int64_t>(1, axis.step);
  int64_t last = axis.from, products = 0;
  for (double v = double(axis.from); last <= to;) {
    if (int64_t(values.size()) >= kMaxAxisValues || ++products > 100 * kMaxAxisValues)
      throw UsageError("a range from ", axis.from, " to ", to, " has more than ", kMaxAxisValues,
                       " values, or no end\n  hint: use a greater step or a factor");
    if (values.empty() || Value(last) != values.back()) values.emplace_back(last);
    v = axis.factor > 0 ? v * axis.factor : v;
    if (axis.factor > 0 ? v > double(to) + 0.5 || v >= 0x1p63 : last > to - step) break;
    last = axis.factor > 0 ? std::llround(v) : last + step;
  }
  return values;
}

void check_combinations(
    const Config& c, int64_t world_size,
    const std::function<void(const std::string&, const std::string&, const std::string&)>& error) {
  double with_one = 1;                // points of one number of ranks...
  std::vector<const Axis*> divisors;  // ...apart from the axes that hang on it
  std::vector<Value> ranks;
  for (const Axis& axis : axes()) {
    try {
      const AxisValues* asked = c.sweep.find(axis.key);
      if (asked && std::ranges::count(asked->values, Value(kDivisors)) > 0)
        divisors.push_back(&axis);
      else if (std::vector<Value> values = c.values_of(axis, world_size); axis.key == "ranks")
        ranks = std::move(values);
      else
        with_one *= double(values.size());
    } catch (const UsageError& e) {
      return error(concat("sweep.", axis.key), e.what(), "");
    }
  }
  double all = 0;
  for (const Value& p : ranks) {
    double with_these = with_one;
    for (const Axis* axis : divisors)
      with_these *= double(c.values_of(*axis, world_size, std::get<int64_t>(p)).size());
    all += with_these;
  }
  if (all > double(kMaxCombinations))
    error("sweep",
          concat("makes ", all, " combinations",
                 world_size > 1 ? concat(" where \"world\" is ", world_size) : ""),
          concat("stay below ", kMaxCombinations, ": use ranges with a factor"));
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
  for (const char* key : {"extends", "$schema"}) r.take(key);  // the latter is for editors
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
  if (root.find("train")) section("train", &c.train.emplace());
  r.unknown_keys();
  check_what_if(root, options.known, problems);
  check_config(c, root, problems);
  problems.throw_if_any();
  return c;
}

std::string config_sha256(const Config& config) {
  return sha256_hex(dump_json(resolved_config(config), -1, true));
}

}  // namespace longnet
