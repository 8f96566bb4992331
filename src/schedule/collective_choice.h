// Algorithms of the collectives: one name for a run's choice, the algorithm that it gives a group
// of ranks ("recursive_doubling" on 6 ranks is bruck), and the algorithms that a schedule uses.
// lower_collectives.h describes them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/rank_group.h"
#include "schedule/program.h"

namespace longnet {

enum class AllGatherAlgorithm { kNative, kRing, kRecursiveDoubling, kBruck, kHierarchical };
enum class AllToAllAlgorithm { kNative, kPairwise, kLinear };
enum class ReduceScatterAlgorithm { kRing, kRecursiveHalving };

struct CollectiveChoice {
  AllGatherAlgorithm all_gather = AllGatherAlgorithm::kNative;
  AllToAllAlgorithm all_to_all = AllToAllAlgorithm::kNative;
  ReduceScatterAlgorithm reduce_scatter = ReduceScatterAlgorithm::kRing;
  // Ranks of a node, for hierarchical; 0: the divisor of the group size nearest to its root.
  int node_size = 0;
};

// One name for a run's choice: native, ring, recursive_doubling, bruck, hierarchical, pairwise,
// linear. A name that belongs to another collective leaves the others native (reduce_scatter:
// recursive_doubling means halving).
CollectiveChoice parse_collective(std::string_view name);  // throws UsageError
const std::vector<std::string>& collective_names();

// The algorithms of a schedule's collectives (not lowered yet) under this choice: "all_gather:
// bruck", "reduce_scatter: ring", ..., each once, sorted. Groups of one rank have none. Looks at
// all ranks up to 16, else at 16 spread over the world.
std::vector<std::string> collectives_used(const Schedule& schedule, const CollectiveChoice& choice);
// Empty when some collective of the schedule runs by the algorithm called `name` (or it is native);
// else the reason.
std::string why_not_collective(const Schedule& schedule, std::string_view name,
                               const CollectiveChoice& choice);

// The algorithm of a group under a choice, which may suit it or not.
int node_size_in(const RankGroup& group, const CollectiveChoice& choice);  // 0: not of whole nodes
AllGatherAlgorithm gather_in(const RankGroup& group, const CollectiveChoice& choice);
ReduceScatterAlgorithm reduce_in(const RankGroup& group, const CollectiveChoice& choice);

}  // namespace longnet
