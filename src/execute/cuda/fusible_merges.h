// Merges that a device can take into the attend before them:
//
//   attend q x kv -> partial, merge partial -> output   becomes   attend q x kv, merged into output
#pragma once
#include <map>

#include "schedule/program.h"

namespace longnet {

// Pairs (merge, attend) of a program that can run as one: the attend alone writes the partial that
// the merge alone reads, and nothing between them depends on the attend.
std::map<OpId, OpId> fusible_merges(const RankProgram& program);

}  // namespace longnet
