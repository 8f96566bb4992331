// Reads and writes cluster files: each part of a ClusterSpec lists its fields once, for both ways.
#include <algorithm>
#include <cmath>
#include <set>

#include "core/check.h"
#include "json/json_reader.h"
#include "json/text.h"
#include "schedule/lower_collectives.h"
#include "simulate/cluster.h"
#include "simulate/collective_times.h"
#include "simulate/topology.h"

namespace longnet {
namespace {

using Names = std::vector<std::string>;

// Beyond these a sum of a simulation is no number any more, an int overflows, or a number is in
// another unit than bytes, FLOPs and seconds: GB, TFLOP/s, us.
constexpr double kMostGpus = 1 << 24, kMostPorts = 4096;
constexpr Limits kAmount{.min = 1, .max = 1e30}, kMillions{.min = 1e6, .max = 1e30},
    kAmountOrZero{.min = 0, .max = 1e30}, kSeconds{.min = 0, .max = 1},
    kRatio{.min = 1e-6, .max = 1e6};

struct Kind {
  Limits limits = kMillions;
  bool required = true, whole = false;
};
constexpr Kind kCount{.limits = {.min = 1, .max = kMostGpus}, .whole = true};
constexpr Kind kOptional{.required = false};
constexpr Kind kOptionalOrZero{.limits = kAmountOrZero, .required = false};
constexpr Kind kOptionalSeconds{.limits = kSeconds, .required = false};
constexpr Kind kOptionalRatio{.limits = kRatio, .required = false};
constexpr Kind kOptionalShare{.limits = {.min = kRatio.min, .max = 1}, .required = false};

// An object of a file. Each field is read from it, where it is there, into the spec, and written
// from the spec into `written`. With `writing` there is nothing to read, and nothing is missing.
class FileObject : public JsonReader {
 public:
  JsonNode written = JsonNode::object();

  FileObject(const JsonNode* node, std::string path, Problems& problems, bool writing)
      : JsonReader(node, std::move(path), problems), writing_(writing) {}
  // `in_spec`: whether a file of the spec has it.
  bool has(std::string_view key, bool in_spec) const {
    return writing_ ? in_spec : node().find(key) != nullptr;
  }
  void missing(std::string_view key, std::string_view hint) {
    if (!writing_) problems().add(node(), path_of(key), "is missing", hint);
  }
  void require(std::initializer_list<std::string_view> keys, std::string_view hint) {
    for (const std::string_view key : keys)
      if (!node().find(key)) missing(key, hint);
  }

  template <class T>
  void field(std::string_view key, T& value) {
    JsonReader::field(key, value);
    write(key, value);
  }
  template <class T, class Rule = Limits>
  void field(std::string_view key, T& value, const Rule& rule) {
    JsonReader::field(key, value, rule);
    write(key, value);
  }
  template <HasTexts Enum>
  void field(std::string_view key, Enum& value) {
    std::string name(to_string(value));
    field(key, name, enum_names<Enum>());
    value = parse_enum<Enum>(name);
  }
  // { "value": ..., "source": "..." }
  template <class T>
  void sourced(std::string_view key, T& value, std::string& source_of_value) {
    object(key, "write { \"value\": ..., \"source\": \"...\" }", [&](FileObject& inner) {
      inner.field("value", value);
      inner.source(source_of_value);
    });
  }
  void source(std::string& value) {
    field("source", value);
    if (!node().find("source") || value.empty())
      missing("source", "say where the number comes from: a measurement, a data sheet, a paper");
  }
  void integers(std::string_view key, std::vector<int>& values, std::string_view hint) {
    const JsonNode* list = take(key);
    for (size_t i = 0; list && list->is_array() && i < list->items.size(); ++i) {
      double value = 0;
      read_json(list->items[i], path_of(key), problems(), value, kCount.limits);
      values.push_back(int(value));
    }
    if (values.empty()) missing(key, hint);
    JsonNode items = JsonNode::array();
    for (const int value : values) items.push(value);
    write(key, items);
  }
  template <class Fn>
  void object(std::string_view key, Fn fn) {
    object(key, "an object; see those of configs/clusters/", fn);
  }
  template <class Fn>
  void object(std::string_view key, std::string_view hint, Fn fn) {
    const JsonNode* const given = take(key);
    if (!has(key, true)) return missing(key, hint);
    write(key, written_part(given, path_of(key), hint, fn));
  }
  // `hint`: of a list that must be there and have items; "" for others.
  template <class T>
  void list(std::string_view key, std::vector<T>& values, std::string_view hint) {
    const JsonNode* n = take(key);
    const bool is_list = n && n->is_array();
    if (!hint.empty() && (is_list ? n->items.empty() : values.empty())) return missing(key, hint);
    if (n && !is_list) problems().add(*n, path_of(key), "must be a list", "leave it out for none");
    if (is_list) values.resize(n->items.size());
    JsonNode items = JsonNode::array();
    for (size_t i = 0; i < values.size(); ++i)
      items.push(written_part(is_list ? &n->items[i] : nullptr, concat(path_of(key), "[", i, "]"),
                              hint, [&](FileObject& item) { fields(item, values[i]); }));
    if (!values.empty()) write(key, items);
  }

