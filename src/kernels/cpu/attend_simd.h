// Exact attention of one task on one core, for the best instruction set of the machine.
//
// Method (FlashAttention-2, Dao 2023, with CPU caches in the place of shared memory):
//   for each chunk of 2064 query rows       Q, O and the sums of a chunk stream from L2 or L3
//     for each panel of 128 keys            K transposed, V, both as fp32, packed once per chunk
//       for each tile of 24 query rows      K and V come from L2 once a tile
//         S = Q K^T;  P = 2^(S - m);  l += sum P;  O += P V
//
// m follows the row maximum lazily: it moves only when a score exceeds it by more than kLazyMargin,
// so that rescaling is rare; the powers stay below 2^kLazyMargin and the sums far from overflow.
//
// Sums are made on three levels (panel, group of panels, all), so that the rounding error of a row
// stays near that of 128 terms: a flat fp32 chain over 2^20 keys would lose 2 digits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/attention_kernel.h"
#include "kernels/cpu/key_panels.h"

namespace longnet {

inline constexpr int64_t kMaxHeadDim = 256;
inline constexpr int64_t kTileRows = 24;     // their scores take 12 KB of L1
inline constexpr int64_t kChunkRows = 2064;  // share one packing of K and V
inline constexpr int64_t kMaxLanes = 16;     // floats of the widest vector
static_assert(kChunkRows % kTileRows == 0);

inline int64_t round_up(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// Hands out parts of a block of scratch memory, each at a multiple of 64 bytes. Without a block
// (null) only the size is asked.
struct ScratchFloats {
  float* start;
  int64_t floats = 0;

  explicit ScratchFloats(std::byte* base) : start(reinterpret_cast<float*>(base)) {}
  float* take(int64_t count) {
    float* const at = start == nullptr ? nullptr : start + floats;
    floats += round_up(count, kMaxLanes);
    return at;
  }
};

// Layout of a task's scratch memory: state of a chunk of query rows, packed panel, tile of scores.
// Rows of O are padded to whole vectors, `padded` floats. [..] are sizes in floats, row-major.
struct AttendWorkspace {
  int64_t head_dim, padded;
  float* q;        // [kChunkRows][head_dim], times log2(e) / sqrt(head_dim)
  float* o;        // [kChunkRows][padded], sums of P V of the current group of panels
  float* o_outer;  // [kChunkRows][padded], sums over the groups before
  float* l;        // [kChunkRows][kMaxLanes], sums of P per vector lane, like o
  float* l_outer;  // [kChunkRows][kMaxLanes]
  float* m;        // [kChunkRows], the maxima that are subtracted from scores
  float* k;        // [head_dim][kPanelKeys], in groups of columns
  float* v;        // [kPanelKeys][padded], in groups of columns
  float* s;        // [kTileRows][kPanelKeys], scores, then powers
  int64_t floats;  // size of the whole

  AttendWorkspace(std::byte* base, int64_t d) : head_dim(d), padded(round_up(d, kMaxLanes)) {
    ScratchFloats scratch(base);
    q = scratch.take(kChunkRows * d);
    o = scratch.take(kChunkRows * padded);
    o_outer = scratch.take(kChunkRows * padded);
    l = scratch.take(kChunkRows * kMaxLanes);
    l_outer = scratch.take(kChunkRows * kMaxLanes);
    m = scratch.take(kChunkRows);
    k = scratch.take(d * kPanelKeys);
    v = scratch.take(kPanelKeys * padded);
    s = scratch.take(kTileRows * kPanelKeys);
    floats = scratch.floats;
  }
};

// Bytes of scratch memory that one attend_task needs, a multiple of 64.
inline int64_t attend_workspace_bytes(int64_t head_dim) {
  return AttendWorkspace(nullptr, head_dim).floats * int64_t(sizeof(float));
}

// `workspace`: attend_workspace_bytes(options.head_dim) bytes at a multiple of 64, any contents.
void attend_task(const AttendTask& task, const AttendOptions& options, std::byte* workspace);

}  // namespace longnet
