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
//   reduce_scatter  ring                 P - 1 steps; merges partials by LSE, so that it is always
//                                        lowered
//                   recursive_halving    log2 P exchanges; P a power of two
//
// A gather whose group does not suit the algorithm (its size is no power of two, or it is not made
// of whole nodes) takes another, as libraries do: recursive doubling falls back to bruck,
// hierarchical and halving to ring. collectives_used (collective_choice.h) names what really runs.
#pragma once
#include "schedule/collective_choice.h"
#include "schedule/program.h"

namespace longnet {

// The same schedule without reduce_scatters, and without the collectives whose algorithm is not
// native.
Schedule lower_collectives(Schedule schedule, const CollectiveChoice& choice);
RankProgram lower_collectives(const ShardedProblem& sharded, RankProgram program, Rank rank,
                              const CollectiveChoice& choice);

}  // namespace longnet
