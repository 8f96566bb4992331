// Writes a ClusterSpec as the text of a cluster file.
#include "json/json_tree.h"
#include "simulate/cluster.h"

namespace longnet {
namespace {

template <class T>
JsonNode sourced(const T& value, const std::string& source) {
  JsonNode n = JsonNode::object();
  return n.set("value", value).set("source", source);
}

JsonNode node_of(const Quantity& q) { return sourced(q.value, q.source); }

void set_if_given(JsonNode& n, const char* key, const Quantity& q) {
  if (!q.source.empty()) n.set(key, node_of(q));
}

JsonNode node_of(const AlphaBand& a) {
  if (!a.is_band()) return sourced(a.seconds[0], a.source);
  JsonNode n = JsonNode::object();
  for (const AlphaSet set : kAlphaSets) n.set(std::string(to_string(set)), a.of(set));
  return n.set("source", a.source);
}

JsonNode node_of(const LinkSpec& link) {
  JsonNode n = JsonNode::object();
  n.set("alpha_s", node_of(link.alpha_s));
  n.set("bandwidth_bytes_per_s", node_of(link.bandwidth_bytes_per_s));
  n.set("ports_per_node", node_of(link.ports_per_node));
  set_if_given(n, "overhead_s", link.overhead_s);
  set_if_given(n, "shared_bytes_per_s", link.shared_bytes_per_s);
  return n;
}

JsonNode node_of(const std::vector<AttendModel>& models) {
  JsonNode list = JsonNode::array();
  for (const AttendModel& m : models) {
    JsonNode n = JsonNode::object();
    n.set("head_dim", m.head_dim).set("dtype", to_string(m.dtype)).set("causal", m.causal);
    n.set("block_rows", m.block_rows).set("block_s", m.block_s).set("query_s", m.query_s);
    n.set("key_s", m.key_s).set("pair_s", m.pair_s);
    list.push(n.set("source", m.source));
  }
  return list;
}

JsonNode node_of(const DeviceSpec& d) {
  JsonNode n = JsonNode::object(), peaks = JsonNode::object(), rows = JsonNode::array();
  for (const auto& [dtype, peak] : d.peak_flops)
    peaks.set(std::string(to_string(dtype)), node_of(peak));
  for (const KernelRow& row : d.attend) {
    JsonNode k = JsonNode::object();
    k.set("rows", row.rows).set("head_dim", row.head_dim).set("dtype", to_string(row.dtype));
    k.set("causal", row.causal).set("flops_per_s", row.flops_per_s);
    rows.push(k.set("source", row.source));
  }
  n.set("name", d.name).set("peak_flops", peaks).set("memory_bytes", node_of(d.memory_bytes));
  n.set("memory_bandwidth_bytes_per_s", node_of(d.memory_bandwidth_bytes_per_s));
  n.set("launch_s", node_of(d.launch_s));
  set_if_given(n, "fill_rows", d.fill_rows);
  set_if_given(n, "pack_bytes_per_s", d.pack_bytes_per_s);
  set_if_given(n, "merge_bytes_per_s", d.merge_bytes_per_s);
  set_if_given(n, "alone_speed", d.alone_speed);
  n.set("attend", rows);
  if (!d.attend_model.empty()) n.set("attend_model", node_of(d.attend_model));
  return n;
}

JsonNode node_of(const TopologySpec& t) {
  JsonNode n = JsonNode::object();
  n.set("kind", to_string(t.kind));
  if (t.kind == TopologyKind::kFatTree || t.kind == TopologyKind::kRailOptimised)
    n.set("nodes_per_leaf", node_of(t.nodes_per_leaf)).set("taper", node_of(t.taper));
  if (t.kind == TopologyKind::kTorus) {
    JsonNode list = JsonNode::array();
    for (const int d : t.dimensions) list.push(d);
    n.set("dimensions", sourced(list, t.dimensions_source));
    n.set("link_bytes_per_s", node_of(t.link_bytes_per_s));
  }
  if (t.kind == TopologyKind::kDragonfly)
    n.set("nodes_per_group", node_of(t.nodes_per_group))
        .set("global_bytes_per_s", node_of(t.global_bytes_per_s));
  set_if_given(n, "hop_s", t.hop_s);
  return n;
}

}  // namespace

std::string cluster_to_json(const ClusterSpec& c) {
  JsonNode n = JsonNode::object(), links = JsonNode::object(), collectives = JsonNode::object();
  links.set("intra", node_of(c.intra)).set("inter", node_of(c.inter));
  collectives.set("all_gather", c.collectives.all_gather);
  collectives.set("all_to_all", c.collectives.all_to_all);
  collectives.set("reduce_scatter", c.collectives.reduce_scatter);
  collectives.set("source", c.collectives.source);
  n.set("schema_version", 1).set("name", c.name).set("description", c.description);
  n.set("nodes", node_of(c.nodes)).set("gpus_per_node", node_of(c.gpus_per_node));
  n.set("device", node_of(c.device)).set("links", links).set("topology", node_of(c.topology));
  n.set("collectives", collectives);
  n.set("execution", sourced(to_string(c.execution), c.execution_source));
  n.set("async_progress", sourced(c.async_progress, c.async_progress_source));
  set_if_given(n, "async_bytes_per_s", c.async_bytes_per_s);
  n.set("overlap_efficiency", node_of(c.overlap_efficiency));
  return dump_json(n, 2) + "\n";
}

}  // namespace longnet
