// Inputs of the backward pass of the own kernels, which the host plans (backward_plan.h), and the
// layout of its tiles in shared memory.
//
// Two kernels, so that no two blocks add to one row: one whose blocks own rows of dQ, and one whose
// blocks own rows of dK and dV, over the queries of all tasks that see them, in order.
//
//   one K/V head, 4 query heads, 130 keys: 1 key group with 4 sources; 3 tiles of 64 keys, each
//   over the query tiles of the 4 tasks
#pragma once
#include <cstdint>

#include "kernels/cuda/group_layout.h"

namespace longnet {

// The queries of a task.
struct BackwardRows {
  const void *q, *grad_out;  // row i at + i * stride elements of 16 bits
  const float* statistics;   // L and delta of row i at + i * statistics_stride
  float* grad_q;             // row i at + i * stride
  int64_t stride, statistics_stride;
  int32_t rows;
  int32_t first_run, num_runs;  // in the list of runs
  PlacePair place;              // places of Q and dO, for TMA
};
// A run of keys, as one task sees it.
struct BackwardRun {
  const void *k, *v;  // row i at + i * stride elements of 16 bits
  float *grad_k, *grad_v;
  int64_t stride;
  KeyLimit limit;
  PlacePair place;  // places of K and V, for TMA
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
  const int32_t* block_begin;  // for wgmma: block b does tiles [block_begin[b], block_begin[b + 1])
  int32_t num_views;
  const void* maps;  // a CUtensorMap per view; null for mma.sync
};

// A block has kRows rows of two tensors (Q and dO, or K and V) and walks the other two in tiles of
// kColumns rows, of which kStages fit into its shared memory.
template <int kDim_, int kRows_, int kColumns_, int kStages_, int kThreads_>
struct BackwardLayout {
  static constexpr int kDim = kDim_, kRows = kRows_, kColumns = kColumns_, kStages = kStages_;
  static constexpr int kThreads = kThreads_;
  static constexpr int kKeys = kColumns;
  static constexpr int kChunks = kDim / 8;  // 16-byte pieces of a row
  static constexpr int kRowBytes = kRows * kDim * 2, kColumnBytes = kColumns * kDim * 2;
  static constexpr int kStatisticsOffset = 2 * kRowBytes + 2 * kStages * kColumnBytes;
  static constexpr int kEnd = kStatisticsOffset + kStages * kColumns * 8;
  static_assert(kDim % 64 == 0 && kColumns % 16 == 0 && kColumns <= kThreads);
  // The first tensor's tile; the second one's is behind it.
  LONGNET_HOST_DEVICE static constexpr int columns_offset(int stage) {
    return 2 * kRowBytes + stage * 2 * kColumnBytes;
  }
  // Statistics of the columns, where these are queries: -L in units of log2, and delta.
  LONGNET_HOST_DEVICE static constexpr int statistics_offset(int stage) {
    return kStatisticsOffset + stage * kColumns * 8;
  }
};

// For mma.sync: four warps of 16 kM rows.
template <int kDim, int kM_, int kColumns, int kBlocksPerSm_>
struct BackwardShape : BackwardLayout<kDim, 64 * kM_, kColumns, 2, 128> {
  using Layout = BackwardLayout<kDim, 64 * kM_, kColumns, 2, 128>;
  static constexpr int kM = kM_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kRowsPerPass = Layout::kThreads / Layout::kChunks;
  static constexpr int kSharedBytes = Layout::kEnd;
  static_assert(Layout::kRows % kRowsPerPass == 0 && kColumns % kRowsPerPass == 0);
};

// For wgmma: two warpgroups of 64 rows. Tiles come by TMA and lie in slabs of 64 dims
// (group_layout.h), two ahead of those that are multiplied.
template <int kDim, int kColumns>
struct BackwardGroupShape : BackwardLayout<kDim, 128, kColumns, 4, 384> {
  using Layout = BackwardLayout<kDim, 128, kColumns, 4, 384>;
  static constexpr int kM = 1, kConsumers = 256;  // threads that multiply
  static constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
  static constexpr int kBarrierOffset = Layout::kEnd;
  static constexpr int kAlignment = 1024;  // bytes, for swizzled tiles
  static constexpr int kSharedBytes = kBarrierOffset + 8 * (2 * Layout::kStages + 2) + kAlignment;
  // Barriers, by number. "Full": a tile of columns, or the block's own rows, have arrived; "empty":
  // all warps are done with them.
  static constexpr int kRowsFull = 2 * Layout::kStages, kRowsEmpty = kRowsFull + 1;
  LONGNET_HOST_DEVICE static constexpr int full(int stage) { return 2 * stage; }
  LONGNET_HOST_DEVICE static constexpr int empty(int stage) { return 2 * stage + 1; }
};
constexpr int kBackwardBoxRows = 64;  // TMA's, for a block's own rows; kColumns for the others

// The tile shapes that are compiled, of largest head dimensions 64 and 128. Of cuda_sm90a: columns
// as registers allow, for sums of dQ, and of dK and dV.
using Backward64 = BackwardShape<64, 2, 32, 2>;
using Backward128 = BackwardShape<128, 1, 32, 2>;
using BackwardGroup64 = BackwardGroupShape<64, 96>;
using BackwardGroup64Keys = BackwardGroupShape<64, 80>;
using BackwardGroup128 = BackwardGroupShape<128, 64>;
using BackwardGroup128Keys = BackwardGroupShape<128, 48>;

}  // namespace longnet
