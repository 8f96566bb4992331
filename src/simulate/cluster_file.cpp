// Reads and writes cluster files: each part of a ClusterSpec lists its fields once, for both ways.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "json/json_reader.h"
#include "json/text.h"
#include "simulate/cluster.h"
#include "simulate/cost_model.h"
#include "simulate/topology.h"

namespace longnet {
namespace {

using Names = std::vector<std::string>;
const Names kTopologies{"single_switch", "fat_tree", "rail_optimised", "torus", "dragonfly"};
const Names kExecutions{"streams", "in_order"};
const Names kMergeKinds{"kernel", "fused", "eager"};
const Names kDtypes{"fp32", "bf16"};
const Names kAllGathers{"ring",     "recursive_doubling", "bruck", "hierarchical", "nccl_ring",
                        "nccl_pat", "multi_channel_ring"};
const Names kAllToAlls{"pairwise", "linear"};
const Names kReduceScatters{"ring", "recursive_doubling"};

constexpr Limits kPositive{.min = 0, .min_excluded = true}, kNotNegative{.min = 0};

struct Kind {
  Limits limits = kPositive;
  bool required = true, whole = false;
};
constexpr Kind kOptional{.required = false};
constexpr Kind kOptionalOrZero{.limits = kNotNegative, .required = false};

// An object of a file that is read into a spec.
class FieldReader : public JsonReader {
 public:
  FieldReader(const JsonNode* node, std::string path, Problems& problems)
      : JsonReader(node, std::move(path), problems), is_object_(node && node->is_object()) {}
  bool is_object() const { return is_object_; }
  // `in_spec`: whether a writer would write it.
  bool has(std::string_view key, [[maybe_unused]] bool in_spec) const {
    return node().find(key) != nullptr;
  }
  void missing(std::string_view key, std::string_view hint) {
    problems().add(node(), path_of(key), "is missing", hint);
  }
  void require(std::initializer_list<std::string_view> keys, std::string_view hint) {
    for (const std::string_view key : keys)
      if (!node().find(key)) missing(key, hint);
  }

  using JsonReader::choice;
  template <class Enum>
  requires std::is_enum_v<Enum>
  void choice(std::string_view key, Enum& out, const Names& names) {
    std::string name = names[size_t(out)];
    choice(key, name, names);
    out = Enum(std::ranges::find(names, name) - names.begin());
  }
  void source(std::string& out) {
    text("source", out);
    if (!node().find("source") || out.empty())
      missing("source", "say where the number comes from: a measurement, a data sheet, a paper");
  }
  void check_whole(std::string_view key, double value) {
    if (value != std::floor(value))
      problems().add(node(), path_of(key), concat("must be whole, is ", value), "count them");
  }
  void integers(std::string_view key, std::vector<int>& out, std::string_view hint) {
    const JsonNode* list = take(key);
    for (size_t i = 0; list && list->is_array() && i < list->items.size(); ++i) {
      double value = 0;
      read_real(list->items[i], path_of(key), {.min = 1}, problems(), value);
      out.push_back(int(value));
    }
    if (out.empty()) missing(key, hint);
  }
  template <class Fn>
  void object(std::string_view key, Fn fn) {
    FieldReader inner(take(key), path_of(key), problems());
    fn(inner);
    inner.unknown_keys();
  }
  // `hint`: of a list that must be there and have items; "" for others.
  template <class T, class Fn>
  void list(std::string_view key, std::vector<T>& out, std::string_view hint, Fn fn) {
    const JsonNode* n = take(key);
    const bool is_list = n && n->is_array();
    if (!hint.empty() && (!is_list || n->items.empty())) return missing(key, hint);
    for (size_t i = 0; is_list && i < n->items.size(); ++i) {
      FieldReader item(&n->items[i], concat(path_of(key), "[", i, "]"), problems());
      fn(item, out.emplace_back());
      item.unknown_keys();
    }
    if (n && !is_list) problems().add(*n, path_of(key), "must be a list", "leave it out for none");
  }

