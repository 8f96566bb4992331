// The cluster on which a config's points are simulated, its what-ifs, and the cost of measuring
// them there. The points themselves: simulate_point.h.
//
//   read_cluster({.cluster = "h100"}, config)           configs/clusters/h100-ndr400.json
//   read_variants({.what_if = {"", "bandwidth=0.5"}}, config, cluster)   as it is; half as fast
#pragma once
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "run/simulate_point.h"

namespace longnet {

// Choices of a command. Empty: as the config says.
struct ClusterRequest {
  std::string cluster{};               // a path, or the name of a shipped file
  std::vector<std::string> what_if{};  // one variant each
  std::string alpha = "band";          // or ideal, nccl_ll, nccl_simple
  bool no_collapse = false;
};

// The config's file is a path from here or from the config's folder, or a shipped name. Throws
// UsageError where neither names a cluster.
ClusterSpec read_cluster(const ClusterRequest& request, const Config& config);
// Returns at least one, the unchanged cluster first. Throws UsageError for a what-if that stands
// there twice.
std::vector<SimulatePoint> read_variants(const ClusterRequest& request, const Config& config,
                                         const ClusterSpec& cluster);

// Times of points with a what-if over those of the same points on the unchanged cluster.
class UnchangedTimes {
 public:
  // The metric of the record; nothing of points of the unchanged cluster, and where its own did not
  // come before.
  void compare(PointRecord& record, const WhatIf& what_if);

 private:
  std::map<std::string, double> seconds_;  // by the id of the point on no cluster
};

// The cost of measuring a simulated point for real.
PointCost cost_on_cluster(const PointRecord& simulated, const MeasureConfig& measure);
// The same of several points, one after the other.
struct ClusterCost {
  double seconds = 0, gpu_hours = 0;
  int ranks = 0;  // the largest point's
  double gpu_hours_of_one_job() const { return seconds * ranks / 3600; }
  // Returns the point's GPU-hours.
  double add(const PointCost& point, int point_ranks) {
    const double hours = point.seconds() * point_ranks / 3600;
    seconds += point.seconds(), gpu_hours += hours, ranks = std::max(ranks, point_ranks);
    return hours;
  }
};

}  // namespace longnet
