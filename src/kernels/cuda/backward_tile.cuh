// The backward pass of the `cuda` kernel: products by mma.sync m16n8k16, sm_80 on.
#pragma once
#include "kernels/cuda/backward_rows.cuh"

namespace longnet {

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

// The 16 kM rows of one warp.
template <bool kRowsAreKeys, class Shape>
class BackwardWarp : public BackwardTileRows<kRowsAreKeys, Shape> {
  using Base = BackwardTileRows<kRowsAreKeys, Shape>;

 public:
  __device__ __forceinline__ BackwardWarp(uint32_t shared, int tile_row) : Base(shared, tile_row) {}

  // Adds the products with the columns of `stage`.
  __device__ __forceinline__ void step(const BackwardInputs& in, const typename Base::Tiles& tile,
                                       int stage) {
    const auto a = this->shared_ + uint32_t(Shape::columns_offset(stage));
    const uint32_t b = a + uint32_t(Shape::kColumnBytes);
    typename Base::Products p, d;
    multiply(p, 0, a);
    if (!tile.all_visible()) this->mask(p, in, tile);
    this->weights(p, in.scale_log2, stage);
    if constexpr (kRowsAreKeys) add_weighted_rows<Shape>(this->second_, p, b);
    multiply(d, Shape::kRowBytes, b);
    this->differences(d, p, in.output_scale, stage);
    add_weighted_rows<Shape>(this->first_, d, a);
  }

 private:
  __device__ __forceinline__ void multiply(typename Base::Products& c, int rows_offset,
                                           uint32_t columns) const {
    Fragment a[Shape::kM];
    multiply_rows<Shape>(c, columns, [&](int k) -> const Fragment(&)[Shape::kM] {
      load_operand<Shape>(a, this->shared_ + uint32_t(rows_offset), Base::first_row(), k);
      return a;
    });
  }
};

template <bool kRowsAreKeys, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerSm)
    backward_kernel(const __grid_constant__ BackwardInputs in) {
  using Tiles = ColumnTiles<kRowsAreKeys, Shape::kRows, Shape::kColumns>;
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t shared = uint32_t(__cvta_generic_to_shared(memory));
  const int thread = int(threadIdx.x);
  const BackwardTile tile = in.tiles[blockIdx.x];
  const BlockRows<kRowsAreKeys> block(in, tile);
  Tiles here(in, tile);
  bool more = here.next(in);
  if (!more) return;
  BackwardWarp<kRowsAreKeys, Shape> rows(shared, tile.row);
  load_pair<Shape, Shape::kRows>(shared, block.pair, tile.row, block.end, in.head_dim);

  // Statistics of column `thread` come by a register.
  const bool brings_statistics = kRowsAreKeys && thread < Shape::kColumns;
  float2 statistics{};
  const auto load_columns = [&](const Tiles& of, int stage) {
    load_pair<Shape, Shape::kColumns>(shared + uint32_t(Shape::columns_offset(stage)),
                                      of.columns(in), of.first(), of.end(), in.head_dim);
    commit_copies();
    if constexpr (kRowsAreKeys)
      if (brings_statistics) statistics = statistics_of(of.task(in), of.first() + thread);
  };
  const auto store = [&](int stage) {
    if (brings_statistics) store_statistics<Shape>(shared, stage, thread, statistics);
  };
  load_columns(here, 0);
  store(0);
  if constexpr (!kRowsAreKeys) rows.load_statistics(in.tasks[block.owner]);
  for (int stage = 0; more; stage ^= 1) {
    wait_for_copies();
    __syncthreads();  // the tile has arrived for all, and no warp reads the other stage now
    auto next = here;
    more = next.next(in);
    if (more) load_columns(next, stage ^ 1);
    rows.step(in, here, stage);
    if (more) store(stage ^ 1);
    here = next;
  }
  rows.finish(in, block);
}

}  // namespace longnet
