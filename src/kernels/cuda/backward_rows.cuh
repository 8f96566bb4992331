// The backward pass of the own kernels; with S the scores,
//   P = exp(S - L)   dV += P^T dO   dP = dO V^T   dS = P (dP - delta)   dQ += dS K   dK += dS^T Q
//
// Two kernels of one form (FlashAttention-2's; Dao, 2023), each of which computes S and dP: a block
// has rows of two tensors and walks the rows of the other two, its columns, tile by tile.
//
//   kernel      kRowsAreKeys   rows    columns   of each tile   sums in registers
//   dQ          false          Q, dO   K, V      S, dP          dQ += dS K
//   dK and dV   true           K, V    Q, dO     S^T, dP^T      dK += dS^T Q, dV += P^T dO
//
//   128 rows that are queries, columns in tiles of 32 keys, causal (BlockRows, ColumnTiles):
//
//     rows 128..255    keys 0..31 | 32..63 | 64..95 | 96..127 | 128..159 | ... | 224..255
//                      all_visible()                          | masked where key > query
//
// Both kernels together have 7 products of tiles, where one with atomic additions to dQ would have
// 5: sums have one order. BackwardTileRows is a warp's part of a block; its products are those of
// backward_tile.cuh (mma.sync) or of backward_group.cuh (wgmma).
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/cuda/backward_layout.h"
#include "kernels/cuda/tile_products.cuh"

namespace longnet {

constexpr float kLog2OfE = 1.44269504089f;

// L and delta of a row of a task. Rows behind the last have L = -inf, as rows without keys.
__device__ __forceinline__ float2 statistics_of(const BackwardRows& task, int row) {
  if (row >= task.rows) return {-INFINITY, 0.0f};
  const float* const at = task.statistics + row * task.statistics_stride;
  return {at[0], at[1]};
}
// -L in units of log2. L = -inf counts as +inf: P = 0.
__device__ __forceinline__ float minus_log2(float lse) {
  return lse == -INFINITY ? -INFINITY : -lse * kLog2OfE;
}

// Two tensors with the same rows: Q and dO, or K and V.
struct RowPair {
  const uint16_t *a, *b;
  int64_t stride;
};
__device__ __forceinline__ RowPair pair_of(const BackwardRows& task) {
  return {static_cast<const uint16_t*>(task.q), static_cast<const uint16_t*>(task.grad_out),
          task.stride};
}
__device__ __forceinline__ RowPair pair_of(const BackwardRun& run) {
  return {static_cast<const uint16_t*>(run.k), static_cast<const uint16_t*>(run.v), run.stride};
}

// The tiles of columns that the kRows rows of a block have something to do with, where there are so
// many. A tile has columns of one run of keys, or of one task.
template <bool kRowsAreKeys, int kRows, int kColumns>
class ColumnTiles {
 public:
  __device__ __forceinline__ ColumnTiles(const BackwardInputs& in, const BackwardTile& tile)
      : row_(tile.row) {
    if constexpr (kRowsAreKeys) {
      const KeyGroup group = in.groups[tile.owner];
      at_ = group.first_source - 1, left_ = group.num_sources;
    } else {
      const BackwardRows& task = in.tasks[tile.owner];
      at_ = task.first_run - 1, left_ = task.num_runs;
      last_ = min(row_ + kRows, task.rows) - 1;
    }
  }
  __device__ __forceinline__ bool next(const BackwardInputs& in) {
    column_ += kColumns;
    while (column_ >= end_) {
      if (left_-- == 0) return false;
      ++at_;
      const KeyLimit& keys = limit(in);
      if constexpr (kRowsAreKeys) {
        end_ = task(in).rows;
        column_ = in.causal ? keys.first_to_see(row_, end_) : 0;
        edge_ = in.causal ? keys.first_to_see(row_ + kRows - 1, end_) : 0;
      } else {
        end_ = in.causal ? keys.visible(last_) : keys.rows;
        column_ = 0;
        edge_ = in.causal ? keys.visible(row_) : keys.rows;
      }
    }
    return true;
  }
  __device__ __forceinline__ RowPair columns(const BackwardInputs& in) const {
    if constexpr (kRowsAreKeys)
      return pair_of(task(in));
    else
      return pair_of(in.runs[at_]);
  }
  __device__ __forceinline__ PlacePair place(const BackwardInputs& in) const {
    if constexpr (kRowsAreKeys)
      return task(in).place;
    else
      return in.runs[at_].place;
  }
  __device__ __forceinline__ const BackwardRows& task(const BackwardInputs& in) const {
    return in.tasks[in.sources[at_].task];
  }
  __device__ __forceinline__ int first() const { return column_; }
  __device__ __forceinline__ int end() const { return end_; }
  // Whether every row sees every column, or is seen by it. Columns behind the last query are zero:
  // they add nothing.
  __device__ __forceinline__ bool all_visible() const {
    return kRowsAreKeys ? column_ >= edge_ : column_ + kColumns <= edge_;
  }
  __device__ __forceinline__ const KeyLimit& limit(const BackwardInputs& in) const {
    return in.runs[kRowsAreKeys ? in.sources[at_].run : at_].limit;
  }

