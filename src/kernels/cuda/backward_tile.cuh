// The backward pass of the `cuda` kernel on mma.sync m16n8k16, sm_80 on: with S the scores,
//   P = exp(S - L)   dV += P^T dO   dP = dO V^T   dS = P (dP - delta)   dQ += dS K   dK += dS^T Q
//
// Two kernels of one form (FlashAttention-2's; Dao, 2023), each of which computes S and dP: a block
// has rows of two tensors and walks the rows of the other two, its columns. Where its rows are
// queries it has dQ in registers, where they are keys dK and dV, of S^T and dP^T. 7 products of
// tiles in all, for the 5 that atomic additions to dQ would leave: sums have one order.
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/cuda/backward_layout.h"
#include "kernels/cuda/tile_products.cuh"

namespace longnet {

constexpr float kLog2OfE = 1.44269504089f;

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

// Rows [first, first + kRows) of both into tiles that follow each other; those from `end` on become
// zero.
template <class Shape, int kRows>
__device__ __forceinline__ void load_pair(uint32_t into, const RowPair& from, int first, int end,
                                          int head_dim) {
  const int thread = int(threadIdx.x), chunk = thread % Shape::kChunks;
#pragma unroll
  for (int pass = 0; pass < kRows / Shape::kRowsPerPass; ++pass) {
    const int row = thread / Shape::kChunks + pass * Shape::kRowsPerPass;
    const bool valid = chunk * 8 < head_dim && first + row < end;
    const int64_t at = valid ? (first + row) * from.stride + chunk * 8 : 0;
    const uint32_t place = into + uint32_t(chunk_offset<Shape>(row, chunk));
    copy16(place, from.a + at, valid);
    copy16(place + uint32_t(kRows * Shape::kDim * 2), from.b + at, valid);
  }
}

// The first row of a task of `rows` that sees the key number `key` of a run, under a mask.
__device__ __forceinline__ int first_row_to_see(const KeyLimit& limit, int key, int rows) {
  int low = 0, high = rows;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (limit.visible(middle) > key)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// The tiles of columns that a block's rows [row, row + rows) have something to do with. A tile has
// columns of one run of keys, or of one task.
template <bool kRowsAreKeys, int kColumns>
class ColumnTiles {
 public:
  __device__ __forceinline__ ColumnTiles(const BackwardInputs& in, const BackwardTile& tile,
                                         int rows)
      : row_(tile.row), rows_(rows) {
    if constexpr (kRowsAreKeys) {
      const KeyGroup group = in.groups[tile.owner];
      at_ = group.first_source - 1, left_ = group.num_sources;
    } else {
      const BackwardRows& task = in.tasks[tile.owner];
      at_ = task.first_run - 1, left_ = task.num_runs;
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
        column_ = in.causal ? first_row_to_see(keys, row_, end_) : 0;
        edge_ = in.causal ? first_row_to_see(keys, row_ + rows_ - 1, end_) : 0;
      } else {
        end_ = in.causal ? keys.visible(row_ + rows_ - 1) : keys.rows;
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
  int row_, rows_, at_, left_;
  int column_ = 0, end_ = 0;
  int edge_ = 0;  // all rows see the columns before it, or are seen by those from it on
};

// The 16 kM rows of one warp.
template <bool kRowsAreKeys, class Shape, class Element>
class BackwardWarp {
 public:
  static constexpr int kM = Shape::kM, kDim = Shape::kDim, kColumns = Shape::kColumns;
  using Tiles = ColumnTiles<kRowsAreKeys, kColumns>;

  // `memory`: the block's shared memory; `tile_row`: the first of the block's rows.
  __device__ __forceinline__ BackwardWarp(const unsigned char* memory, uint32_t shared,
                                          int tile_row)
      : memory_(memory),
        shared_(shared),
        first_row_(int(threadIdx.x >> 5) * 16 * kM),
        tile_row_(tile_row) {
    set_zero(first_);
    if constexpr (kRowsAreKeys) set_zero(second_);
  }

  __device__ __forceinline__ void load_statistics(const BackwardRows& task) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = tile_row_ + row_of(m, h);
        const float* const at = task.statistics + row * task.statistics_stride;
        minus_log2_[m][h] = row < task.rows ? minus_log2(at[0]) : -INFINITY;
        delta_[m][h] = row < task.rows ? at[1] : 0.0f;
      }
    }
  }

  __device__ __forceinline__ void step(const BackwardInputs& in, const Tiles& tile, int stage) {
    const auto a = shared_ + uint32_t(Shape::columns_offset(stage));
    const uint32_t b = a + uint32_t(Shape::kColumnBytes);
    Products p, d;
    multiply(p, 0, a);
    if (!tile.all_visible()) mask(p, in, tile);
    weights(p, in.scale_log2, stage);
    if constexpr (kRowsAreKeys) add_weighted_rows<Shape, Element>(second_, p, b);
    multiply(d, Shape::kRowBytes, b);
    differences(d, p, in.output_scale, stage);
    add_weighted_rows<Shape, Element>(first_, d, a);
  }

  // Adds the sums to rows of dQ, or of dK and dV, which end at row `rows`.
  __device__ __forceinline__ void finish(const BackwardInputs& in, float* first, float* second,
                                         int64_t stride, int rows) const {
    add_to_rows(first_, in.scale, first, stride, rows, in.head_dim);
    if constexpr (kRowsAreKeys)
      add_to_rows(second_, in.output_scale, second, stride, rows, in.head_dim);
  }

 private:
  using Products = float[kM][kColumns / 8][4];
  using Sums = float[kM][kDim / 8][4];

  // L = -inf, of a row without keys, counts as +inf: P = 0.
  static __device__ __forceinline__ float minus_log2(float lse) {
    return lse == -INFINITY ? -INFINITY : -lse * kLog2OfE;
  }
  __device__ __forceinline__ int row_of(int m, int h) const {
    return first_row_ + m * 16 + accumulator_row(lane_of_thread(), 2 * h);
  }
  static __device__ __forceinline__ int column_of(int n, int i) {
    return n * 8 + accumulator_column(lane_of_thread(), i);
  }
  // L and delta of columns 8 n + 0 and + 1 of this lane.
  __device__ __forceinline__ float4 column_statistics(int n, int stage) const {
    return *reinterpret_cast<const float4*>(memory_ + Shape::statistics_offset(stage) +
                                            column_of(n, 0) * 8);
  }

  __device__ __forceinline__ void multiply(Products& c, int rows_offset, uint32_t columns) const {
    Fragment a[kM];
    multiply_rows<Shape, Element>(c, columns, [&](int k) -> const Fragment(&)[kM] {
      load_operand<Shape>(a, shared_ + uint32_t(rows_offset), first_row_, k);
      return a;
    });
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
        of_column[0] = minus_log2(statistics.x);
        of_column[1] = minus_log2(statistics.z);
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

  __device__ __forceinline__ void add_to_rows(const Sums& sums, float factor, float* first,
                                              int64_t stride, int rows, int head_dim) const {
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
          if (row < rows && n * 8 < head_dim)
            store_pair(out + n * 8, before[h][n].x + sums[m][n][2 * h] * factor,
                       before[h][n].y + sums[m][n][2 * h + 1] * factor);
      }
    }
  }

