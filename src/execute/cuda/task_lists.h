// Attention tasks, rearranged for a device: neighbours joined, merges taken into the attends.
//
//   join_tasks:  a head's 16384 dense queries come as 8 tasks of 2048; one task of 16384 is one
//   view fuse_merges: attend q x kv -> partial, merge partial -> output   becomes
//                attend q x kv -> merged straight into output
#pragma once
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "kernels/attention_kernel.h"
#include "schedule/program.h"

namespace longnet {

// Tasks that go on where the one before ends (same keys, rows, results and positions) become one.
std::vector<AttendTask> join_tasks(std::span<const AttendTask> tasks);

// Pairs (merge, attend) of a program that can run as one: the attend alone writes the partial that
// the merge alone reads, and nothing between them depends on the attend.
std::map<OpId, OpId> fusible_merges(const RankProgram& program);

// The tasks of an attend, cut so that each one's rows are merged into rows at equal distances,
// which become its result. Nothing when some row is not merged anywhere.
std::optional<std::vector<AttendTask>> fuse_merges(std::span<const AttendTask> attends,
                                                   std::span<const MergeTask> merges);

}  // namespace longnet
