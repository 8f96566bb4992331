// Inputs of the backward pass of the `cuda` kernel, which the host plans (backward_plan.h), and the
// layout of its tiles in shared memory.
//
// Two kernels, so that no two blocks add to one row: one whose blocks own rows of dQ, and one whose
// blocks own rows of dK and dV, over the queries of all tasks that see them, in order.
//
//   one K/V head, 4 query heads, 130 keys: 1 key group with 4 sources; 3 tiles of 64 keys, each
//   over the query tiles of the 4 tasks
#pragma once
#include <cstdint>

#include "kernels/cuda/tile_layout.h"

namespace longnet {

// The queries of a task.
struct BackwardRows {
  const void *q, *grad_out;  // row i at + i * stride elements of 16 bits
  const float* statistics;   // L and delta of row i at + i * statistics_stride
  float* grad_q;             // row i at + i * stride
  int64_t stride, statistics_stride;
  int32_t rows;
  int32_t first_run, num_runs;  // in the list of runs
};
// A run of keys, as one task sees it.
struct BackwardRun {
  const void *k, *v;  // row i at + i * stride elements of 16 bits
  float *grad_k, *grad_v;
  int64_t stride;
  KeyLimit limit;
};
// Queries that see the keys of a group: those of a task, through one of its runs.
struct KeySource {
  int32_t task, run;
};
// Keys whose gradients are summed together: the same run of several tasks.
struct KeyGroup {
  int32_t first_source, num_sources;
};
// One block's work: rows [row, row + kRows) of a task, or keys of a group.
struct BackwardTile {
  int32_t owner, row;
};
struct BackwardInputs {
  int32_t head_dim;  // <= Shape::kDim; a row's other lanes are zero
  bool causal;
  float scale, scale_log2;  // 1 / sqrt(head_dim), and that times log2(e)
  float output_scale;       // dO is multiplied by it
  const BackwardRows* tasks;
  const BackwardRun* runs;
  const KeySource* sources;
  const KeyGroup* groups;
  const BackwardTile* tiles;
};

// A block of four warps has kRows rows of two tensors (Q and dO, or K and V), 16 kM a warp, and
// walks the other two in tiles of kColumns rows, double-buffered.
template <int kDim_, int kM_, int kColumns_, int kBlocksPerSm_>
struct BackwardShape {
  static constexpr int kDim = kDim_, kM = kM_, kColumns = kColumns_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kRows = 16 * kM * kWarps;
  static constexpr int kKeys = kColumns;
  static constexpr int kChunks = kDim / 8;  // 16-byte pieces of a row
  static constexpr int kRowsPerPass = kThreads / kChunks;
  static constexpr int kRowBytes = kRows * kDim * 2, kColumnBytes = kColumns * kDim * 2;
  static constexpr int kStatisticsOffset = 2 * kRowBytes + 4 * kColumnBytes;
  static constexpr int kSharedBytes = kStatisticsOffset + 2 * kColumns * 8;
  static_assert(kDim % 64 == 0 && kColumns % 16 == 0 && kThreads % kChunks == 0);
  static_assert(kRows % kRowsPerPass == 0 && kColumns % kRowsPerPass == 0);
  static_assert(kColumns <= kThreads);
  // The first tensor's tile; the second one's is behind it.
  LONGNET_HOST_DEVICE static constexpr int columns_offset(int stage) {
    return 2 * kRowBytes + stage * 2 * kColumnBytes;
  }
  // L and delta of the columns, where these are queries.
  LONGNET_HOST_DEVICE static constexpr int statistics_offset(int stage) {
    return kStatisticsOffset + stage * kColumns * 8;
  }
};

// The tile shapes that are compiled, of largest head dimensions 64 and 128: guesses from registers
// and shared memory.
using Backward64 = BackwardShape<64, 2, 32, 2>;
using Backward128 = BackwardShape<128, 1, 32, 2>;

}  // namespace longnet
