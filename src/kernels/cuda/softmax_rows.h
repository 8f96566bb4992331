// What a warp keeps of its query rows between key tiles: O, the running maximum and the running
// sum, as registers of mma accumulators (FlashAttention-2; Dao, 2023).
//
// A row of 16 x 8 accumulators belongs to the four lanes of a quad. wgmma gives each of the four
// warps of a warpgroup 16 rows in that same layout, so the kernels for sm_80 and for sm_90a share
// this text, and so does the CPU that plays them (attend_tile.h says how).
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/cuda/tile_layout.h"

namespace longnet {

// Where the rows of a tile go.
struct TileRows {
  float* o;    // row i at o + i * o_stride
  float* lse;  // row i at lse[i * lse_stride]
  int64_t o_stride, lse_stride;
  int32_t rows;      // of the task
  int32_t head_dim;  // <= kDim
  bool merge;        // fold into what `o` and `lse` hold, by LSE, instead of overwriting it
  float output_scale;
};

template <class Task, class Inputs>
LONGNET_HOST_DEVICE TileRows tile_rows(const Task& task, const Inputs& in) {
  return {.o = task.o,
          .lse = task.lse,
          .o_stride = task.o_stride,
          .lse_stride = task.lse_stride,
          .rows = task.rows,
          .head_dim = in.head_dim,
          .merge = in.merge,
          .output_scale = in.output_scale};
}

// kM: blocks of 16 query rows per warp.
template <int kM, int kDim, int kKeys, class Warp>
class SoftmaxRows {
 public:
  template <class T>
  using Reg = typename Warp::template Reg<T>;
  using Scores = Reg<float>[kM][kKeys / 8][4];
  using Factors = Reg<float>[kM][2];
  using Fragment = Reg<uint32_t>[4];

  LONGNET_HOST_DEVICE void begin(Warp warp, int first_row) {
    warp_ = warp;
    first_row_ = first_row;
    warp_.lanes([&](int lane) {
      LONGNET_UNROLL
      for (int m = 0; m < kM; ++m) {
        LONGNET_UNROLL
        for (int h = 0; h < 2; ++h) {
          max_[m][h][lane] = -INFINITY;
          sum_[m][h][lane] = 0.0f;
        }
        LONGNET_UNROLL
        for (int n = 0; n < kDim / 8; ++n) {
          LONGNET_UNROLL
          for (int i = 0; i < 4; ++i) o[m][n][i][lane] = 0.0f;
        }
      }
    });
  }

  // Scores of columns [begin, end) that a row does not see become -inf: it sees those before
  // limit_of(row), a row of the block's tile.
  template <class LimitOf>
  LONGNET_HOST_DEVICE void mask_columns(Scores& s, int begin, int end, LimitOf limit_of) const {
    warp_.lanes([&](int lane) {
      const int column = accumulator_column(lane, 0);
      LONGNET_UNROLL
      for (int m = 0; m < kM; ++m) {
        LONGNET_UNROLL
        for (int h = 0; h < 2; ++h) {
          const int limit = limit_of(row_of(lane, m, h));
          const int from = (limit > begin ? limit : begin) - column, to = end - column;
          LONGNET_UNROLL
          for (int n = 0; n < kKeys / 8; ++n) {
            LONGNET_UNROLL
            for (int i = 0; i < 2; ++i)
              if (n * 8 + i >= from && n * 8 + i < to) s[m][n][2 * h + i][lane] = -INFINITY;
          }
        }
      }
    });
  }

  // Scores become exp2(score - max); max_ (in units of log2) and sum_ (of this lane's columns)
  // follow. O is still to be multiplied by `shrink`.
  LONGNET_HOST_DEVICE void softmax(Scores& s, float scale_log2, Factors& shrink) {
    LONGNET_UNROLL
    for (int m = 0; m < kM; ++m) {
      LONGNET_UNROLL
      for (int h = 0; h < 2; ++h) {
        Reg<float> top;
        warp_.lanes([&](int lane) {
          float most = fmaxf(s[m][0][2 * h][lane], s[m][0][2 * h + 1][lane]);
          LONGNET_UNROLL
          for (int n = 1; n < kKeys / 8; ++n)
            most = fmaxf(most, fmaxf(s[m][n][2 * h][lane], s[m][n][2 * h + 1][lane]));
          top[lane] = most;
        });
        warp_.quad_max(top);
        warp_.lanes([&](int lane) {
          const float max = fmaxf(max_[m][h][lane], top[lane] * scale_log2);
          const float base = max == -INFINITY ? 0.0f : max;  // no key seen so far
          shrink[m][h][lane] = Warp::exp2(max_[m][h][lane] - base);
          max_[m][h][lane] = max;
          float sum = sum_[m][h][lane] * shrink[m][h][lane];
          LONGNET_UNROLL
          for (int n = 0; n < kKeys / 8; ++n) {
            LONGNET_UNROLL
            for (int i = 0; i < 2; ++i) {
              float& x = s[m][n][2 * h + i][lane];
              x = Warp::exp2(fmaf(x, scale_log2, -base));
              sum += x;
            }
          }
          sum_[m][h][lane] = sum;
        });
      }
    }
  }

