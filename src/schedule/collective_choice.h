// Part of lower_collectives: the algorithm that runs in a group under a choice, and the order in
// which it leaves gathered pieces.
#pragma once
#include <bit>

#include "schedule/lower_collectives.h"

namespace longnet {

// Ranks of a node, where `g` is made of several whole ones; else 0.
inline int node_size_in(const RankGroup& g, const CollectiveChoice& choice) {
  int size = choice.node_size;
  if (size == 0)
    for (int d = 2; d * d <= g.count; ++d)
      if (g.count % d == 0) size = d;
  const bool whole_nodes = size > 1 && size < g.count && g.count % size == 0 && g.stride == 1 &&
                           (choice.node_size == 0 || g.first % size == 0);
  return whole_nodes ? size : 0;
}

// Bruck's and hierarchical gathers leave pieces in orders of their own: values, which ops read as
// matrices, go around a ring.
inline AllGatherAlgorithm gather_in(const AllGather& op, const CollectiveChoice& choice) {
  using enum AllGatherAlgorithm;
  AllGatherAlgorithm algorithm = choice.all_gather;
  if (algorithm == kRecursiveDoubling && !std::has_single_bit(unsigned(op.group.count)))
    algorithm = kBruck;
  const bool reorders = algorithm == kBruck || algorithm == kHierarchical;
  if (reorders && op.into.rows.branch == kAllValues) return kRing;
  if (algorithm == kHierarchical && node_size_in(op.group, choice) == 0) return kRing;
  return algorithm;
}

// `kind`: of what is reduced.
inline ReduceScatterAlgorithm reduce_in(const ReduceScatter& op, TensorKind kind,
                                        const CollectiveChoice& choice) {
  using enum ReduceScatterAlgorithm;
  if (choice.reduce_scatter == kRecursiveHalving && std::has_single_bit(unsigned(op.group.count)))
    return kRecursiveHalving;
  if (op.what.rows.branch >= 0) return kLinear;  // rows of a branch are few
  return choice.reduce_scatter == kNative && holds_sum(kind) ? kNative : kRing;
}

// Lets the pieces of each gathered slot, and of gradients that lie as such, have the order of the
// rank's gather wherever the program names them (gather_orders.cpp).
void order_gathered_pieces(RankProgram& program, Rank rank, const CollectiveChoice& choice);

}  // namespace longnet
