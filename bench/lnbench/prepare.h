// From a config to points that may run: what both `plan` and `run` need to know of each.
#pragma once
#include <string>
#include <vector>

#include "io/config.h"
#include "io/point.h"
#include "lnbench/options.h"
#include "schedule/accounting.h"
#include "schedule/program.h"

namespace longnet {

KnownNames known_names();
Config read_config(const Options& options);
ShardedProblem sharded_problem(const PointParams& params);
Schedule make_schedule(const PointParams& params);

// Prediction for one point, and whether it can run here.
struct PointPlan {
  Point point;                  // status and reason filled in
  WorldAccount account{};       // of points that can run
  int64_t workspace_bytes = 0;  // of the kernel, per rank
  int64_t memory_bytes() const { return account.max_memory_bytes + workspace_bytes; }  // per rank
  double estimated_s = 0;  // one forward, from the machine's peak
  std::string fits_if{};   // for skipped_memory: the cheapest change that makes it fit
};

// What the machine offers, as far as predictions need it.
struct MachineLimits {
  int64_t memory_bytes = 0;   // for one rank
  double flops_per_rank = 0;  // attainable by one rank
  double point_timeout_s = 0;
};
MachineLimits machine_limits(const Config& config, int ranks_here, double peak_flops_per_rank);

// Applies support, memory and time limits, in this order. threads: of each rank.
PointPlan plan_point(const Point& point, const MachineLimits& limits, int threads);

// Share of the FMA peak that a forward pass can be expected to reach; used for estimates only.
inline constexpr double kExpectedShareOfPeak = 0.7;

}  // namespace longnet
