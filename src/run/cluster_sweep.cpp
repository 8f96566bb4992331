#include "run/cluster_sweep.h"

#include <filesystem>

#include "core/check.h"
#include "io/record_table.h"
#include "kernels/cuda/device_kernel.h"
#include "run/shipped.h"

namespace longnet {

ClusterSpec read_cluster(const ClusterRequest& request, const Config& config) {
  namespace fs = std::filesystem;
  if (!request.cluster.empty()) return load_cluster(find_shipped("clusters", request.cluster));
  const std::string& file = config.cluster.file;
  if (file.empty())
    throw UsageError(
        "no cluster to simulate\n  hint: --cluster h100-ndr400 (`lnbench list clusters` has all), "
        "or \"cluster\": {\"file\": ...} in ",
        config.path);
  const fs::path beside = fs::path(config.path).parent_path() / file;
  if (!fs::exists(file) && fs::exists(beside)) return load_cluster(beside.string());
  return load_cluster(find_shipped("clusters", file));
}

std::vector<SimulatePoint> read_variants(const ClusterRequest& request, const Config& config,
                                         const ClusterSpec& cluster) {
  std::vector<std::string> questions =
      request.what_if.empty() ? config.cluster.what_if : request.what_if;
  if (questions.empty()) questions.push_back("");
  std::vector<SimulatePoint> variants;
  for (const std::string& text : questions) {
    const WhatIf what_if = parse_what_if(text);
    for (const SimulatePoint& earlier : variants)
      if (earlier.what_if.text() == what_if.text())
        throw UsageError("--what-if '", text, "' is there twice\n  hint: leave one out");
    SimulatePoint& how = variants.emplace_back(SimulatePoint{
        .cluster = apply(cluster, what_if),
        .what_if = what_if,
        .memory_fraction = config.memory.limit_fraction,
        .collapse = !request.no_collapse,
    });
    if (request.alpha != "band") how.alpha = parse_enum<AlphaSet>(request.alpha);
  }
  std::ranges::stable_partition(variants, &WhatIf::is_plain, &SimulatePoint::what_if);
  return variants;
}

void UnchangedTimes::compare(PointRecord& record, const WhatIf& what_if) {
  if (record.status != PointStatus::kOk) return;
  PointParams params = record.params;
  params.cluster.clear();
  const std::string id = point_id(params);
  const double seconds = record.timing.median_s;
  if (what_if.is_plain())
    seconds_[id] = seconds;
  else if (const auto unchanged = seconds_.find(id); unchanged != seconds_.end())
    record.metrics[kRatioToUnchanged] = seconds / unchanged->second;
}

PointCost cost_on_cluster(const PointRecord& simulated, const MeasureConfig& measure) {
  PointPlan plan{.point = {simulated.id, simulated.params, simulated.status, simulated.reason},
                 .estimated_s = simulated.timing.median_s};
  plan.point.params.kernel = device_kernels().front().name;  // costs are those of any GPU
  plan.point.params.mode = Mode::kReal;
  return point_cost(plan, measure);
}

}  // namespace longnet