 private:
  // Reads an object by `fn`, and returns it as it is written. Anything else is one problem.
  template <class Fn>
  JsonNode written_part(const JsonNode* given, const std::string& path, std::string_view hint,
                        Fn fn) {
    if (given && !given->is_object()) {
      problems().add(*given, path, concat("must be an object, is ", given->kind_name()), hint);
      return {};
    }
    FileObject part(given, path, problems(), writing_);
    fn(part);
    part.unknown_keys();
    return part.written;
  }
  void write(std::string_view key, const JsonNode& value) { written.set(std::string(key), value); }
  bool writing_;
};

void quantity(FileObject& f, std::string_view key, Quantity& q, const Kind& kind) {
  if (!kind.required && !f.has(key, !q.source.empty())) return;
  f.object(key, "write { \"value\": 1, \"source\": \"...\" }", [&](FileObject& inner) {
    inner.field("value", q.value, kind.limits);
    inner.require({"value"}, "a number");
    if (kind.whole && q.value != std::floor(q.value))
      inner.problems().add(inner.node(), inner.path_of("value"),
                           concat("must be whole, is ", q.value), "count them");
    inner.source(q.source);
  });
}

void alpha(FileObject& f, AlphaBand& a) {
  f.object("alpha_s", "write { \"value\": 1e-6, \"source\": \"...\" }", [&](FileObject& inner) {
    if (inner.has("value", !a.is_band())) {
      inner.field("value", a.seconds[0], kSeconds);
      a.seconds[1] = a.seconds[2] = a.seconds[0];
    } else {
      for (const AlphaSet set : kAlphaSets) {
        inner.field(to_string(set), a.seconds[size_t(set)], kSeconds);
        inner.require({to_string(set)}, "give all three, or one \"value\"");
      }
    }
    inner.source(a.source);
  });
}

void fields(FileObject& f, LinkSpec& link) {
  alpha(f, link.alpha_s);
  quantity(f, "bandwidth_bytes_per_s", link.bandwidth_bytes_per_s, {});
  quantity(f, "ports_per_node", link.ports_per_node,
           {.limits = {.min = 1, .max = kMostPorts}, .whole = true});
  quantity(f, "overhead_s", link.overhead_s, kOptionalSeconds);
  quantity(f, "call_s", link.call_s, kOptionalSeconds);
  quantity(f, "channel_bytes_per_s", link.channel_bytes_per_s, kOptional);
  quantity(f, "channels", link.channels,
           {.limits = {.min = 1, .max = 64}, .required = false, .whole = true});
  quantity(f, "shared_bytes_per_s", link.shared_bytes_per_s, kOptional);
  quantity(f, "ll_bytes_per_s", link.ll_bytes_per_s, kOptional);
  quantity(f, "ll128_bytes_per_s", link.ll128_bytes_per_s, kOptional);
  quantity(f, "device_share", link.device_share, kOptionalShare);
}

void fields(FileObject& f, KernelRow& row) {
  f.require({"rows", "head_dim", "dtype", "causal", "flops_per_s"},
            "every row of the table has it");
  if (f.has("kernel", !row.kernel.empty())) f.field("kernel", row.kernel);
  f.field("rows", row.rows, kAmount);
  f.field("head_dim", row.head_dim, kAmount);
  f.field("dtype", row.dtype);
  f.field("causal", row.causal);
  if (f.has("backward", row.backward)) f.field("backward", row.backward);
  f.field("flops_per_s", row.flops_per_s, kMillions);
  if (f.has("all_rows", row.all_rows > 0)) f.field("all_rows", row.all_rows, kAmount);
  if (f.has("estimate", row.estimate)) f.field("estimate", row.estimate);
  f.source(row.source);
}

void fields(FileObject& f, AttendModel& m) {
  f.require({"head_dim", "dtype", "causal", "block_rows", "block_s", "query_s", "key_s", "pair_s"},
            "every model has it; lnbench calibrate writes them");
  f.field("head_dim", m.head_dim, kAmount);
  f.field("dtype", m.dtype);
  f.field("causal", m.causal);
  if (f.has("backward", m.backward)) f.field("backward", m.backward);
  f.field("block_rows", m.block_rows, kCount.limits);
  f.field("block_s", m.block_s, kSeconds);
  f.field("query_s", m.query_s, kSeconds);
  f.field("key_s", m.key_s, kSeconds);
  f.field("pair_s", m.pair_s, Limits{.min = 0, .max = kSeconds.max, .min_excluded = true});
  f.source(m.source);
}

void fields(FileObject& f, DeviceSpec& d) {
  f.field("name", d.name);
  const auto by_name = [](FileObject& speeds, auto& out) {
    using Name = std::remove_cvref_t<decltype(out)>::key_type;
    for (const Name name : enum_values<Name>())
      if (speeds.has(to_string(name), out.contains(name)))
        quantity(speeds, to_string(name), out[name], {});
  };
  if (f.has("gemm_flops", !d.gemm_flops.empty()))
    f.object("gemm_flops", [&](FileObject& speeds) { by_name(speeds, d.gemm_flops); });
  quantity(f, "gemm_bytes_per_s", d.gemm_bytes_per_s, kOptional);
  if (f.has("row_wise_bytes_per_s", !d.row_wise_bytes_per_s.empty()))
    f.object("row_wise_bytes_per_s",
             [&](FileObject& speeds) { by_name(speeds, d.row_wise_bytes_per_s); });
  quantity(f, "cross_entropy_bytes_per_s", d.cross_entropy_bytes_per_s, kOptional);
  quantity(f, "update_bytes_per_s", d.update_bytes_per_s, kOptional);
  f.object("peak_flops", [&](FileObject& peaks) {
    by_name(peaks, d.peak_flops);
    if (d.peak_flops.empty()) f.missing("peak_flops", "{ \"bf16\": { \"value\": ... } }");
  });
  quantity(f, "memory_bytes", d.memory_bytes, {});
  quantity(f, "memory_bandwidth_bytes_per_s", d.memory_bandwidth_bytes_per_s, {});
  quantity(f, "launch_s", d.launch_s, {.limits = kSeconds});
  quantity(f, "fill_rows", d.fill_rows, {.limits = {.min = 0, .max = 1e9}, .required = false});
  quantity(f, "pack_bytes_per_s", d.pack_bytes_per_s, kOptional);
  quantity(f, "merge_bytes_per_s", d.merge_bytes_per_s, kOptional);
  quantity(f, "sum_bytes_per_s", d.sum_bytes_per_s, kOptional);
  quantity(f, "delta_bytes_per_s", d.delta_bytes_per_s, kOptional);
  quantity(f, "alone_speed", d.alone_speed, kOptionalRatio);
  f.list("attend", d.attend, "a list of { rows, head_dim, dtype, causal, flops_per_s, source }");
  f.list("attend_model", d.attend_model, "");
  if (f.has("kernel", !d.kernel.empty())) f.field("kernel", d.kernel);
  const auto by_kernel = [&](std::string_view key, auto& out, auto&& read) {
    if (!f.has(key, !out.empty())) return;
    f.object(key, [&](FileObject& inner) {
      std::set<std::string> kernels;
      for (const KernelRow& row : d.attend)
        if (inner.has(row.kernel, out.contains(row.kernel))) kernels.insert(row.kernel);
      for (const std::string& kernel : kernels) read(inner, kernel, out[kernel]);
    });
  };
  by_kernel("backward_splits", d.backward_splits, [](FileObject& inner, auto& kernel, auto& split) {
    inner.sourced(kernel, split.value, split.source);
  });
  by_kernel("blocks_at_once", d.blocks_at_once, [](FileObject& inner, auto& kernel, auto& blocks) {
    inner.object(kernel, [&](FileObject& one) {
      one.field("value", blocks.value, kCount.limits);
      one.field("max_head_dim", blocks.max_head_dim, kCount.limits);
      one.require({"value", "max_head_dim"}, "a number");
      one.source(blocks.source);
    });
  });
}

void fields(FileObject& f, TopologySpec& t) {
  f.field("kind", t.kind);
  if (t.kind == TopologyKind::kFatTree || t.kind == TopologyKind::kRailOptimised) {
    quantity(f, "nodes_per_leaf", t.nodes_per_leaf, kCount);
    quantity(f, "taper", t.taper, {.limits = kRatio});
  } else if (t.kind == TopologyKind::kTorus) {
    const std::string_view form = "write { \"value\": [4, 4, 4], \"source\": \"...\" }";
    f.object("dimensions", form, [&](FileObject& dimensions) {
      dimensions.integers("value", t.dimensions, "a list of nodes along each dimension");
      dimensions.source(t.dimensions_source);
    });
    quantity(f, "link_bytes_per_s", t.link_bytes_per_s, {});
  } else if (t.kind == TopologyKind::kDragonfly) {
    quantity(f, "nodes_per_group", t.nodes_per_group, kCount);
    quantity(f, "global_bytes_per_s", t.global_bytes_per_s, {});
  }
  quantity(f, "hop_s", t.hop_s, kOptionalSeconds);
}

void fields(FileObject& f, CollectiveNames& c) {
  using enum AllGatherAlgorithm;
  const Names formulas = formula_names();
  Names gathers = lowerings_of(CollectiveUse::kAllGather);
  gathers.insert(gathers.end(), formulas.begin(), formulas.end());
  // Lowerings that parse_collective tells apart.
  Names reductions{std::string(to_string(kRing)), std::string(to_string(kRecursiveDoubling))};
  reductions.insert(reductions.end(), formulas.begin(), formulas.end());
  f.field("all_gather", c.all_gather, gathers);
  f.field("all_to_all", c.all_to_all, lowerings_of(CollectiveUse::kAllToAll));
  f.field("reduce_scatter", c.reduce_scatter, reductions);
  f.source(c.source);
}

void fields(FileObject& f, ClusterSpec& c) {
  const auto part = [&](FileObject& file, const char* key, auto& spec) {
    file.object(key, [&](FileObject& inner) { fields(inner, spec); });
  };
  f.field("description", c.description);
  quantity(f, "nodes", c.nodes, kCount);
  quantity(f, "gpus_per_node", c.gpus_per_node, kCount);
  part(f, "device", c.device);
  f.object("links", [&](FileObject& links) {
    part(links, "intra", c.intra);
    part(links, "inter", c.inter);
  });
  part(f, "topology", c.topology);
  part(f, "collectives", c.collectives);
  f.sourced("execution", c.execution, c.execution_source);
  if (f.has("merge", !c.merge_source.empty())) f.sourced("merge", c.merge, c.merge_source);
  f.sourced("async_progress", c.async_progress, c.async_progress_source);
  quantity(f, "async_bytes_per_s", c.async_bytes_per_s, kOptionalOrZero);
  quantity(f, "overlap_efficiency", c.overlap_efficiency, kOptionalShare);
  quantity(f, "host_s", c.host_s, kOptionalSeconds);
  quantity(f, "error", c.error, kOptionalShare);
}

void check_sizes(FileObject& f, const ClusterSpec& c) {
  const auto add = [&](std::string_view path, std::string_view what, std::string_view hint) {
    f.problems().add(*f.node().find(path.substr(0, path.find('.'))), path, what, hint);
  };
  if (c.nodes.value * c.gpus_per_node.value > kMostGpus)
    add("nodes", concat("of ", c.gpus_per_node.value, " GPUs are more than ", int(kMostGpus)),
        "larger clusters cannot be simulated");
  if (!c.async_progress && c.execution == ExecutionKind::kStreams)
    add("async_progress", "false needs \"execution\": in_order",
        "queues of a device progress by themselves; a thread that computes does not");
  if (c.async_progress && c.async_bytes_per_s.value > 0)
    add("async_bytes_per_s", "has no meaning with async_progress",
        "leave it out, or set async_progress false");
  const double channels = c.intra.channels.value, share = channels * c.intra.device_share.value;
  if (!c.intra.device_share.source.empty() && (share == 0 || share >= 1))
    add("links.intra.device_share", concat("of ", channels, " channels is ", share, " of a device"),
        "give links.intra.channels, and the share of one of them: 1 over the multiprocessors");
  if (std::ranges::count(c.device.attend, c.device.kernel, &KernelRow::kernel) == 0)
    add("device.kernel", concat("no row of device.attend is of '", c.device.kernel, "'"),
        "name the kernel of some rows, or leave it out of all");
  for (const auto& [key, name] : {std::pair{"collectives.all_gather", &c.collectives.all_gather},
                                  {"collectives.reduce_scatter", &c.collectives.reduce_scatter}})
    if (const std::string why = why_not_formula(c, *name); !why.empty())
      add(key, why, "use nccl_ring, or ask for it with sweep.collective");
  if (c.topology.kind != TopologyKind::kTorus || c.topology.dimensions.empty()) return;
  double nodes = 1;
  int farthest = 0;
  for (const int d : c.topology.dimensions) nodes *= d, farthest += d / 2;
  if (nodes != c.nodes.value)
    add("topology.dimensions", concat("hold ", nodes, " nodes, the cluster has ", c.nodes.value),
        "their product is the number of nodes");
  if (farthest > Route::kMaxLinks - 2)
    add("topology.dimensions",
        concat("two nodes are ", farthest, " hops apart, at most ", Route::kMaxLinks - 2,
               " are modelled"),
        "more dimensions make it shorter: [8, 8, 8, 8] instead of [64, 64]");
}

}  // namespace

ClusterSpec parse_cluster(std::string_view text, const std::string& path) {
  const JsonNode root = parse_json(text, path);
  Problems problems;
  ClusterSpec c;
  FileObject f(&root, "", problems, /*writing=*/false);
  problems.throw_if_any();  // the root is no object
  double version = 0;
  f.take("$schema");  // for editors
  f.field("schema_version", version, {.min = 1, .max = 1});
  f.require({"schema_version"}, "add \"schema_version\": 1");
  f.field("name", c.name);
  if (c.name.empty()) f.missing("name", "results and plots show it");
  fields(f, c);
  f.unknown_keys();
  if (problems.empty()) check_sizes(f, c);
  problems.throw_if_any();
  return c;
}

std::string cluster_to_json(const ClusterSpec& cluster) {
  ClusterSpec c = cluster;
  Problems none;
  FileObject f(nullptr, "", none, /*writing=*/true);
  f.written.set("schema_version", 1).set("name", c.name);
  fields(f, c);
  return dump_json(f.written, 2) + "\n";
}

ClusterSpec load_cluster(const std::string& path) {
  return parse_cluster(read_file_text(path,
                                      "configs/clusters/ holds the suite's own, e.g. "
                                      "configs/clusters/h100-ndr400.json"),
                       path);
}

}  // namespace longnet
