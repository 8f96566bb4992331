// Inputs of the `cuda` kernel, which the host plans, and the layout of its tiles in shared memory.
//
//   a tile of 64 keys x 64 dims: row 3, dims 8..15 (chunk 1) at byte (3 * 8 + (1 ^ 3)) * 16 = 416
#pragma once
#include <cstdint>

#include "core/random.h"

namespace longnet {

// floor(2^64 / step), at most 2^64 - 1.
constexpr uint64_t inverse_of(uint64_t step) {
  return step == 1 ? ~uint64_t{0} : ~uint64_t{0} / step + (~uint64_t{0} % step == step - 1 ? 1 : 0);
}
// floor(x / step), by its inverse: at most one too small before the last line.
LONGNET_HOST_DEVICE inline uint64_t divided(uint64_t x, uint64_t step, uint64_t inverse) {
#if defined(__CUDA_ARCH__)
  const uint64_t quotient = __umul64hi(x, inverse);
#else
  const auto quotient = uint64_t((static_cast<unsigned __int128>(x) * inverse) >> 64);
#endif
  return quotient + (x - quotient * step >= step ? 1 : 0);
}

// Keys of a run that the rows of a task see under a causal mask: row i the first
//   ahead + i * per_row + floor((rest + i * rest_per_row) / step)    (0 ... rows)
// of them: floor((position of row i - first token) / step) + 1, from quotients and rests that the
// host took (attend_plan.h). rest_per_row is 0 wherever rows and keys have one dilation rate.
struct KeyLimit {
  int64_t ahead = 0, per_row = 0;
  uint64_t rest = 0, rest_per_row = 0;  // < step
  uint64_t step = 1, inverse = 0;       // inverse_of(step)
  int32_t rows = 0;                     // keys in the run

  LONGNET_HOST_DEVICE int32_t visible(int row) const {
    int64_t seen = ahead + row * per_row;
    if (rest_per_row != 0)
      seen += int64_t(divided(rest + uint64_t(row) * rest_per_row, step, inverse));
    return seen <= 0 ? 0 : seen < rows ? int32_t(seen) : rows;
  }
  // The first of `queries` rows that sees key number `key`; `queries` if none does.
  LONGNET_HOST_DEVICE int first_to_see(int key, int queries) const {
    int low = 0, high = queries;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (visible(middle) > key)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }
};

// One query run against a list of key runs, the device's form of AttendTask: the fields of both
// kernels.
struct TaskRows {
  float* o;    // row i at o + i * o_stride, of floats or of pairs of 16 bits
  float* lse;  // row i at lse[i * lse_stride]
  int64_t o_stride, lse_stride;
  int32_t rows;
  int32_t first_run, num_runs;  // in the list of runs
};
struct TileTask : TaskRows {
  const void* q;  // row i at q + i * q_stride elements of 16 bits
  int64_t q_stride;
};
struct TileRun {
  const void* k;
  const void* v;
  int64_t stride;       // elements
  int32_t begin, rows;  // keys [begin, begin + rows) of the task
  KeyLimit limit;
};
// One block's work: rows [row, row + kRows) of a task.
struct TileRef {
  int32_t task, row;
  int32_t keys;      // keys that at least one row of the tile may see: the first ones of the task
  int32_t unmasked;  // keys that all rows see
};
// Parameters that all tasks of a launch share.
struct AttendInputs {
  int32_t head_dim;  // <= Shape::kDim; a row's other lanes are zero
  bool causal;
  bool merge;        // fold into what `o` and `lse` hold, by LSE, instead of overwriting it
  bool short_o;      // O has 16 bits
  float scale_log2;  // log2(e) / sqrt(head_dim)
  float output_scale;
};
struct TileInputs : AttendInputs {
  const TileTask* tasks;
  const TileRun* runs;
  const TileRef* tiles;
};

// kM: blocks of 16 query rows per warp. kQInRegisters: Q fragments are loaded once, else with each
// key tile.
template <int kDim_, int kM_, int kKeys_, bool kQInRegisters_, int kBlocksPerSm_>
struct TileShape {
  static constexpr int kDim = kDim_, kM = kM_, kKeys = kKeys_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr bool kQInRegisters = kQInRegisters_;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kRows = 16 * kM * kWarps;
  static constexpr int kChunks = kDim / 8;  // 16-byte pieces of a row
  static constexpr int kRowsPerPass = kThreads / kChunks;
  static constexpr int kQBytes = kRows * kDim * 2, kTileBytes = kKeys * kDim * 2;
  static constexpr int kSharedBytes = kQBytes + 4 * kTileBytes;  // Q, two stages of K and V
  static_assert(kDim % 64 == 0 && kKeys % 16 == 0 && kThreads % kChunks == 0);
  static_assert(kRows % kRowsPerPass == 0 && kKeys % kRowsPerPass == 0);
  LONGNET_HOST_DEVICE static constexpr int k_offset(int stage) {
    return kQBytes + stage * 2 * kTileBytes;
  }
  LONGNET_HOST_DEVICE static constexpr int v_offset(int stage) {
    return k_offset(stage) + kTileBytes;
  }
};

// The tile shapes that are compiled. Head dimensions between are padded with zeros to the next one.
using Shape64 = TileShape<64, 2, 64, true, 2>;
using Shape128 = TileShape<128, 2, 64, false, 2>;
using Shape256 = TileShape<256, 1, 32, false, 1>;

// Byte of a 16-byte chunk in a tile of rows. The rotation by row keeps the eight rows of an 8 x 8
// matrix in distinct banks.
template <class Shape>
LONGNET_HOST_DEVICE constexpr int chunk_offset(int row, int chunk) {
  return (row * Shape::kChunks + (chunk ^ (row & 7))) * 16;
}

}  // namespace longnet
