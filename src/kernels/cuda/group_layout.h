// Inputs of the `cuda_sm90a` kernel, which the host plans, and the layout of its shared memory.
//
// Rows come by TMA: a box of up to 256 rows x 64 dims of a 5-D view (grid_views.h) lands as rows
// of 128 bytes whose 16-byte chunks are rotated by the row ("128-byte swizzle"); what lies outside
// the view becomes zero. wgmma reads such tiles through descriptors.
//
//   row 3, dims 8..15 (chunk 1) of a slab of 64 dims at byte 3 * 128 + (1 ^ 3) * 16 = 416
//
// Descriptors and layouts: PTX ISA 8.x, 9.7.15.5 (asynchronous warpgroup level matrix
// instructions).
#pragma once
#include <cstdint>

#include "kernels/cuda/tile_layout.h"

namespace longnet {

// A run of rows in a list of views: element [dim][row] of it is [dim][row][at 0][at 1][at 2].
struct ViewPlace {
  int32_t view = 0;
  int32_t at[3] = {0, 0, 0};
};

// Places of the same rows in two tensors: Q and dO, or K and V.
struct PlacePair {
  ViewPlace a{}, b{};
};

struct GroupTask : TaskRows {
  ViewPlace q;
};
struct GroupRun {
  ViewPlace k{}, v{};
  KeyLimit limit{};
};
// Rows [row, row + kRows) of a task.
struct GroupTile {
  int32_t task, row;
};
struct GroupInputs : AttendInputs {
  const GroupTask* tasks;
  const GroupRun* runs;
  const GroupTile* tiles;      // that see keys
  const int32_t* block_begin;  // block b does tiles [block_begin[b], block_begin[b + 1])
  const GroupTile* keyless;    // tiles that see no key
  int32_t num_keyless, num_views;
  const void* maps;  // a CUtensorMap per view
};

// kGroups consumer warpgroups of 64 rows each, and one warpgroup that loads. One warpgroup at a
// time issues its products, so that the others' exponentials fill the gap (FlashAttention-3's
// "ping-pong"; Shah et al., 2024).
template <int kDim_, int kGroups_, int kKeys_, int kStages_>
struct GroupShape {
  static constexpr int kDim = kDim_, kGroups = kGroups_, kKeys = kKeys_, kStages = kStages_;
  static constexpr int kRows = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr int kSlabDim = 64, kSlabs = kDim / kSlabDim, kRowBytes = kSlabDim * 2;
  static constexpr int kQSlabBytes = kRows * kRowBytes, kSlabBytes = kKeys * kRowBytes;
  static constexpr int kQBytes = kSlabs * kQSlabBytes, kTileBytes = kSlabs * kSlabBytes;
  static constexpr int kQBuffers = 2;  // for this tile and the next one
  static constexpr int kBarrierOffset = kQBuffers * kQBytes + 2 * kStages * kTileBytes;
  static constexpr int kBarriers = 2 * kQBuffers + 4 * kStages;
  static constexpr int kAlignment = 1024;  // bytes, for swizzled tiles
  static constexpr int kSharedBytes = kBarrierOffset + 8 * kBarriers + kAlignment;  // any begin
  // 64 K registers per SM, in units of 8 per thread.
  static constexpr int kConsumerRegisters = kGroups == 2 ? 232 : 160;
  static constexpr int kProducerRegisters = kGroups == 2 ? 40 : 32;
  static_assert(kDim % kSlabDim == 0 && kKeys % 16 == 0 && kKeys <= 256 && kRows <= 256);
  static_assert(kSlabBytes % kAlignment == 0 && kQSlabBytes % kAlignment == 0);
  static_assert(kGroups == 2 || kGroups == 3);
  // A warpgroup gets what others of its block gave back, of what the block began with.
  static_assert(128 * (kGroups * kConsumerRegisters + kProducerRegisters) <=
                65536 / kThreads / 8 * 8 * kThreads);
  LONGNET_HOST_DEVICE static constexpr int q_offset(int buffer) { return buffer * kQBytes; }
  LONGNET_HOST_DEVICE static constexpr int k_offset(int stage) {
    return kQBuffers * kQBytes + stage * 2 * kTileBytes;
  }
  LONGNET_HOST_DEVICE static constexpr int v_offset(int stage) {
    return k_offset(stage) + kTileBytes;
  }
  // Barriers, by number. "Full": the producer's bytes have landed; "empty": all consumers are done.
  static constexpr int kArrivals = 4 * kGroups;  // a warp each
  LONGNET_HOST_DEVICE static constexpr int q_full(int buffer) { return 2 * buffer; }
  LONGNET_HOST_DEVICE static constexpr int q_empty(int buffer) { return 2 * buffer + 1; }
  LONGNET_HOST_DEVICE static constexpr int k_full(int stage) { return 2 * kQBuffers + 4 * stage; }
  LONGNET_HOST_DEVICE static constexpr int k_empty(int stage) { return k_full(stage) + 1; }
  LONGNET_HOST_DEVICE static constexpr int v_full(int stage) { return k_full(stage) + 2; }
  LONGNET_HOST_DEVICE static constexpr int v_empty(int stage) { return k_full(stage) + 3; }
};

// The tile shapes that are compiled.
using Group64 = GroupShape<64, 3, 128, 4>;    // rows and keys of FlashAttention-3
using Group128 = GroupShape<128, 2, 160, 2>;  // without a mask ...
using Group128Causal =
    GroupShape<128, 2, 128, 2>;  // ... and with a causal one, as FlashAttention-3

}  // namespace longnet
