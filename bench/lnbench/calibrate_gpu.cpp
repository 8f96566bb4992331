#include "lnbench/calibrate_gpu.h"

#include <algorithm>
#include <set>

#include "core/check.h"
#include "io/result_json.h"
#include "json/json_tree.h"

namespace longnet {
namespace {

struct Measured {
  std::vector<KernelRow> rows;
  std::set<std::string> kernels;  // that the file has figures of
};

Measured read_rows(const JsonNode& root, const std::string& kernel, const std::string& device) {
  Measured out;
  const JsonNode* points = root.find("points");
  if (!points) return out;
  for (const JsonNode& p : points->items) {
    const double rate = p.real("flops_per_s");
    if (p.text("section") != "sweep" || !(rate > 0)) continue;
    const JsonNode* standard = p.find("default");
    if (standard && !standard->boolean) continue;  // a tile shape that no run would take
    out.kernels.insert(p.text("kernel"));
    if (p.text("kernel") != kernel) continue;
    const JsonNode* causal = p.find("causal");
    out.rows.push_back(
        {.rows = double(p.whole("rows")),
         .head_dim = double(p.whole("head_dim")),
         .dtype = DType::kBFloat16,
         .causal = causal && causal->boolean,
         .flops_per_s = rate,
         .source = concat("measured on ", device, " by gpu_kernels_benchmark, kernel ", kernel)});
  }
  return out;
}

}  // namespace

ClusterSpec with_measured_attention(ClusterSpec base, const std::string& file,
                                    const std::string& kernel) {
  const JsonNode root = parse_json(read_text_file(file), file);
  if (!root.is_object() || root.text("program") != "gpu_kernels_benchmark")
    throw UsageError(concat(file, ": these are no figures of kernels\n",
                            "  hint: gpu_kernels_benchmark --json FILE writes them"));
  const JsonNode* described = root.find("device");
  const std::string device = described ? described->text("name") : "a GPU without a name";
  const Measured measured = read_rows(root, kernel, device);
  if (measured.rows.empty()) {
    std::string known;
    for (const std::string& name : measured.kernels) known += (known.empty() ? "" : ", ") + name;
    throw UsageError(concat(
        file, ": no measured speed of kernel '", kernel,
        "'\n  hint: ", known.empty() ? "its sweep holds no figure at all" : "it has " + known));
  }
  std::erase_if(base.device.attend, [&](const KernelRow& old) {
    return std::any_of(measured.rows.begin(), measured.rows.end(), [&](const KernelRow& now) {
      return old.dtype == now.dtype && old.head_dim == now.head_dim && old.causal == now.causal;
    });
  });
  base.device.attend.insert(base.device.attend.end(), measured.rows.begin(), measured.rows.end());
  base.description += concat("; speed of attention measured on ", device, " with kernel ", kernel);
  return base;
}

}  // namespace longnet
