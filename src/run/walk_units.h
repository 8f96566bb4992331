// Which units a walk over virtual ranks makes, and what each costs.
#pragma once
#include <string>
#include <vector>

#include "execute/virtual_walk.h"
#include "run/plan_point.h"
#include "run/point_schedule.h"
#include "schedule/accounting.h"

namespace longnet {

inline constexpr int64_t kFewestSamples = 256;  // rows that a walk checks, whatever a config says

// In the order of the walk.
struct UnitPlan {
  std::vector<WalkUnit> units;
  std::vector<RankAccount> accounts;  // of each
  double flops = 0;                   // of these units
  double all_flops = 0;               // of the whole point
  double unit_share = 1;              // of each unit's pairs that is run
};

// All ranks, or those of `replay`, for each part of the batch; of a sampled point a few, spread
// evenly.
UnitPlan plan_units(const PointPlan& plan, const std::vector<Rank>& replay);

// What is walked when, so that a journal is only taken up by the same walk.
std::string text_of(const UnitPlan& units, const PointPlan& plan, int walks, int64_t queries);

// "0,17,4095" as ranks in ascending order; throws UsageError.
std::vector<Rank> parse_ranks(const std::string& text);

}  // namespace longnet