 private:
  int row_, at_, left_;
  int last_ = 0;  // last row, where rows are queries
  int column_ = 0, end_ = 0;
  int edge_ = 0;  // all rows see the columns before it, or are seen by those from it on
};

// Statistics of a column, for BackwardTileRows; `shared`: the block's shared memory.
template <class Shape>
__device__ __forceinline__ void store_statistics(uint32_t shared, int stage, int column,
                                                 const float2& statistics) {
  store_shared(shared + uint32_t(Shape::statistics_offset(stage) + column * 8),
               {minus_log2(statistics.x), statistics.y});
}

// The rows of a block.
template <bool kRowsAreKeys>
struct BlockRows {
  int owner;  // a task, or the first run of a group of keys: rows of dK and dV are its rows
  int first, end;
  RowPair pair;
  __device__ __forceinline__ BlockRows(const BackwardInputs& in, const BackwardTile& tile)
      : owner(kRowsAreKeys ? in.sources[in.groups[tile.owner].first_source].run : tile.owner),
        first(tile.row),
        end(kRowsAreKeys ? in.runs[owner].limit.rows : in.tasks[owner].rows) {
    if constexpr (kRowsAreKeys)
      pair = pair_of(in.runs[owner]);
    else
      pair = pair_of(in.tasks[owner]);
  }
  __device__ __forceinline__ PlacePair place(const BackwardInputs& in) const {
    return kRowsAreKeys ? in.runs[owner].place : in.tasks[owner].place;
  }
};

// Rows of a block that one warp has: their mask, P, dS and statistics, in registers of mma
// accumulators, whose layout wgmma has too (softmax_rows.cuh). Rows' scores are of columns of one
// tile.
template <bool kRowsAreKeys_, class Shape_>
class BackwardTileRows {
 public:
  using Shape = Shape_;
  static constexpr bool kRowsAreKeys = kRowsAreKeys_;
  static constexpr int kM = Shape::kM, kDim = Shape::kDim, kColumns = Shape::kColumns;
  using Tiles = ColumnTiles<kRowsAreKeys, Shape::kRows, kColumns>;

  // `shared`: the block's shared memory; `tile_row`: the first of the block's rows.
  __device__ __forceinline__ BackwardTileRows(uint32_t shared, int tile_row)
      : shared_(shared), tile_row_(tile_row) {
    set_zero(first_);
    if constexpr (kRowsAreKeys) set_zero(second_);
  }