  // What follows starts after the sums: else the assembler moves a wait for products up, above the
  // exponentials that are meant to hide it.
  LONGNET_HOST_DEVICE void hold() const {
    LONGNET_UNROLL
    for (int m = 0; m < kM; ++m) warp_.hold(sum_[m][0], sum_[m][1]);
  }

  LONGNET_HOST_DEVICE void rescale(Factors& shrink) {
    warp_.lanes([&](int lane) {
      LONGNET_UNROLL
      for (int m = 0; m < kM; ++m) {
        LONGNET_UNROLL
        for (int h = 0; h < 2; ++h) {
          LONGNET_UNROLL
          for (int n = 0; n < kDim / 8; ++n) {
            o[m][n][2 * h][lane] *= shrink[m][h][lane];
            o[m][n][2 * h + 1][lane] *= shrink[m][h][lane];
          }
        }
      }
    });
  }

  // A operand of 16 keys: two neighbouring accumulators of S, rounded.
  LONGNET_HOST_DEVICE void pack(Fragment (&a)[kM], Scores& p, int k) const {
    warp_.lanes([&](int lane) {
      LONGNET_UNROLL
      for (int m = 0; m < kM; ++m) {
        LONGNET_UNROLL
        for (int i = 0; i < 4; ++i) {
          const auto& pair = p[m][2 * k + (i >> 1)];
          a[m][i][lane] = Warp::pack(pair[2 * (i & 1)][lane], pair[2 * (i & 1) + 1][lane]);
        }
      }
    });
  }

  // `tile_row`: of the task, the tile's first.
  LONGNET_HOST_DEVICE void finish(const TileRows& to, int tile_row) {
    LONGNET_UNROLL
    for (int m = 0; m < kM; ++m) {
      LONGNET_UNROLL
      for (int h = 0; h < 2; ++h) {
        warp_.quad_sum(sum_[m][h]);
        Reg<float> old;
        if (to.merge) {  // all four lanes of a row read its LSE before one of them writes it
          warp_.lanes([&](int lane) {
            const int row = tile_row + row_of(lane, m, h);
            old[lane] = row < to.rows ? to.lse[row * to.lse_stride] : -INFINITY;
          });
          warp_.sync();
        }
        warp_.lanes([&](int lane) {
          const int row = tile_row + row_of(lane, m, h);
          if (row >= to.rows) return;
          const float sum = sum_[m][h][lane];
          float lse = sum > 0.0f ? (max_[m][h][lane] + Warp::log2(sum)) * 0.69314718056f
                                 : -INFINITY;  // max is in units of log2 by now
          float scale = sum > 0.0f ? to.output_scale / sum : 0.0f, keep = 0.0f;
          if (to.merge) {
            const float top = fmaxf(lse, old[lane]);
            if (top == -INFINITY) return;  // neither saw a key: O and LSE stay
            const float mine = Warp::exp2((lse - top) * 1.44269504089f);
            const float theirs = Warp::exp2((old[lane] - top) * 1.44269504089f);
            scale *= mine / (mine + theirs);
            keep = theirs / (mine + theirs);
            lse = top + Warp::log2(mine + theirs) * 0.69314718056f;
          }
          if ((lane & 3) == 0) to.lse[row * to.lse_stride] = lse;
          float* const out = to.o + row * to.o_stride + (lane & 3) * 2;
          // All loads before the first store, and without a branch: else each waits for the last
          // (a store might be what it reads), and ptxas has no registers left for wgmma.
          float before[kDim / 8][2];
          LONGNET_UNROLL
          for (int n = 0; n < kDim / 8; ++n) {
            const bool want = to.merge && n * 8 < to.head_dim;
            before[n][0] = want ? out[n * 8] : 0.0f;
            before[n][1] = want ? out[n * 8 + 1] : 0.0f;
          }
          LONGNET_UNROLL
          for (int n = 0; n < kDim / 8; ++n)
            if (n * 8 < to.head_dim)
              Warp::store2(out + n * 8, o[m][n][2 * h][lane] * scale + keep * before[n][0],
                           o[m][n][2 * h + 1][lane] * scale + keep * before[n][1]);
        });
      }
    }
  }

  LONGNET_HOST_DEVICE int row_of(int lane, int m, int h) const {
    return first_row_ + m * 16 + accumulator_row(lane, 2 * h);
  }

  Reg<float> o[kM][kDim / 8][4];

 protected:
  Warp warp_;
  int first_row_ = 0;

 private:
  Reg<float> max_[kM][2], sum_[kM][2];
};

}  // namespace longnet
