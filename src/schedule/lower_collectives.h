// Collectives as sends and receives, by a named algorithm: the same programs for real runs and for
// models of them.
//
//   all_gather      ring                 P - 1 steps to the neighbour
//                   recursive_doubling   log2 P exchanges; P a power of two
//                   bruck                ceil(log2 P) steps, any P
//                   hierarchical         Bruck among the ranks of equal place on each node, then a
//                                        ring inside the node: ceil(log2 nodes) + node size - 1
//   all_to_all      pairwise             P - 1 steps, one partner at a time
//                   linear               all at once
//   reduce_scatter  ring                 P - 1 steps
//                   recursive_halving    log2 P exchanges; P a power of two
//                   linear               all at once, added at the end by one op, in rank order
//
// Rows of a branch are few. Their reduce_scatter is linear, at the price of P - 1 pieces of memory:
// no message waits for a merge, and the merge comes where the program needs the sum, so that the
// ops between hide all messages.
//
// No program that runs has a native reduce_scatter. That of a simulated library sums whole shards
// in one call; partials, which are merged by LSE, and rows of a branch are lowered there too.
//
// A gather whose group does not suit the algorithm (its size is no power of two, or it is not made
// of whole nodes) takes another, as libraries do: recursive doubling falls back to bruck,
// hierarchical and halving to ring (or linear). collectives_used names what really runs.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "schedule/program.h"

namespace longnet {

// The only list of their names.
enum class AllGatherAlgorithm { kNative, kRing, kRecursiveDoubling, kBruck, kHierarchical };
constexpr auto texts_of(AllGatherAlgorithm) {
  return texts("native", "ring", "recursive_doubling", "bruck", "hierarchical");
}
enum class AllToAllAlgorithm { kNative, kPairwise, kLinear };
constexpr auto texts_of(AllToAllAlgorithm) { return texts("native", "pairwise", "linear"); }
enum class ReduceScatterAlgorithm { kNative, kRing, kRecursiveHalving, kLinear };
constexpr auto texts_of(ReduceScatterAlgorithm) {
  return texts("native", "ring", "recursive_halving", "linear");
}

struct CollectiveChoice {
  AllGatherAlgorithm all_gather = AllGatherAlgorithm::kNative;
  AllToAllAlgorithm all_to_all = AllToAllAlgorithm::kNative;
  ReduceScatterAlgorithm reduce_scatter = ReduceScatterAlgorithm::kRing;
  // Ranks of a node, for hierarchical; 0: the divisor of the group size nearest to its root.
  int node_size = 0;
};

// The lowerings that change an algorithm's programs: of all-gathers, of all-to-alls, or none.
enum class CollectiveUse { kNone, kAllGather, kAllToAll };
std::vector<std::string> lowerings_of(CollectiveUse use);  // their names

// One name for a run's choice: native, or a lowering. A name that belongs to another collective
// leaves the others native (reduce_scatter: recursive_doubling means halving).
CollectiveChoice parse_collective(std::string_view name);  // throws UsageError
std::vector<std::string> collective_names();

// The algorithms of a schedule's collectives (not lowered yet) under this choice: "all_gather:
// bruck", "reduce_scatter: ring", ..., each once, sorted. Groups of one rank have none. Looks at
// all ranks up to 16, else at 16 spread over the world.
std::vector<std::string> collectives_used(const Schedule& schedule, const CollectiveChoice& choice);
// Empty when some collective of the schedule runs by the algorithm called `name` (or it is native);
// else the reason.
std::string why_not_collective(const Schedule& schedule, std::string_view name,
                               const CollectiveChoice& choice);

// Replaces the collectives whose algorithm is not native by sends, receives and local ops.
Schedule lower_collectives(Schedule schedule, const CollectiveChoice& choice);
RankProgram lower_collectives(const ShardedProblem& sharded, RankProgram program, Rank rank,
                              const CollectiveChoice& choice);

}  // namespace longnet
