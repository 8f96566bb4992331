// Measures this machine as a cluster: kernels, memory, links, and the progress of messages while
// ranks compute.
//
// All ranks work at once, as they do in runs; a second pass times one rank alone. Ranks of one host
// (and one network namespace) make a node; links inside and between nodes are measured apart.
#pragma once
#include <functional>
#include <string>

#include "io/environment.h"
#include "run/calibrate_kernel.h"
#include "run/calibrate_links.h"
#include "run/world.h"
#include "simulate/cluster.h"

namespace longnet {

struct CalibrationNodes {
  int count = 1, size = 1;
};

struct Calibration {
  CalibrationNodes nodes{};
  int threads = 1;
  double peak = 0, bandwidth = 0, alone_speed = 1;
  KernelMeasurement kernel{};
  LinkMeasurement intra{}, inter{};
  OverlapMeasurement overlap{};
  bool has_intra() const { return nodes.size > 1; }
  bool has_inter() const { return nodes.count > 1; }
};

struct CalibrationBudget {
  KernelBudget kernel{};
  LinkBudget link{};
  int64_t bandwidth_array = int64_t{128} << 20, overlap_rows = 2048;
  int alone_rounds = 9;
  Effort overlap{.seconds = 0.5, .min_runs = 9};
};

// `quick`: seconds instead of two minutes.
CalibrationBudget calibration_budget(bool quick);

// Collective over the processes of `world`; on rank 0 the result, on the others something
// incomplete. `say`: hears of each step.
Calibration calibrate(World& world, const CalibrationBudget& budget,
                      const std::function<void(const std::string&)>& say);
// Returns the measurements as a cluster.
ClusterSpec to_cluster(const Calibration& calibration, const World& world, const Environment& env,
                       const std::string& name);

}  // namespace longnet
