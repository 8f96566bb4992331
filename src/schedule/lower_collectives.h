// Collectives as sends and receives, by a named algorithm: the same programs for real runs and for
// models of them.
//
//   all_gather:     ring (P - 1 steps to the neighbour), recursive_doubling (log2 P exchanges;
//                   powers of two), bruck (ceil(log2 P) steps, any P), hierarchical (first Bruck
//                   among the ranks of equal place on each node, then a ring inside the node:
//                   ceil(log2 nodes) + node size - 1 steps)
//   all_to_all:     pairwise (P - 1 steps, one partner at a time), linear (all at once)
//   reduce_scatter: ring, recursive_halving (powers of two); merges partials by LSE, so it is
//   always lowered
//
// A gather whose group does not suit the algorithm (its size is no power of two, or it is not made
// of whole nodes) takes another, as libraries do: recursive doubling falls back to bruck,
// hierarchical and halving to ring. collectives_used (collective_choice.h) tells what really runs.
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
