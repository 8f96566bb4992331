// Measures and checks one point on virtual ranks: one device walks the programs of all of them.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/config.h"
#include "io/record.h"
#include "run/measure_point.h"
#include "run/plan_point.h"
#include "run/point_schedule.h"

namespace longnet {

struct WalkProgress {
  int64_t units_done = 0, units = 0;
  double share_done = 0;    // of the point's FLOPs, in (0, 1]
  double tokens_per_s = 0;  // of the units that this process ran
  double left_s = 0;
};

struct VirtualRun {
  std::string directory{};     // of the result, where the journal lies; "": none is kept
  std::vector<Rank> replay{};  // only these ranks; empty: all
  VirtualConfig config{};
  std::function<void(const WalkProgress&)> progress = {};
  std::function<bool()> stop = {};  // asked after each unit
};

// Nothing when it was stopped early: what is done lies in the journal, and the same call goes on.
// measure.warmup + measure.min_samples walks are made. A point is ok only when its sampled rows
// agree with the reference, no value of the output was left unwritten, and memory and received
// bytes are the predicted ones.
std::optional<PointRecord> walk_point(const PointPlan& plan, const RunnerOptions& options,
                                      const VirtualRun& run);

}  // namespace longnet
