// Exact gradients of a block of queries and keys on one core, for the best instruction set of the
// machine.
//
// Method (FlashAttention-2's backward pass, Dao 2023, with CPU caches in the place of shared
// memory):
//   for each panel of 128 keys         K^T, V^T and K as fp32, packed once per block; dK, dV in L2
//     for each tile of 48 query rows   Q, dO and dQ stream from L2
//       S = Q K^T;  P = 2^(S - L);  dP = dO V^T;  dS = P (dP - delta)
//       dQ += dS K;  dV += P^T dO;  dK += dS^T Q
//
// Q is copied times log2(e) / sqrt(d); dK then lacks a factor ln(2) and dQ one of 1 / sqrt(d),
// which they get when a block's sums are added to memory. P^T and dS^T are P and dS, read by
// columns: the register tiles broadcast single numbers of them.
//
// Sums are made on three levels (tile or panel, block, all), as those of the forward pass.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/attention_kernel.h"
#include "kernels/cpu/attend_simd.h"
#include "kernels/cpu/key_panels.h"

namespace longnet {

inline constexpr int64_t kBackwardTileRows = 48;  // P and dS of a tile take 54 KB
inline constexpr int64_t kBackwardRows = 2064;    // the most queries of a block
static_assert(kBackwardRows % kBackwardTileRows == 0);

// Layout of a block's scratch memory. Rows have a pitch of an odd number of cache lines: those of a
// column lie in different sets of L1. [..] are sizes in floats, row-major.
struct BackwardWorkspace {
  int64_t head_dim, pitch;
  float* q;          // [kBackwardRows][pitch], times log2(e) / sqrt(head_dim)
  float* grad_out;   // [kBackwardRows][pitch]
  float* grad_q;     // [kBackwardRows][pitch], sums of dS K
  float* lse;        // [kBackwardRows], times log2(e)
  float* delta;      // [kBackwardRows]
  float* k_columns;  // [head_dim][kPanelKeys], in groups of columns
  float* v_columns;  // the same of V
  float* k;          // [kPanelKeys][head_dim in whole vectors], in groups of columns
  float* grad_k;     // [kPanelKeys][pitch], sums of dS^T Q
  float* grad_v;     // [kPanelKeys][pitch], sums of P^T dO
  float* p;          // [kBackwardTileRows][kScorePitch], S, then P
  float* ds;         // [kBackwardTileRows][kScorePitch], dP, then dS
  int64_t floats;    // size of the whole

  static constexpr int64_t kScorePitch = kPanelKeys + kMaxLanes;

  BackwardWorkspace(std::byte* base, int64_t d)
      : head_dim(d), pitch((round_up(d, kMaxLanes) / kMaxLanes | 1) * kMaxLanes) {
    ScratchFloats scratch(base);
    q = scratch.take(kBackwardRows * pitch);
    grad_out = scratch.take(kBackwardRows * pitch);
    grad_q = scratch.take(kBackwardRows * pitch);
    lse = scratch.take(kBackwardRows);
    delta = scratch.take(kBackwardRows);
    k_columns = scratch.take(d * kPanelKeys);
    v_columns = scratch.take(d * kPanelKeys);
    k = scratch.take(kPanelKeys * round_up(d, kMaxLanes));
    grad_k = scratch.take(kPanelKeys * pitch);
    grad_v = scratch.take(kPanelKeys * pitch);
    p = scratch.take(kBackwardTileRows * kScorePitch);
    ds = scratch.take(kBackwardTileRows * kScorePitch);
    floats = scratch.floats;
  }
};

// Bytes of scratch memory that one backward_block needs, a multiple of 64.
inline int64_t backward_block_bytes(int64_t head_dim) {
  return BackwardWorkspace(nullptr, head_dim).floats * int64_t(sizeof(float));
}

// Adds to dQ, dK and dV what all queries of `task`, at most kBackwardRows, and the keys of `range`
// give. `workspace`: backward_block_bytes(options.head_dim) bytes at a multiple of 64, any
// contents.
void backward_block(const BackwardTask& task, KeyRange range, const AttendOptions& options,
                    std::byte* workspace);

// L and delta = rowsum(dO o O) of all rows of a task.
void delta_rows(const DeltaTask& task, const AttendOptions& options);

}  // namespace longnet
