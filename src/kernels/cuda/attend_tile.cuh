// The `cuda` kernel: FlashAttention-2 (Dao, 2023) on mma.sync m16n8k16, sm_80 on.
//
// A block of four warps owns kRows query rows of one task and walks the task's keys in tiles of
// kKeys, double-buffered in shared memory.
//
//   d = 64, 300 keys, 128 x 64 tiles: 5 key tiles; the last holds 44 keys, the mask hides the rest.
#pragma once
#include <cstdint>

#include "kernels/cuda/softmax_rows.cuh"
#include "kernels/cuda/tile_layout.h"

namespace longnet {

// Finds the run of ascending keys.
class RunCursor {
 public:
  __device__ __forceinline__ RunCursor(const TileRun* runs, int at, int end)
      : runs_(runs), at_(at), end_(end) {}
  __device__ __forceinline__ void advance_to(int64_t key) {
    while (at_ + 1 < end_ && key >= runs_[at_].begin + runs_[at_].rows) ++at_;
  }
  __device__ __forceinline__ const TileRun& run() const { return runs_[at_]; }

 private:
  const TileRun* runs_;
  int at_, end_;
};

// Query rows of one warp, and its work on each key tile.
template <class Shape, class Element>
class WarpTile : public SoftmaxRows<Shape::kM, Shape::kDim, Shape::kKeys, Element> {
  using Rows = SoftmaxRows<Shape::kM, Shape::kDim, Shape::kKeys, Element>;
  using Rows::first_row_;

 public:
  using Rows::o;
  using typename Rows::Factors, typename Rows::Scores;
  static constexpr int kM = Shape::kM, kDim = Shape::kDim, kKeys = Shape::kKeys;

  // `shared`: address of the block's tiles.
  __device__ __forceinline__ void begin(uint32_t shared, int first_row) {
    shared_ = shared;
    Rows::begin(first_row);
  }

  __device__ __forceinline__ void load_queries() {
    if constexpr (Shape::kQInRegisters) {
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) load_operand<Shape>(q_[k], shared_, first_row_, k);
    }
  }

  // Keys [key, key + kKeys) of the task are in stage `stage`; `cursor` is at or before them.
  __device__ __forceinline__ void step(const TileInputs& in, const TileRef& tile, int stage,
                                       int64_t key, const RunCursor& cursor) {
    Scores s;
    multiply_rows<Shape, Element>(s, shared_ + uint32_t(Shape::k_offset(stage)),
                                  [&](int k) -> const Fragment(&)[kM] {
                                    if constexpr (!Shape::kQInRegisters)
                                      load_operand<Shape>(q_[k], shared_, first_row_, k);
                                    return q_[k];
                                  });
    if (key + kKeys > tile.unmasked) mask(s, in, tile, key, cursor);
    Factors shrink;
    this->softmax(s, in.scale_log2, shrink);
    this->rescale(shrink);
    add_weighted_rows<Shape, Element>(o, s, shared_ + uint32_t(Shape::v_offset(stage)));
  }

 private:
  // Run by run: a row sees the first keys of each.
  __device__ __forceinline__ void mask(Scores& s, const TileInputs& in, const TileRef& tile,
                                       int64_t key, const RunCursor& cursor) const {
    RunCursor at = cursor;
    int begin = 0;
    while (begin < kKeys && key + begin < tile.keys) {
      at.advance_to(key + begin);
      const TileRun& run = at.run();
      // Column `begin` holds key begin - shift of the run.
      const int rows = int(run.rows), shift = begin - int(key + begin - run.begin);
      const int end = min(rows + shift, kKeys);
      this->mask_columns(s, begin, end, [&](int row) {
        return min((in.causal ? run.limit.visible(tile.row + row) : rows) + shift, end);
      });
      begin = end;
    }
    if (begin < kKeys) this->mask_columns(s, begin, kKeys, [](int) { return 0; });
  }

  uint32_t shared_;
  Fragment q_[kDim / 16][kM];  // loaded once, or with each key tile
};