  const unsigned char* memory_;
  uint32_t shared_;
  int first_row_, tile_row_;
  float minus_log2_[kM][2], delta_[kM][2];  // statistics of query rows
  Sums first_;                              // sums of dQ or dK
  Sums second_;                             // sums of dV
};

template <bool kRowsAreKeys, class Shape>
__device__ __forceinline__ void load_columns(
    const BackwardInputs& in, uint32_t shared, int stage,
    const ColumnTiles<kRowsAreKeys, Shape::kColumns>& tile) {
  load_pair<Shape, Shape::kColumns>(shared + uint32_t(Shape::columns_offset(stage)),
                                    tile.columns(in), tile.first(), tile.end(), in.head_dim);
  if constexpr (kRowsAreKeys) {
    const int thread = int(threadIdx.x), column = tile.first() + thread;
    if (thread >= Shape::kColumns) return;
    const BackwardRows& task = tile.task(in);
    const bool valid = column < tile.end();
    copy8(shared + uint32_t(Shape::statistics_offset(stage) + thread * 8),
          task.statistics + (valid ? column * task.statistics_stride : 0), valid);
  }
}

template <bool kRowsAreKeys, class Shape, class Element>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerSm)
    backward_kernel(const __grid_constant__ BackwardInputs in) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t shared = uint32_t(__cvta_generic_to_shared(memory));
  const BackwardTile tile = in.tiles[blockIdx.x];
  // Rows of dK and dV are those of a group's first run.
  const int owner = kRowsAreKeys ? in.sources[in.groups[tile.owner].first_source].run : tile.owner;
  const int end = kRowsAreKeys ? in.runs[owner].limit.rows : in.tasks[owner].rows;
  ColumnTiles<kRowsAreKeys, Shape::kColumns> here(in, tile, min(Shape::kRows, end - tile.row));
  bool more = here.next(in);
  if (!more) return;
  BackwardWarp<kRowsAreKeys, Shape, Element> rows(memory, shared, tile.row);
  const RowPair own = kRowsAreKeys ? pair_of(in.runs[owner]) : pair_of(in.tasks[owner]);
  load_pair<Shape, Shape::kRows>(shared, own, tile.row, end, in.head_dim);
  load_columns<kRowsAreKeys, Shape>(in, shared, 0, here);
  commit_copies();
  if constexpr (!kRowsAreKeys) rows.load_statistics(in.tasks[owner]);
  for (int stage = 0; more; stage ^= 1) {
    wait_for_copies();
    __syncthreads();  // the tile has arrived for all, and no warp reads the other stage now
    auto next = here;
    more = next.next(in);
    if (more) {
      load_columns<kRowsAreKeys, Shape>(in, shared, stage ^ 1, next);
      commit_copies();
    }
    rows.step(in, here, stage);
    here = next;
  }
  if constexpr (kRowsAreKeys)
    rows.finish(in, in.runs[owner].grad_k, in.runs[owner].grad_v, own.stride, end);
  else
    rows.finish(in, in.tasks[owner].grad_q, nullptr, own.stride, end);
}

}  // namespace longnet
