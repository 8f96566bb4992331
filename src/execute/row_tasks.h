// From slices of rows to the tasks of a RowWorker: which rows of Q, K, V or O lie where.
//
// P = 2, N = 8, one head, rank 1's gathered slot of branch {8, 2}: its first piece (of rank 0)
// holds the keys 0 and 2, so fill_tasks gives {key, head 0, tokens 0 2} and the same of V behind
// them.
#pragma once
#include <span>
#include <vector>

#include "kernels/row_worker.h"
#include "schedule/program.h"
#include "schedule/row_map.h"

namespace longnet {

// The rows of the pieces of `view` in a slot of Q or of K and V at `slot`. A K/V row that several
// query heads share comes once. The batch's first sequence is number `first_batch` of the problem.
std::vector<FillRows> fill_tasks(const ShardedProblem& sharded, TensorKind kind,
                                 const SlotView& view, std::byte* slot, int64_t first_batch = 0);

// The rows of a rank's output, one task per (sequence, head, range of its shard); with or without
// LSE.
std::vector<OutputRows> output_tasks(const ShardedProblem& sharded, Rank rank,
                                     const std::byte* slot, bool has_lse, int64_t first_batch = 0);

RowFormat row_format(const AttentionProblem& problem);

// Calls fn(run) for the rows of a piece, for one head: a branch's runs, or its tokens.
template <class Fn>
void for_each_row_run(const RowMap& map, const RowMap::Piece& piece, int64_t head, Fn fn) {
  if (map.slice().branch == kEveryRow) {
    for (const TokenRange& r : piece.tokens) fn(r);
  } else {
    map.for_each_run(piece, map.slice().branch, head, map.slice().within,
                     [&](const TokenRange& run, int64_t) { fn(run); });
  }
}

}  // namespace longnet