// The tile's query rows; those beyond the task become zero.
template <class Shape>
__device__ __forceinline__ void load_queries(uint32_t shared, const TileInputs& in,
                                             const TileRef& tile) {
  const TileTask& task = in.tasks[tile.task];
  const int thread = int(threadIdx.x), chunk = thread % Shape::kChunks;
  const auto* const first =
      static_cast<const uint16_t*>(task.q) + int64_t{tile.row} * task.q_stride;
#pragma unroll
  for (int pass = 0; pass < Shape::kRows / Shape::kRowsPerPass; ++pass) {
    const int row = thread / Shape::kChunks + pass * Shape::kRowsPerPass;
    const bool valid = chunk * 8 < in.head_dim && tile.row + row < task.rows;
    copy16(shared + chunk_offset<Shape>(row, chunk),
           first + (valid ? row * task.q_stride + chunk * 8 : 0), valid);
  }
}

// Keys and values [key, key + kKeys) of the task into a stage; those beyond the tile's become zero.
template <class Shape>
__device__ __forceinline__ void load_keys(uint32_t shared, const TileInputs& in,
                                          const TileRef& tile, int stage, int64_t key,
                                          const RunCursor& cursor) {
  const int thread = int(threadIdx.x), chunk = thread % Shape::kChunks;
  const bool inside = chunk * 8 < in.head_dim;
  RunCursor at = cursor;
  const uint16_t *k, *v;  // this thread's chunk of the run's first row
  int64_t stride, begin, end;
  const auto enter_run = [&] {
    const TileRun& run = at.run();
    k = static_cast<const uint16_t*>(run.k) + chunk * 8;
    v = static_cast<const uint16_t*>(run.v) + chunk * 8;
    stride = run.stride;
    begin = run.begin;
    end = run.begin + run.rows;
  };
  enter_run();
#pragma unroll
  for (int pass = 0; pass < Shape::kKeys / Shape::kRowsPerPass; ++pass) {
    const int row = thread / Shape::kChunks + pass * Shape::kRowsPerPass;
    const int64_t index = key + row;
    const bool valid = inside && index < tile.keys;
    if (valid && index >= end) {
      at.advance_to(index);
      enter_run();
    }
    const int64_t from = valid ? (index - begin) * stride : 0;
    const int into = chunk_offset<Shape>(row, chunk);
    copy16(shared + uint32_t(Shape::k_offset(stage) + into), k + from, valid);
    copy16(shared + uint32_t(Shape::v_offset(stage) + into), v + from, valid);
  }
}

template <class Shape, class Element>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerSm)
    attend_kernel(const __grid_constant__ TileInputs in) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t shared = uint32_t(__cvta_generic_to_shared(memory));
  const TileRef tile = in.tiles[blockIdx.x];  // in registers: copies clobber memory
  const TileTask& task = in.tasks[tile.task];
  RunCursor here(in.runs, task.first_run, task.first_run + task.num_runs), ahead = here;
  WarpTile<Shape, Element> rows;
  rows.begin(shared, int(threadIdx.x >> 5) * 16 * Shape::kM);
  if (tile.keys > 0) {
    load_queries<Shape>(shared, in, tile);
    load_keys<Shape>(shared, in, tile, 0, 0, ahead);
    commit_copies();
  }
  int stage = 0;
  for (int64_t key = 0; key < tile.keys; key += Shape::kKeys, stage ^= 1) {
    wait_for_copies();
    __syncthreads();  // the tile has arrived for all, and no warp reads the other stage now
    if (key + Shape::kKeys < tile.keys) {
      ahead.advance_to(key + Shape::kKeys);
      load_keys<Shape>(shared, in, tile, stage ^ 1, key + Shape::kKeys, ahead);
      commit_copies();
    }
    here.advance_to(key);
    if (key == 0) rows.load_queries();
    rows.step(in, tile, stage, key, here);
  }
  rows.finish(task, in, tile.row);
}

}  // namespace longnet
