// Layout of a task's scratch memory: state of a chunk of query rows, packed panel, tile of scores.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/key_panels.h"

namespace longnet {

inline constexpr int64_t kTileRows = 12;     // their scores take 6 KB of L1
inline constexpr int64_t kChunkRows = 2064;  // share one packing of K and V
inline constexpr int64_t kMaxLanes = 16;     // floats of the widest vector
static_assert(kChunkRows % kTileRows == 0);

inline int64_t round_up(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

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

  AttendWorkspace(std::byte* base, int64_t d)
      : head_dim(d), padded(round_up(d, kMaxLanes)), floats(0) {
    float* start = reinterpret_cast<float*>(base);
    const auto take = [&](int64_t count) {
      float* at = start == nullptr ? nullptr : start + floats;  // null: only the size is asked
      floats += round_up(count, kMaxLanes);
      return at;
    };
    q = take(kChunkRows * d);
    o = take(kChunkRows * padded);
    o_outer = take(kChunkRows * padded);
    l = take(kChunkRows * kMaxLanes);
    l_outer = take(kChunkRows * kMaxLanes);
    m = take(kChunkRows);
    k = take(d * kPanelKeys);
    v = take(kPanelKeys * padded);
    s = take(kTileRows * kPanelKeys);
  }
};

}  // namespace longnet
