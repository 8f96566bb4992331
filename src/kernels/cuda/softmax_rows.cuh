// Query rows of one warp between key tiles: O, the running maximum and the running sum, as
// registers of mma accumulators (FlashAttention-2; Dao, 2023).
//
// A row of 16 x 8 accumulators belongs to the four lanes of a quad. wgmma gives each of the four
// warps of a warpgroup 16 rows in that same layout, so the kernels for sm_80 and for sm_90a share
// this class.
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/cuda/tile_products.cuh"

namespace longnet {

// kM: blocks of 16 query rows per warp.
template <int kM, int kDim, int kKeys>
class SoftmaxRows {
  // A maximum stays until one is 2^kSlack times as large: O and the sums are rescaled less often.
  static constexpr float kSlack = 8.0f;
  // Whether finish() has registers to load two rows before it stores the first.
  static constexpr bool kLoadsAhead = kDim <= 64;

 public:
  using Scores = float[kM][kKeys / 8][4];
  using Factors = float[kM][2];

  __device__ __forceinline__ void begin(int first_row) {
    first_row_ = first_row;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        max_[m][h] = -INFINITY;
        sum_[m][h] = 0.0f;
      }
    }
    set_zero(o);
  }

  // Scores of columns [begin, end) that a row does not see become -inf: it sees those before
  // limit_of(m, h), of row row_of(m, h).
  template <class LimitOf>
  __device__ __forceinline__ void mask_columns(Scores& s, int begin, int end,
                                               LimitOf limit_of) const {
    const int column = accumulator_column(lane_of_thread(), 0);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int limit = limit_of(m, h);
        const int from = (limit > begin ? limit : begin) - column, to = end - column;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i)
            if (n * 8 + i >= from && n * 8 + i < to) s[m][n][2 * h + i] = -INFINITY;
        }
      }
    }
  }

  // Scores become exp2(score - max); max_ (in units of log2) and sum_ (of this lane's columns)
  // follow. O is still to be multiplied by `shrink`.
  __device__ __forceinline__ void softmax(Scores& s, float scale_log2, Factors& shrink) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float top = fmaxf(s[m][0][2 * h], s[m][0][2 * h + 1]);
#pragma unroll
        for (int n = 1; n < kKeys / 8; ++n)
          top = fmaxf(top, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
        const float max = fmaxf(max_[m][h], quad_max(top) * scale_log2);
        const bool stays = max - max_[m][h] <= kSlack;  // false before the first key
        const float base = stays ? max_[m][h] : max == -INFINITY ? 0.0f : max;
        shrink[m][h] = stays ? 1.0f : approximate_exp2(max_[m][h] - base);
        if (!stays) max_[m][h] = max;
        float sum = sum_[m][h] * shrink[m][h];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& x = s[m][n][2 * h + i];
            x = approximate_exp2(fmaf(x, scale_log2, -base));
            sum += x;
          }
        }
        sum_[m][h] = sum;
      }
    }
  }

  __device__ __forceinline__ void rescale(const Factors& shrink) {
    bool needed = false;
#pragma unroll
    for (int m = 0; m < kM; ++m) needed = needed || shrink[m][0] != 1.0f || shrink[m][1] != 1.0f;
    if (!__any_sync(0xFFFFFFFFu, needed)) return;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
          o[m][n][2 * h] *= shrink[m][h];
          o[m][n][2 * h + 1] *= shrink[m][h];
        }
      }
    }
  }

  // Normalises and writes the rows. `to` and `in` are copies, which stores cannot change.
  // Rows are counted from row `from` of the task.
  __device__ __forceinline__ void finish(const TaskRows to, const AttendInputs in, int from = 0) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float old[2] = {-INFINITY, -INFINITY};
      Before before[2] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = from + row_of(m, h);
        if (in.merge && row < to.rows) old[h] = to.lse[row * to.lse_stride];
        if (kLoadsAhead && in.merge) load_row(before[h], to, in, row);
      }
      if (in.merge) __syncwarp();  // four lanes have read a row's LSE before one of them writes it
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float sum = quad_sum(sum_[m][h]);
        const int row = from + row_of(m, h);
        if (row < to.rows) finish_row(to, in, row, m, h, sum, old[h], before[h]);
      }
    }
  }

  float o[kM][kDim / 8][4];

 protected:
  __device__ __forceinline__ int row_of(int m, int h) const {
    return first_row_ + m * 16 + accumulator_row(lane_of_thread(), 2 * h);
  }

  int first_row_ = 0;
  float max_[kM][2], sum_[kM][2];

 private:
  using Before = float2[kDim / 8];  // a lane's columns of a row that is merged into

  // This lane's columns of a row of O: pairs of neighbours, eight columns apart.
  static __device__ __forceinline__ float* columns_of(const TaskRows& to, const AttendInputs& in,
                                                      int row) {
    const int column = accumulator_column(lane_of_thread(), 0);
    return to.o + row * to.o_stride + (in.short_o ? column / 2 : column);
  }
  __device__ __forceinline__ void load_row(Before& before, const TaskRows& to,
                                           const AttendInputs& in, int row) const {
    const float* const out = columns_of(to, in, row);
    const bool aligned = aligned_to_pairs(out);
    const bool wanted = row < to.rows;
    if (in.short_o) {
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
        before[n] = unpack_pair(load_word(out + n * 4, wanted && n * 8 < in.head_dim));
      return;
    }
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
      before[n] = load_pair(out + n * 8, aligned, wanted && n * 8 < in.head_dim);
  }
  __device__ __forceinline__ void finish_row(const TaskRows& to, const AttendInputs& in, int row,
                                             int m, int h, float sum, float old, Before& before) {
    float lse = sum > 0.0f ? (max_[m][h] + log2f(sum)) * 0.69314718056f
                           : -INFINITY;  // max is in units of log2 by now
    float scale = sum > 0.0f ? __fdividef(in.output_scale, sum) : 0.0f, keep = 0.0f;
    if (in.merge) {
      const float top = fmaxf(lse, old);
      if (top == -INFINITY) return;  // neither saw a key: O and LSE stay
      const float mine = approximate_exp2((lse - top) * 1.44269504089f);
      const float theirs = approximate_exp2((old - top) * 1.44269504089f);
      scale *= __fdividef(mine, mine + theirs);
      keep = __fdividef(theirs, mine + theirs);
      lse = top + log2f(mine + theirs) * 0.69314718056f;
      if constexpr (!kLoadsAhead) load_row(before, to, in, row);
    }
    if ((lane_of_thread() & 3) == 0) to.lse[row * to.lse_stride] = lse;
    float* const out = columns_of(to, in, row);
    const auto mixed = [&](int n, int i) {
      return o[m][n][2 * h + i] * scale + keep * (i == 0 ? before[n].x : before[n].y);
    };
    if (in.short_o) {
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
        store_word(out + n * 4, pack_pair(mixed(n, 0), mixed(n, 1)), n * 8 < in.head_dim);
    } else {
      const bool aligned = aligned_to_pairs(out);
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
        store_pair(out + n * 8, mixed(n, 0), mixed(n, 1), aligned, n * 8 < in.head_dim);
    }
  }
};

}  // namespace longnet
