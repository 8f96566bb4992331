// The units of a walk over virtual ranks, and the cost of each.
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

// Describes a walk as text: only a walk with the same text resumes a journal.
std::string text_of(const UnitPlan& units, const PointPlan& plan, int walks, int64_t queries);

// "0,17,4095" as ranks in ascending order; throws UsageError.
std::vector<Rank> parse_ranks(const std::string& text);

}  // namespace longnet
