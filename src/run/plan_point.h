// Prediction for one point, and whether it can run here.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/point.h"
#include "run/machine.h"
#include "schedule/accounting.h"
#include "schedule/program.h"

namespace longnet {

struct PointPlan {
  Point point;                                  // status and reason filled in
  WorldAccount account{};                       // of points that can run
  std::vector<std::string> collectives_used{};  // "all_gather: bruck"
  int64_t workspace_bytes = 0;                  // of the kernel, per rank
  int64_t device_limit_bytes = 0;               // that a rank on a GPU may take; 0: what there is
  int64_t memory_bytes() const { return account.max_memory_bytes + workspace_bytes; }  // per rank
  double estimated_s = 0;  // one forward, from the machine's peak
  // Virtual ranks: sequences of the batch that are walked together, and the share of the pairs that
  // is run (exact algorithms; below 1 the point is extrapolated).
  int64_t batches_at_once = 0;
  double share = 1;
  std::string fits_if{};  // for skipped_memory: the cheapest change that makes it fit
};

// Applies support, memory and time limits, in this order. `threads` of each rank; `ranks_here` is
// the most ranks that share this machine's memory.
PointPlan plan_point(const Point& point, const MachineLimits& limits, int threads, int ranks_here);

// Bytes of the largest rank's slots, from a few ranks alone: cheap at any P.
// `period`: of the schedule (AlgorithmInfo::period), where ranks that do the same need no second
// look; 0: not known.
int64_t predicted_slots(const Schedule& schedule, int period = 0);
// The cheapest change (halving or doubling one thing) that makes a point fit: "batch=2"; "" if
// none.
std::string cheapest_change(const PointParams& original,
                            const std::function<bool(const PointParams&)>& fits);

// Bytes of the slots by tag that a walk over `ranks` holds, `batches` sequences at a time.
std::map<std::string, int64_t> walk_memory_by_tag(const PointParams& params, int64_t batches,
                                                  const std::vector<Rank>& ranks);

// Seconds that a point takes to measure, by the estimate of its plan: its runs and ablations, filling
// the inputs, and the reference for the sampled queries, which regenerates every key that they see.
double point_cost(const PointPlan& plan, const MeasureConfig& measure);

}  // namespace longnet
