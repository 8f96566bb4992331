// Part of lower_collectives: the algorithm that runs in a group under a choice.
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

inline AllGatherAlgorithm gather_in(const RankGroup& g, const CollectiveChoice& choice) {
  using enum AllGatherAlgorithm;
  if (choice.all_gather == kRecursiveDoubling && !std::has_single_bit(unsigned(g.count)))
    return kBruck;
  if (choice.all_gather == kHierarchical && node_size_in(g, choice) == 0) return kRing;
  return choice.all_gather;
}

inline ReduceScatterAlgorithm reduce_in(const ReduceScatter& op, const CollectiveChoice& choice) {
  using enum ReduceScatterAlgorithm;
  if (choice.reduce_scatter == kRecursiveHalving && std::has_single_bit(unsigned(op.group.count)))
    return kRecursiveHalving;
  return op.what.rows.branch < 0 ? kRing : kLinear;  // rows of a branch are few
}

}  // namespace longnet
