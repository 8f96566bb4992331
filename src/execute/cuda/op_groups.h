// Ops of a program that a GPU runs together: communications as rounds, merges within attends.
//
// A GPU's communication stream works in order, and NCCL's transfers wait there for their peers: a
// send before a receive on every rank of a ring would wait for ever. So neighbouring sends and
// receives that do not depend on each other go out as one round, which makes progress on all of
// them.
//
//   ring, P = 4:  {send kv(1), recv A(0)}  {send A(0), recv B(3)}  {send B(3), recv A(2)}
#pragma once
#include <map>
#include <vector>

#include "schedule/program.h"

namespace longnet {

using CommRound = std::vector<OpId>;  // sends, receives and all-to-alls, or one all-gather

// Every communication of the program is in one round; rounds ascend. A computing op between the
// first and the last op of a round does not depend on any of them.
std::vector<CommRound> comm_rounds(const RankProgram& program);

// Pairs (merge, attend) of a program that can run as one: the attend alone writes the partial that
// the merge alone reads, and nothing between them depends on the attend.
//
//   attend q x kv -> partial, merge partial -> output   becomes   attend q x kv, merged into output
std::map<OpId, OpId> fusible_merges(const RankProgram& program);

}  // namespace longnet