 private:
  bool is_object_;
};

// An object of a file that is written from a spec. What only reading needs does nothing here.
class FieldWriter {
 public:
  JsonNode node = JsonNode::object();

  bool is_object() const { return true; }
  bool has(std::string_view, bool in_spec) const { return in_spec; }
  void missing(std::string_view, std::string_view) {}
  void require(std::initializer_list<std::string_view>, std::string_view) {}
  void check_whole(std::string_view, double) {}

  void set(std::string_view key, const JsonNode& value) { node.set(std::string(key), value); }
  void text(std::string_view key, const std::string& value) { set(key, value); }
  void boolean(std::string_view key, bool value) { set(key, value); }
  void real(std::string_view key, double value, const Limits&) { set(key, value); }
  void choice(std::string_view key, const std::string& value, const Names&) { set(key, value); }
  template <class Enum>
  void choice(std::string_view key, Enum value, const Names& names) {
    set(key, names[size_t(value)]);
  }
  void source(const std::string& source) { set("source", source); }
  void integers(std::string_view key, const std::vector<int>& values, std::string_view) {
    JsonNode list = JsonNode::array();
    for (const int value : values) list.push(value);
    set(key, list);
  }
  template <class Fn>
  void object(std::string_view key, Fn fn) {
    FieldWriter inner;
    fn(inner);
    set(key, inner.node);
  }
  template <class T, class Fn>
  void list(std::string_view key, std::vector<T>& items, std::string_view hint, Fn fn) {
    if (items.empty() && hint.empty()) return;
    JsonNode list = JsonNode::array();
    for (T& item : items) {
      FieldWriter inner;
      fn(inner, item);
      list.push(inner.node);
    }
    set(key, list);
  }
};

template <class File>
void quantity(File& f, std::string_view key, Quantity& q, const Kind& kind) {
  if (!f.has(key, kind.required || !q.source.empty())) {
    if (kind.required) f.missing(key, "write { \"value\": 1, \"source\": \"...\" }");
    return;
  }
  f.object(key, [&](auto& inner) {
    inner.real("value", q.value, kind.limits);
    if (inner.is_object()) inner.require({"value"}, "a number");
    if (kind.whole) inner.check_whole("value", q.value);
    inner.source(q.source);
  });
}

template <class File>
void alpha(File& f, AlphaBand& a) {
  if (!f.has("alpha_s", true))
    return f.missing("alpha_s", "write { \"value\": 1e-6, \"source\": \"...\" }");
  f.object("alpha_s", [&](auto& inner) {
    if (inner.has("value", !a.is_band())) {
      inner.real("value", a.seconds[0], kNotNegative);
      a.seconds[1] = a.seconds[2] = a.seconds[0];
    } else {
      for (const AlphaSet set : kAlphaSets) {
        inner.real(to_string(set), a.seconds[size_t(set)], kNotNegative);
        inner.require({to_string(set)}, "give all three, or one \"value\"");
      }
    }
    inner.source(a.source);
  });
}

template <class File>
void fields(File& f, LinkSpec& link) {
  alpha(f, link.alpha_s);
  quantity(f, "bandwidth_bytes_per_s", link.bandwidth_bytes_per_s, {});
  quantity(f, "ports_per_node", link.ports_per_node, {.whole = true});
  quantity(f, "overhead_s", link.overhead_s, kOptionalOrZero);
  quantity(f, "call_s", link.call_s, kOptionalOrZero);
  quantity(f, "channel_bytes_per_s", link.channel_bytes_per_s, kOptional);
  quantity(f, "shared_bytes_per_s", link.shared_bytes_per_s, kOptional);
  quantity(f, "ll_bytes_per_s", link.ll_bytes_per_s, kOptional);
}

template <class File>
void fields(File& f, KernelRow& row) {
  f.require({"rows", "head_dim", "dtype", "causal", "flops_per_s"},
            "every row of the table has it");
  if (f.has("kernel", !row.kernel.empty())) f.text("kernel", row.kernel);
  f.real("rows", row.rows, kPositive);
  f.real("head_dim", row.head_dim, kPositive);
  f.choice("dtype", row.dtype, kDtypes);
  f.boolean("causal", row.causal);
  if (f.has("backward", row.backward)) f.boolean("backward", row.backward);
  f.real("flops_per_s", row.flops_per_s, kPositive);
  f.source(row.source);
}

template <class File>
void fields(File& f, AttendModel& m) {
  f.require({"head_dim", "dtype", "causal", "block_rows", "block_s", "query_s", "key_s", "pair_s"},
            "every model has it; lnbench calibrate writes them");
  f.real("head_dim", m.head_dim, kPositive);
  f.choice("dtype", m.dtype, kDtypes);
  f.boolean("causal", m.causal);
  f.real("block_rows", m.block_rows, {.min = 1});
  f.real("block_s", m.block_s, kNotNegative);
  f.real("query_s", m.query_s, kNotNegative);
  f.real("key_s", m.key_s, kNotNegative);
  f.real("pair_s", m.pair_s, kPositive);
  f.source(m.source);
}

template <class File>
void fields(File& f, DeviceSpec& d) {
  const auto item = [](auto& file, auto& row) { fields(file, row); };
  f.text("name", d.name);
  f.object("peak_flops", [&](auto& peaks) {
    for (const std::string& name : kDtypes)
      if (peaks.has(name, d.peak_flops.contains(parse_dtype(name))))
        quantity(peaks, name, d.peak_flops[parse_dtype(name)], {});
    if (d.peak_flops.empty()) f.missing("peak_flops", "{ \"bf16\": { \"value\": ... } }");
  });
  quantity(f, "memory_bytes", d.memory_bytes, {});
  quantity(f, "memory_bandwidth_bytes_per_s", d.memory_bandwidth_bytes_per_s, {});
  quantity(f, "launch_s", d.launch_s, {.limits = kNotNegative});
  quantity(f, "fill_rows", d.fill_rows, kOptionalOrZero);
  quantity(f, "pack_bytes_per_s", d.pack_bytes_per_s, kOptional);
  quantity(f, "merge_bytes_per_s", d.merge_bytes_per_s, kOptional);
  quantity(f, "alone_speed", d.alone_speed, kOptional);
  f.list("attend", d.attend, "a list of { rows, head_dim, dtype, causal, flops_per_s, source }",
         item);
  f.list("attend_model", d.attend_model, "", item);
  if (f.has("kernel", !d.kernel.empty())) f.text("kernel", d.kernel);
}

template <class File>
void fields(File& f, TopologySpec& t) {
  f.choice("kind", t.kind, kTopologies);
  if (t.kind == TopologyKind::kFatTree || t.kind == TopologyKind::kRailOptimised) {
    quantity(f, "nodes_per_leaf", t.nodes_per_leaf, {.whole = true});
    quantity(f, "taper", t.taper, {});
  } else if (t.kind == TopologyKind::kTorus) {
    if (f.has("dimensions", true))
      f.object("dimensions", [&](auto& dimensions) {
        dimensions.integers("value", t.dimensions, "a list of nodes along each dimension");
        dimensions.source(t.dimensions_source);
      });
    else
      f.missing("dimensions", "{ \"value\": [4, 4, 4], \"source\": \"...\" }");
    quantity(f, "link_bytes_per_s", t.link_bytes_per_s, {});
  } else if (t.kind == TopologyKind::kDragonfly) {
    quantity(f, "nodes_per_group", t.nodes_per_group, {.whole = true});
    quantity(f, "global_bytes_per_s", t.global_bytes_per_s, {});
  }
  quantity(f, "hop_s", t.hop_s, kOptionalOrZero);
}

template <class File>
void fields(File& f, CollectiveNames& c) {
  f.choice("all_gather", c.all_gather, kAllGathers);
  f.choice("all_to_all", c.all_to_all, kAllToAlls);
  f.choice("reduce_scatter", c.reduce_scatter, kReduceScatters);
  f.source(c.source);
}

template <class File>
void fields(File& f, ClusterSpec& c) {
  const auto part = [&](auto& file, const char* key, auto& spec) {
    file.object(key, [&](auto& inner) { fields(inner, spec); });
  };
  f.text("description", c.description);
  quantity(f, "nodes", c.nodes, {.whole = true});
  quantity(f, "gpus_per_node", c.gpus_per_node, {.whole = true});
  part(f, "device", c.device);
  f.object("links", [&](auto& links) {
    part(links, "intra", c.intra);
    part(links, "inter", c.inter);
  });
  part(f, "topology", c.topology);
  part(f, "collectives", c.collectives);
  f.object("execution", [&](auto& execution) {
    execution.choice("value", c.execution, kExecutions);
    execution.source(c.execution_source);
  });
  if (f.has("merge", !c.merge_source.empty()))
    f.object("merge", [&](auto& merge) {
      merge.choice("value", c.merge, kMergeKinds);
      merge.source(c.merge_source);
    });
  f.object("async_progress", [&](auto& async) {
    async.boolean("value", c.async_progress);
    async.source(c.async_progress_source);
  });
  quantity(f, "async_bytes_per_s", c.async_bytes_per_s, kOptionalOrZero);
  quantity(f, "overlap_efficiency", c.overlap_efficiency,
           {.limits = {.min = 0, .max = 1, .min_excluded = true}});
  quantity(f, "host_s", c.host_s, kOptional);
  quantity(f, "error", c.error, kOptional);
}

void check_sizes(const JsonReader& r, const ClusterSpec& c, Problems& problems) {
  if (!c.async_progress && c.execution == ExecutionKind::kStreams)
    problems.add(*r.node().find("async_progress"), "async_progress",
                 "false needs \"execution\": in_order",
                 "queues of a device progress by themselves; a thread that computes does not");
  if (c.async_progress && c.async_bytes_per_s.value > 0)
    problems.add(*r.node().find("async_bytes_per_s"), "async_bytes_per_s",
                 "has no meaning with async_progress", "leave it out, or set async_progress false");
  if (std::ranges::find(c.device.attend, c.device.kernel, &KernelRow::kernel) ==
      c.device.attend.end())
    problems.add(*r.node().find("device"), "device.kernel",
                 concat("no row of device.attend is of '", c.device.kernel, "'"),
                 "name the kernel of some rows, or leave it out of all");
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
std::string_view to_string(MergeKind kind) { return kMergeKinds[size_t(kind)]; }

MergeKind parse_merge_kind(std::string_view name) {
  for (size_t i = 0; i < kMergeKinds.size(); ++i)
    if (kMergeKinds[i] == name) return MergeKind(i);
  throw UsageError(concat("unknown merge '", name, "': use kernel, fused or eager"));
}

std::string_view to_string(ExecutionKind kind) { return kExecutions[size_t(kind)]; }

ClusterSpec parse_cluster(std::string_view text, const std::string& path) {
  const JsonNode root = parse_json(text, path);
  Problems problems;
  ClusterSpec c;
  FieldReader f(&root, "", problems);
  double version = 0;
  f.real("schema_version", version, {.min = 1, .max = 1});
  f.require({"schema_version"}, "add \"schema_version\": 1");
  f.text("name", c.name);
  if (c.name.empty()) f.missing("name", "results and plots show it");
  fields(f, c);
  f.unknown_keys();
  if (problems.empty()) check_sizes(f, c, problems);
  problems.throw_if_any();
  return c;
}

std::string cluster_to_json(const ClusterSpec& cluster) {
  ClusterSpec c = cluster;
  FieldWriter f;
  f.node.set("schema_version", 1).set("name", c.name);
  fields(f, c);
  return dump_json(f.node, 2) + "\n";
}

ClusterSpec load_cluster(const std::string& path) {
  return parse_cluster(read_file_text(path,
                                      "configs/clusters/ holds the suite's own, e.g. "
                                      "configs/clusters/h100-ndr400.json"),
                       path);
}

}  // namespace longnet
