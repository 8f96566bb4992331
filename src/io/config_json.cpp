// The resolved config as text: every key, defaults included.
#include "io/config.h"
#include "io/config_reader.h"
#include "io/sha256.h"

namespace longnet {
namespace {

template <class T>
JsonNode list_of(const std::vector<T>& values) {
  JsonNode list = JsonNode::array();
  for (const T& v : values) list.push(JsonNode(v));
  return list;
}

JsonNode number_or_word(int64_t v) {
  if (v == kMostReplicas) return JsonNode("auto");
  return v == kWorld ? JsonNode("world") : v == kDivisors ? JsonNode("divisors") : JsonNode(v);
}

JsonNode axis_node(const IntAxis& axis) {
  if (!axis.is_range) {
    JsonNode list = JsonNode::array();
    for (int64_t v : axis.values) list.push(number_or_word(v));
    return list;
  }
  JsonNode range = JsonNode::object();
  range.set("from", axis.from).set("to", number_or_word(axis.to));
  if (axis.factor > 0) return range.set("factor", axis.factor);
  return range.set("step", axis.step);
}

JsonNode model_node(const Config& c) {
  JsonNode n = JsonNode::object();
  n.set("heads", c.model.heads);
  // While heads are swept, kv_heads left open follow them.
  const bool heads_swept = c.sweep.heads.is_range || !c.sweep.heads.values.empty();
  if (c.model.kv_heads > 0 || !heads_swept)
    n.set("kv_heads", c.model.kv_heads > 0 ? c.model.kv_heads : c.model.heads);
  return n.set("head_dim", c.model.head_dim)
      .set("dtype", to_string(c.model.dtype))
      .set("causal", c.model.causal)
      .set("seed", c.model.seed);
}

JsonNode dilated_node(const DilatedConfig& d) {
  JsonNode segments = JsonNode::array();
  for (const SegmentSpec& s : d.segments) {
    switch (s.kind) {
      case SegmentSpec::Kind::kTokens:
        segments.push(s.tokens);
        break;
      case SegmentSpec::Kind::kPerRank:
        segments.push("per_rank");
        break;
      case SegmentSpec::Kind::kSequence:
        segments.push("sequence");
        break;
    }
  }
  JsonNode n = JsonNode::object();
  n.set("segments", segments).set("ratio_rule", ratio_rule_names()[size_t(d.ratio_rule)]);
  if (d.ratio_rule == RatioRule::kList) n.set("ratios", list_of(d.ratios));
  return n.set("offset", offset_names()[size_t(d.offset)])
      .set("phase", phase_names()[size_t(d.phase)])
      .set("gather_scope", d.gather_scope)
      .set("mix", mix_names()[size_t(d.mix)]);
}

JsonNode sparse_node(const SparseConfig& s) {
  JsonNode n = JsonNode::object();
  n.set("segment", s.segment ? JsonNode(*s.segment) : JsonNode("sqrt"));
  return n.set("summary", s.summary ? JsonNode(*s.summary) : JsonNode("match_dilated"));
}

JsonNode sweep_node(const SweepConfig& s) {
  JsonNode n = JsonNode::object();
  n.set("algorithm", list_of(s.algorithm));
  n.set("seq_len", axis_node(s.seq_len)).set("ranks", axis_node(s.ranks));
  JsonNode batch = JsonNode::object();
  if (s.batch.constant_tokens) {
    batch.set("rule", "constant_tokens").set("tokens_per_batch", s.batch.tokens_per_batch);
  } else {
    batch.set("rule", "fixed").set("size", s.batch.size);
  }
  n.set("batch", batch);
  const auto optional_axis = [&](const char* key, const IntAxis& axis) {
    if (axis.is_range || !axis.values.empty()) n.set(key, axis_node(axis));
  };
  optional_axis("heads", s.heads);
  optional_axis("kv_heads", s.kv_heads);
  optional_axis("head_dim", s.head_dim);
  optional_axis("seed", s.seed);
  optional_axis("threads", s.threads);
  JsonNode dtypes = JsonNode::array(), causal = JsonNode::array();
  for (DType t : s.dtype) dtypes.push(to_string(t));
  for (bool b : s.causal) causal.push(b);
  if (!dtypes.items.empty()) n.set("dtype", dtypes);
  if (!causal.items.empty()) n.set("causal", causal);
  if (!s.kernel.empty()) n.set("kernel", list_of(s.kernel));
  if (!s.layout.empty()) n.set("layout", list_of(s.layout));
  if (!s.collective.empty()) n.set("collective", list_of(s.collective));
  optional_axis("ulysses_degree", s.ulysses_degree);
  optional_axis("ring_inner", s.ring_inner);
  optional_axis("head_slice", s.head_slice);
  optional_axis("node_size", s.node_size);
  optional_axis("replicas", s.replicas);
  return n;
}

JsonNode exclude_node(const std::vector<ExcludeRule>& rules) {
  JsonNode list = JsonNode::array();
  for (const ExcludeRule& rule : rules) {
    JsonNode n = JsonNode::object();
    list.push(n.set("where", rule.where).set("reason", rule.reason).set("omit", rule.omit));
  }
  return list;
}

JsonNode virtual_node(const VirtualConfig& v) {
  JsonNode n = JsonNode::object();
  n.set("sample_share", v.sample_share).set("exact_point_s", v.exact_point_s);
  if (v.latency_s) n.set("latency_s", *v.latency_s);
  if (v.bytes_per_s) n.set("bytes_per_s", *v.bytes_per_s);
  return n;
}

JsonNode rest_node(const Config& c, JsonNode root) {
  JsonNode run = JsonNode::object(), measure = JsonNode::object(), check = JsonNode::object(),
           memory = JsonNode::object();
  run.set("kernel", c.run.kernel).set("transport", c.run.transport).set("threads", c.run.threads);
  measure.set("warmup", c.measure.warmup)
      .set("min_samples", c.measure.min_samples)
      .set("max_samples", c.measure.max_samples)
      .set("target_ci", c.measure.target_ci)
      .set("point_timeout_s", c.measure.point_timeout_s);
  check.set("max_seq_len", c.check.max_seq_len)
      .set("sampled_queries", c.check.sampled_queries)
      .set("tolerance", c.check.tolerance);
  memory.set("limit_fraction", c.memory.limit_fraction);
  if (c.memory.limit_bytes) memory.set("limit_bytes", *c.memory.limit_bytes);
  memory.set("on_exceed", c.memory.on_exceed);
  return root.set("run", run)
      .set("exclude", exclude_node(c.exclude))
      .set("measure", measure)
      .set("check", check)
      .set("memory", memory)
      .set("virtual", virtual_node(c.virtual_ranks));
}

JsonNode config_node(const Config& c) {
  JsonNode root = JsonNode::object();
  root.set("schema_version", 1).set("name", c.name).set("description", c.description);
  root.set("model", model_node(c)).set("dilated", dilated_node(c.dilated));
  root.set("sparse", sparse_node(c.sparse)).set("sweep", sweep_node(c.sweep));
  root = rest_node(c, std::move(root));
  // Only where there is one: configs without keep their hash.
  JsonNode cluster = JsonNode::object();
  if (!c.cluster.file.empty()) cluster.set("file", c.cluster.file);
  if (!c.cluster.what_if.empty()) cluster.set("what_if", list_of(c.cluster.what_if));
  if (!cluster.keys.empty()) root.set("cluster", cluster);
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
