// Takes measured rows of a GPU's kernels, and times of messages between GPUs, from result files
// into a cluster (calibrate.h). Needs no GPU.
#include <algorithm>
#include <set>

#include "core/check.h"
#include "core/transports.h"
#include "io/units.h"
#include "json/json_reader.h"
#include "json/text.h"
#include "run/calibrate.h"
#include "simulate/calibration.h"

namespace longnet {
namespace {

struct Measured {
  std::vector<KernelRow> rows;
  std::set<std::string> kernels;  // that the file has figures of
};

Measured read_rows(const JsonNode& root, const std::string& kernel, const std::string& device) {
  Measured out;
  for (const JsonNode& p : root.list("points")) {
    const double rate = p.real("flops_per_s");
    const bool backward = p.text("section") == "backward";
    if (!(backward || p.text("section") == "sweep") || !(rate > 0)) continue;
    if (p.whole("dilation_rate", 1) != 1) continue;
    const JsonNode* standard = p.find("default");
    if (standard && !standard->boolean) continue;  // a tile shape that no run would take
    out.kernels.insert(p.text("kernel"));
    if (p.text("kernel") != kernel) continue;
    out.rows.push_back(
        {.kernel = kernel,
         .rows = double(p.whole("rows")),
         .head_dim = double(p.whole("head_dim")),
         .dtype = DType::kBFloat16,
         .causal = p.flag("causal"),
         .backward = backward,
         .flops_per_s = rate,
         .source = concat("measured on ", device, " by gpu_kernels_benchmark, kernel ", kernel)});
  }
  return out;
}

// Describes the suite's own kernels where they differ from published ones: they merge partials, and
// their backward pass makes one pass over blocks of queries and one over blocks of keys.
void take_own_kernel(ClusterSpec& c, const std::string& kernel,
                     const std::vector<KernelRow>& measured) {
  c.merge = MergeKind::kFused;
  c.merge_source = concat("kernel ", kernel, " folds partials in (DeviceKernel::merges)");
  if (std::ranges::any_of(measured, &KernelRow::backward))
    c.device.backward_splits[kernel] = {
        KernelSplit::kBoth, "this suite: src/kernels/cuda/backward_plan.h, query_tiles, key_tiles"};
}

// Speeds of a model's products, row-wise functions, loss and update, all rows of each together.
// Products in bf16 are those of section model where it was measured, which round their weights as a
// step does, else those of section gemm. Returns whether the file has any.
bool take_model(DeviceSpec& d, const JsonNode& root, const std::string& device) {
  std::map<DType, Moved> products;
  std::map<std::string, Moved> ops;
  const auto add = [](Moved& to, double more, double rate) {
    if (more > 0 && rate > 0) to.amount += more, to.seconds += more / rate;
  };
  for (const JsonNode& p : root.list("points")) {
    const double flops_per_s = p.real("flops_per_s");
    if (p.text("section") == "gemm" && flops_per_s > 0)
      add(products[parse_enum<DType>(p.text("dtype"))],
          2.0 * p.real("m") * p.real("n") * p.real("k"), flops_per_s);
    if (p.text("section") != "model") continue;
    add(ops[p.text("op")], p.real("bytes"), p.real("bytes_per_s"));
    add(ops[p.text("op")], p.real("flops"), flops_per_s);
  }
  bool any = false;
  const auto take = [&](const Moved& moved, std::string_view section, Quantity& into) {
    if (moved.seconds == 0) return;
    any = true;
    into = {moved.per_s(),
            concat("measured on ", device, " by gpu_kernels_benchmark, section ", section)};
  };
  for (const auto& [dtype, moved] : products)
    if (moved.seconds > 0) take(moved, "gemm, cuBLASLt", d.gemm_flops[dtype]);
  if (ops["gemm"].seconds > 0) take(ops["gemm"], "model, cuBLASLt", d.gemm_flops[DType::kBFloat16]);
  for (const RowFunction function : enum_values<RowFunction>())
    if (const Moved& moved = ops[std::string(to_string(function))]; moved.seconds > 0)
      take(moved, "model", d.row_wise_bytes_per_s[function]);
  take(ops["cross_entropy"], "model", d.cross_entropy_bytes_per_s);
  take(ops["update"], "model", d.update_bytes_per_s);
  return any;
}

}  // namespace

ClusterSpec with_measured_kernels(ClusterSpec base, const std::string& file,
                                  const std::string& kernel) {
  const JsonNode root = parse_json(read_file_text(file, "is it a folder of results?"), file);
  if (!root.is_object() || root.text("program") != "gpu_kernels_benchmark")
    throw UsageError(file, ": these are no figures of kernels\n",
                     "  hint: gpu_kernels_benchmark --json FILE writes them");
  const JsonNode* described = root.find("device");
  const std::string device = described ? described->text("name") : "a GPU without a name";
  const Measured measured = read_rows(root, kernel, device);
  const bool of_model = take_model(base.device, root, device);
  if (measured.rows.empty() && of_model && measured.kernels.empty()) {
    base.description += concat("; speed of models' ops measured on ", device);
    return base;
  }
  if (measured.rows.empty()) {
    const std::string known = join(measured.kernels, ", ");
    throw UsageError(file, ": no measured speed of kernel '", kernel, "'\n  hint: ",
                     known.empty() ? "its sweep holds no figure at all" : "it has " + known);
  }
  std::erase_if(base.device.attend, [&](const KernelRow& old) {
    return std::any_of(measured.rows.begin(), measured.rows.end(), [&](const KernelRow& now) {
      return old.kernel == kernel && old.dtype == now.dtype && old.head_dim == now.head_dim &&
             old.causal == now.causal && old.backward == now.backward;
    });
  });
  base.device.attend.insert(base.device.attend.end(), measured.rows.begin(), measured.rows.end());
  if (kernel.starts_with("cuda")) take_own_kernel(base, kernel, measured.rows);
  base.device.kernel = kernel;
  base.description += concat("; speed of attention measured on ", device, " with kernel ", kernel);
  return base;
}

ClusterSpec with_measured_link(ClusterSpec base, const std::string& file) {
  const JsonNode root = parse_json(read_file_text(file, "is it a folder of results?"), file);
  const std::string_view hint = "\n  hint: lnbench comm --transport gpu --json FILE writes them";
  if (!root.is_object() || root.text("program") != "lnbench comm" ||
      std::ranges::count(device_transport_names(), root.text("transport")) == 0)
    throw UsageError(file, ": these are no times of messages between GPUs", hint);
  const auto places = root.list("places");
  std::vector<MessageTime> times;
  for (const JsonNode& row : root.list("rows"))
    if (row.text("operation") == "exchange" && row.whole("bytes") > 0 && row.real("median_s") > 0)
      times.push_back({double(row.whole("bytes")), row.real("median_s")});
  if (places.size() < 2 || times.size() < 2)
    throw UsageError(file, ": fewer than two sizes of \"exchange\" were timed", hint);
  const JsonNode &first = places[0], &second = places[1];
  const bool inside = first.text("hostname") == second.text("hostname");
  if (inside && first.text("gpu") == second.text("gpu"))
    throw UsageError(file, ": ranks 0 and 1 shared a GPU: what was timed are copies inside it",
                     hint, " where there are two");
  LinkFit fit;
  try {
    fit = fit_link(times);
  } catch (const Error& e) {
    throw UsageError(file, ": no link has such times: ", e.what(), hint);
  }
  const std::string by = concat(
      "measured between ", first.text("device"), " and ", second.text("device"),
      inside ? " of one host" : " of two hosts", " by lnbench comm, ", root.text("transport"),
      ": fitted to messages of ", format_bytes(times.front().bytes), " to ",
      format_bytes(times.back().bytes), " in both directions at once; ", off_text(fit));
  LinkSpec& link = inside ? base.intra : base.inter;
  const bool nccl = root.text("transport").starts_with("nccl");
  // A call is part of the measured latency, and what gathers of NCCL cost besides.
  if (!nccl) link.call_s = {};
  if (link.call_s.value > fit.alpha_s) link.call_s = {fit.alpha_s, by};
  const double alpha = fit.alpha_s - link.call_s.value;
  link.alpha_s = {.seconds = {alpha, alpha, alpha}, .source = by};
  link.bandwidth_bytes_per_s = {fit.bytes_per_s, by};
  // The times have the channels of a pair between nodes; in one more ranks have fewer each.
  if (!nccl || !inside) link.channel_bytes_per_s = link.channels = link.device_share = {};
  base.description += concat("; links ", inside ? "inside" : "between", " nodes measured with ",
                             root.text("transport"));
  return base;
}

}  // namespace longnet
