// Reads a cluster file into a ClusterSpec.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "json/json_reader.h"
#include "json/text.h"
#include "schedule/lower_collectives.h"
#include "simulate/cluster.h"
#include "simulate/collective_model.h"
#include "simulate/topology.h"

namespace longnet {
namespace {

const std::vector<std::string> kTopologies{"single_switch", "fat_tree", "rail_optimised", "torus",
                                           "dragonfly"};
const std::vector<std::string> kExecutions{"streams", "in_order"};
const std::vector<std::string> kDtypes{"fp32", "bf16"};
const std::vector<std::string> kAllGathers{
    "ring",     "recursive_doubling", "bruck", "hierarchical", "nccl_ring",
    "nccl_pat", "multi_channel_ring"};
const std::vector<std::string> kAllToAlls{"pairwise", "linear"};
const std::vector<std::string> kReduceScatters{"ring", "recursive_doubling"};

constexpr Limits kPositive{.min = 0, .min_excluded = true}, kNotNegative{.min = 0};

void missing(JsonReader& r, std::string_view key, std::string_view hint) {
  r.problems().add(r.node(), r.path_of(key), "is missing", hint);
}

void read_source(JsonReader& r, std::string& out) {
  r.text("source", out);
  if (r.node().find("source") && !out.empty()) return;
  missing(r, "source", "say where the number comes from: a measurement, a data sheet, a paper");
}

struct Kind {
  Limits limits = kPositive;
  bool required = true, whole = false;
};

void read_quantity(JsonReader& r, std::string_view key, Quantity& out, const Kind& kind) {
  const JsonNode* n = r.take(key);
  if (!n) {
    if (kind.required) missing(r, key, "write { \"value\": 1, \"source\": \"...\" }");
    return;
  }
  JsonReader q(n, r.path_of(key), r.problems());
  q.real("value", out.value, kind.limits);
  if (n->is_object() && !n->find("value")) missing(q, "value", "a number");
  if (kind.whole && out.value != std::floor(out.value))
    r.problems().add(*n, q.path_of("value"), concat("must be whole, is ", out.value), "count them");
  read_source(q, out.source);
  q.unknown_keys();
}

void read_alpha(JsonReader& r, AlphaBand& out) {
  const JsonNode* n = r.take("alpha_s");
  if (!n) return missing(r, "alpha_s", "write { \"value\": 1e-6, \"source\": \"...\" }");
  JsonReader a(n, r.path_of("alpha_s"), r.problems());
  if (n->find("value")) {
    a.real("value", out.seconds[0], kNotNegative);
    out.seconds[1] = out.seconds[2] = out.seconds[0];
  } else {
    for (const AlphaSet set : kAlphaSets) {
      a.real(to_string(set), out.seconds[size_t(set)], kNotNegative);
      if (!n->find(to_string(set))) missing(a, to_string(set), "give all three, or one \"value\"");
    }
  }
  read_source(a, out.source);
  a.unknown_keys();
}

void read_link(JsonReader r, LinkSpec& link) {
  read_alpha(r, link.alpha_s);
  read_quantity(r, "bandwidth_bytes_per_s", link.bandwidth_bytes_per_s, {});
  read_quantity(r, "ports_per_node", link.ports_per_node, {.whole = true});
  read_quantity(r, "overhead_s", link.overhead_s, {.limits = kNotNegative, .required = false});
  read_quantity(r, "shared_bytes_per_s", link.shared_bytes_per_s, {.required = false});
  r.unknown_keys();
}

void read_kernels(JsonReader& r, std::vector<KernelRow>& out) {
  const JsonNode* list = r.take("attend");
  if (!list || !list->is_array() || list->items.empty())
    return missing(r, "attend", "a list of { rows, head_dim, dtype, causal, flops_per_s, source }");
  for (size_t i = 0; i < list->items.size(); ++i) {
    JsonReader k(&list->items[i], concat(r.path_of("attend"), "[", i, "]"), r.problems());
    KernelRow row;
    std::string dtype;
    for (const char* key : {"rows", "head_dim", "dtype", "causal", "flops_per_s"})
      if (!k.node().find(key)) missing(k, key, "every row of the table has it");
    k.real("rows", row.rows, kPositive);
    k.real("head_dim", row.head_dim, kPositive);
    k.choice("dtype", dtype, kDtypes);
    if (!dtype.empty()) row.dtype = parse_dtype(dtype);
    k.boolean("causal", row.causal);
    k.real("flops_per_s", row.flops_per_s, kPositive);
    read_source(k, row.source);
    k.unknown_keys();
    out.push_back(row);
  }
}

void read_attend_model(JsonReader& r, std::vector<AttendModel>& out) {
  const JsonNode* list = r.take("attend_model");
  for (size_t i = 0; list && list->is_array() && i < list->items.size(); ++i) {
    JsonReader k(&list->items[i], concat(r.path_of("attend_model"), "[", i, "]"), r.problems());
    AttendModel m;
    std::string dtype;
    for (const char* key :
         {"head_dim", "dtype", "causal", "block_rows", "block_s", "query_s", "key_s", "pair_s"})
      if (!k.node().find(key)) missing(k, key, "every model has it; lnbench calibrate writes them");
    k.real("head_dim", m.head_dim, kPositive);
    k.choice("dtype", dtype, kDtypes);
    if (!dtype.empty()) m.dtype = parse_dtype(dtype);
    k.boolean("causal", m.causal);
    k.real("block_rows", m.block_rows, {.min = 1});
    k.real("block_s", m.block_s, kNotNegative);
    k.real("query_s", m.query_s, kNotNegative);
    k.real("key_s", m.key_s, kNotNegative);
    k.real("pair_s", m.pair_s, kPositive);
    read_source(k, m.source);
    k.unknown_keys();
    out.push_back(m);
  }
  if (list && !list->is_array())
    r.problems().add(*list, r.path_of("attend_model"), "must be a list", "leave it out for none");
}

void read_device(JsonReader r, DeviceSpec& d) {
  r.text("name", d.name);
  JsonReader peaks(r.take("peak_flops"), r.path_of("peak_flops"), r.problems());
  for (const std::string& name : kDtypes) {
    if (!peaks.node().find(name)) continue;
    read_quantity(peaks, name, d.peak_flops[parse_dtype(name)], {});
  }
  if (d.peak_flops.empty()) missing(r, "peak_flops", "{ \"bf16\": { \"value\": ... } }");
  peaks.unknown_keys();
  read_quantity(r, "memory_bytes", d.memory_bytes, {});
  read_quantity(r, "memory_bandwidth_bytes_per_s", d.memory_bandwidth_bytes_per_s, {});
  read_quantity(r, "launch_s", d.launch_s, {.limits = kNotNegative});
  read_quantity(r, "fill_rows", d.fill_rows, {.limits = kNotNegative, .required = false});
  read_quantity(r, "pack_bytes_per_s", d.pack_bytes_per_s, {.required = false});
  read_quantity(r, "merge_bytes_per_s", d.merge_bytes_per_s, {.required = false});
  read_quantity(r, "alone_speed", d.alone_speed, {.required = false});
  read_kernels(r, d.attend);
  read_attend_model(r, d.attend_model);
  r.unknown_keys();
}

void read_dimensions(JsonReader& r, TopologySpec& t) {
  const JsonNode* n = r.take("dimensions");
  if (!n) return missing(r, "dimensions", "{ \"value\": [4, 4, 4], \"source\": \"...\" }");
  JsonReader d(n, r.path_of("dimensions"), r.problems());
  const JsonNode* list = d.take("value");
  for (size_t i = 0; list && list->is_array() && i < list->items.size(); ++i) {
    double size = 0;
    read_real(list->items[i], d.path_of("value"), {.min = 1}, r.problems(), size);
    t.dimensions.push_back(int(size));
  }
  if (t.dimensions.empty()) missing(d, "value", "a list of nodes along each dimension");
  read_source(d, t.dimensions_source);
  d.unknown_keys();
}

void read_topology(JsonReader r, TopologySpec& t) {
  std::string kind = "single_switch";
  r.choice("kind", kind, kTopologies);
  t.kind =
      TopologyKind(std::find(kTopologies.begin(), kTopologies.end(), kind) - kTopologies.begin());
  switch (t.kind) {
    case TopologyKind::kFatTree:
    case TopologyKind::kRailOptimised:
      read_quantity(r, "nodes_per_leaf", t.nodes_per_leaf, {.whole = true});
      read_quantity(r, "taper", t.taper, {});
      break;
    case TopologyKind::kTorus:
      read_dimensions(r, t);
      read_quantity(r, "link_bytes_per_s", t.link_bytes_per_s, {});
      break;
    case TopologyKind::kDragonfly:
      read_quantity(r, "nodes_per_group", t.nodes_per_group, {.whole = true});
      read_quantity(r, "global_bytes_per_s", t.global_bytes_per_s, {});
      break;
    case TopologyKind::kSingleSwitch:
      break;
  }
  read_quantity(r, "hop_s", t.hop_s, {.limits = kNotNegative, .required = false});
  r.unknown_keys();
}

void read_collectives(JsonReader r, CollectiveNames& c) {
  r.choice("all_gather", c.all_gather, kAllGathers);
  r.choice("all_to_all", c.all_to_all, kAllToAlls);
  r.choice("reduce_scatter", c.reduce_scatter, kReduceScatters);
  read_source(r, c.source);
  r.unknown_keys();
}

void read_behaviour(JsonReader& r, ClusterSpec& c) {
  JsonReader execution(r.take("execution"), "execution", r.problems());
  std::string kind = "streams";
  execution.choice("value", kind, kExecutions);
  c.execution = kind == "streams" ? ExecutionKind::kStreams : ExecutionKind::kInOrder;
  read_source(execution, c.execution_source);
  execution.unknown_keys();
  JsonReader async(r.take("async_progress"), "async_progress", r.problems());
  async.boolean("value", c.async_progress);
  read_source(async, c.async_progress_source);
  async.unknown_keys();
  read_quantity(r, "async_bytes_per_s", c.async_bytes_per_s,
                {.limits = kNotNegative, .required = false});
  read_quantity(r, "overlap_efficiency", c.overlap_efficiency,
                {.limits = {.min = 0, .max = 1, .min_excluded = true}});
}

void check_sizes(const JsonReader& r, const ClusterSpec& c, Problems& problems) {
  if (!c.async_progress && c.execution == ExecutionKind::kStreams)
    problems.add(*r.node().find("async_progress"), "async_progress",
                 "false needs \"execution\": in_order",
                 "queues of a device progress by themselves; a thread that computes does not");
  if (c.async_progress && c.async_bytes_per_s.value > 0)
    problems.add(*r.node().find("async_bytes_per_s"), "async_bytes_per_s",
                 "has no meaning with async_progress", "leave it out, or set async_progress false");
  if (const std::string why = why_not_formula(c, c.collectives.all_gather); !why.empty())
    problems.add(*r.node().find("collectives"), "collectives.all_gather", why,
                 "use nccl_ring, or ask for it with sweep.collective");
  if (c.topology.kind == TopologyKind::kTorus && !c.topology.dimensions.empty()) {
    double nodes = 1;
    for (const int d : c.topology.dimensions) nodes *= d;
    if (nodes != c.nodes.value)
      problems.add(*r.node().find("topology"), "topology.dimensions",
                   concat("hold ", nodes, " nodes, the cluster has ", c.nodes.value),
                   "their product is the number of nodes");
    int farthest = 0;
    for (const int d : c.topology.dimensions) farthest += d / 2;
    if (farthest > Route::kMaxLinks - 2)
      problems.add(*r.node().find("topology"), "topology.dimensions",
                   concat("two nodes are ", farthest, " hops apart, at most ", Route::kMaxLinks - 2,
                          " are modelled"),
                   "more dimensions make it shorter: [8, 8, 8, 8] instead of [64, 64]");
  }
}

}  // namespace

std::string_view to_string(AlphaSet set) {
  static constexpr std::string_view kNames[] = {"ideal", "nccl_ll", "nccl_simple"};
  return kNames[size_t(set)];
}

AlphaSet parse_alpha_set(std::string_view name) {
  for (const AlphaSet set : kAlphaSets)
    if (to_string(set) == name) return set;
  throw UsageError(concat("unknown latency '", name, "': use ideal, nccl_ll or nccl_simple"));
}

std::string_view to_string(TopologyKind kind) { return kTopologies[size_t(kind)]; }
std::string_view to_string(ExecutionKind kind) { return kExecutions[size_t(kind)]; }

ClusterSpec parse_cluster(std::string_view text, const std::string& path) {
  const JsonNode root = parse_json(text, path);
  Problems problems;
  ClusterSpec c;
  c.path = path;
  JsonReader r(&root, "", problems);
  double version = 0;
  r.real("schema_version", version, {.min = 1, .max = 1});
  if (!root.find("schema_version")) missing(r, "schema_version", "add \"schema_version\": 1");
  r.text("name", c.name);
  if (c.name.empty()) missing(r, "name", "results and plots show it");
  r.text("description", c.description);
  read_quantity(r, "nodes", c.nodes, {.whole = true});
  read_quantity(r, "gpus_per_node", c.gpus_per_node, {.whole = true});
  const auto section = [&](std::string_view key) {
    return JsonReader(r.take(key), std::string(key), problems);
  };
  read_device(section("device"), c.device);
  JsonReader links = section("links");
  read_link(JsonReader(links.take("intra"), "links.intra", problems), c.intra);
  read_link(JsonReader(links.take("inter"), "links.inter", problems), c.inter);
  links.unknown_keys();
  read_topology(section("topology"), c.topology);
  read_collectives(section("collectives"), c.collectives);
  read_behaviour(r, c);
  r.unknown_keys();
  if (problems.empty()) check_sizes(r, c, problems);
  problems.throw_if_any();
  return c;
}

ClusterSpec load_cluster(const std::string& path) {
  return parse_cluster(read_file_text(path,
                                      "configs/clusters/ holds the suite's own, e.g. "
                                      "configs/clusters/h100-ndr400.json"),
                       path);
}

}  // namespace longnet
