// The resolved config as text: every key, defaults included.
#include "io/config.h"
#include "io/field_json.h"
#include "io/sha256.h"

namespace longnet {

JsonNode to_json(const SegmentSpec& s, const Field& = {}) {
  if (s.kind == SegmentSpec::Kind::kTokens) return JsonNode(s.tokens);
  return JsonNode(s.kind == SegmentSpec::Kind::kPerRank ? "per_rank" : "sequence");
}

namespace {

JsonNode axis_node(const AxisValues& axis) {
  if (!axis.is_range) {
    JsonNode list = JsonNode::array();
    for (const Value& v : axis.values) list.push(to_node(v));
    return list;
  }
  JsonNode range = JsonNode::object();
  range.set("from", axis.from).set("to", to_node(axis.to));
  if (axis.factor > 0) return range.set("factor", axis.factor);
  return range.set("step", axis.step);
}

JsonNode sweep_node(const SweepConfig& s) {
  JsonNode n = JsonNode::object(), batch = JsonNode::object();
  const AxisValues one_rank{.values = {1}};
  for (const Axis& axis : axes()) {
    const AxisValues* values = s.find(axis.key);
    if (!values && axis.key == "ranks") values = &one_rank;  // was always written: hashes stay
    if (values) n.set(std::string(axis.key), axis_node(*values));
  }
  if (s.batch.constant_tokens) {
    batch.set("rule", "constant_tokens").set("tokens_per_batch", s.batch.tokens_per_batch);
  } else {
    batch.set("rule", "fixed").set("size", s.batch.size);
  }
  return n.set("batch", batch);
}

JsonNode config_node(const Config& c) {
  JsonNode root = JsonNode::object();
  PointParams defaults = c.defaults;
  // While heads are swept, kv_heads left open follow them.
  if (defaults.problem.num_kv_heads == 0 && !c.sweep.find("heads"))
    defaults.problem.num_kv_heads = defaults.problem.num_heads;
  const auto section = [&](const std::string& key, const auto*... parts) {
    JsonNode n = JsonNode::object();
    ((n = write_fields(*parts, std::move(n))), ...);
    for (const Axis& axis : axes())
      if (axis.use.section == key && (axis.key != "kv_heads" || defaults.problem.num_kv_heads > 0))
        n.set(std::string(axis.key), to_node(axis.member.get(defaults)));
    root.set(key, n);
  };
  root.set("schema_version", 1).set("name", c.name).set("description", c.description);
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
  return root;
}

}  // namespace

std::string resolved_config_json(const Config& config, int indent) {
  return dump_json(config_node(config), indent);
}

std::string config_sha256(const Config& config) {
  return sha256_hex(dump_json(config_node(config), -1, true));
}

}  // namespace longnet