  __device__ __forceinline__ void load_statistics(const BackwardRows& task) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 statistics = statistics_of(task, tile_row_ + row_of(m, h));
        minus_log2_[m][h] = minus_log2(statistics.x);
        delta_[m][h] = statistics.y;
      }
    }
  }

  // Adds the sums to rows of dQ, or of dK and dV.
  __device__ __forceinline__ void finish(const BackwardInputs& in,
                                         const BlockRows<kRowsAreKeys>& block) const {
    if constexpr (kRowsAreKeys) {
      const BackwardRun& run = in.runs[block.owner];
      add_to_rows(first_, in.scale, run.grad_k, block, in.head_dim);
      add_to_rows(second_, in.output_scale, run.grad_v, block, in.head_dim);
    } else {
      add_to_rows(first_, in.scale, in.tasks[block.owner].grad_q, block, in.head_dim);
    }
  }

 protected:
  using Products = float[kM][kColumns / 8][4];
  using Sums = float[kM][kDim / 8][4];

  // The first row of this warp.
  static __device__ __forceinline__ int first_row() { return int(threadIdx.x >> 5) * 16 * kM; }
  static __device__ __forceinline__ int row_of(int m, int h) {
    return first_row() + m * 16 + accumulator_row(lane_of_thread(), 2 * h);
  }
  static __device__ __forceinline__ int column_of(int n, int i) {
    return n * 8 + accumulator_column(lane_of_thread(), i);
  }
  // Statistics of columns 8 n + 0 and + 1 of this lane.
  __device__ __forceinline__ float4 column_statistics(int n, int stage) const {
    return load_shared(shared_ + uint32_t(Shape::statistics_offset(stage) + column_of(n, 0) * 8));
  }

  // Scores of pairs that the mask hides become -inf. What a query sees is looked up once for each
  // of a lane's rows or columns.
  __device__ __forceinline__ void mask(Products& s, const BackwardInputs& in,
                                       const Tiles& tile) const {
    const KeyLimit limit = tile.limit(in);
    const auto seen_by = [&](int query) { return in.causal ? limit.visible(query) : limit.rows; };
#pragma unroll
    for (int a = 0; a < (kRowsAreKeys ? kColumns / 4 : 2 * kM); ++a) {
      // Column 8 n + i of this lane, or row 16 m + 8 h.
      const int mine =
          kRowsAreKeys ? tile.first() + column_of(a / 2, a % 2) : tile_row_ + row_of(a / 2, a % 2);
      const int seen = seen_by(mine);
#pragma unroll
      for (int b = 0; b < (kRowsAreKeys ? 2 * kM : kColumns / 4); ++b) {
        const int key = kRowsAreKeys ? tile_row_ + row_of(b / 2, b % 2)
                                     : tile.first() + column_of(b / 2, b % 2);
        const int row = kRowsAreKeys ? b : a, column = kRowsAreKeys ? a : b;
        if (key >= seen) s[row / 2][column / 2][2 * (row % 2) + column % 2] = -INFINITY;
      }
    }
  }

  // Scores become P.
  __device__ __forceinline__ void weights(Products& s, float scale_log2, int stage) const {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      float of_column[2];
      if constexpr (kRowsAreKeys) {
        const float4 statistics = column_statistics(n, stage);
        of_column[0] = statistics.x;
        of_column[1] = statistics.z;
      }
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          s[m][n][i] = approximate_exp2(fmaf(
              s[m][n][i], scale_log2, kRowsAreKeys ? of_column[i & 1] : minus_log2_[m][i >> 1]));
      }
    }
  }

  // dP becomes dS.
  __device__ __forceinline__ void differences(Products& d, const Products& p, float output_scale,
                                              int stage) const {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      float of_column[2];
      if constexpr (kRowsAreKeys) {
        const float4 statistics = column_statistics(n, stage);
        of_column[0] = statistics.y;
        of_column[1] = statistics.w;
      }
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          d[m][n][i] = p[m][n][i] * fmaf(d[m][n][i], output_scale,
                                         -(kRowsAreKeys ? of_column[i & 1] : delta_[m][i >> 1]));
      }
    }
  }

  uint32_t shared_;
  int tile_row_;
  Sums first_;   // sums of dQ or dK
  Sums second_;  // sums of dV

 private:
  __device__ __forceinline__ void add_to_rows(const Sums& sums, float factor, float* first,
                                              const BlockRows<kRowsAreKeys>& block,
                                              int head_dim) const {
    const int64_t stride = block.pair.stride;
    const int rows = block.end;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float2 before[2][kDim / 8];  // all loads before the first store
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = tile_row_ + row_of(m, h);
        const float* const from = first + row * stride + column_of(0, 0);
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n)
          before[h][n] =
              load_pair(from + n * 8, aligned_to_pairs(from), row < rows && n * 8 < head_dim);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = tile_row_ + row_of(m, h);
        float* const out = first + row * stride + column_of(0, 0);
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n)
          if (row < rows && n * 8 < head_dim)  // a branch: no load is moved behind a store
            store_pair(out + n * 8, before[h][n].x + sums[m][n][2 * h] * factor,
                       before[h][n].y + sums[m][n][2 * h + 1] * factor, aligned_to_pairs(out),
                       true);
      }
    }
  }

  float minus_log2_[kM][2], delta_[kM][2];  // statistics of query rows
};

}  // namespace longnet
