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

// This thread's chunks of a task's keys and values, kRowsPerPass keys apart, tile after tile. What
// it knows of a run stays in registers: most tasks have one.
template <class Shape>
class KeyRows {
 public:
  __device__ __forceinline__ explicit KeyRows(const TileTask& task)
      : k_(static_cast<const char*>(task.q)),  // copies of no bytes have an address, too
        v_(k_),
        left_(-(int(threadIdx.x) / Shape::kChunks)),
        run_(task.first_run - 1) {}
  __device__ __forceinline__ int run() const { return run_; }
  // The next tile, from `key` on, into a stage; keys from `end` on become zero.
  __device__ __forceinline__ void load(const TileInputs& in, uint32_t shared, int stage, int key,
                                       int end) {
    const int chunk = int(threadIdx.x) % Shape::kChunks;
#pragma unroll
    for (int pass = 0; pass < Shape::kKeys / Shape::kRowsPerPass; ++pass) {
      const int row = int(threadIdx.x) / Shape::kChunks + pass * Shape::kRowsPerPass;
      const bool valid = key + row < end;
      if (valid && left_ <= 0) enter_later_run(in);
      const uint32_t into = shared + uint32_t(chunk_offset<Shape>(row, chunk));
      const bool inside = valid && chunk * 8 < in.head_dim;
      copy16(into + uint32_t(Shape::k_offset(stage)), k_, inside);
      copy16(into + uint32_t(Shape::v_offset(stage)), v_, inside);
      k_ += step_;
      v_ += step_;
      left_ -= Shape::kRowsPerPass;
    }
  }

 private:
  __device__ __forceinline__ void enter_later_run(const TileInputs& in) {
    do left_ += in.runs[++run_].rows;
    while (left_ <= 0);
    const TileRun& run = in.runs[run_];
    step_ = Shape::kRowsPerPass * 2 * run.stride;
    const int64_t at = (run.rows - left_) * run.stride + int(threadIdx.x) % Shape::kChunks * 8;
    k_ = reinterpret_cast<const char*>(static_cast<const uint16_t*>(run.k) + at);
    v_ = reinterpret_cast<const char*>(static_cast<const uint16_t*>(run.v) + at);
  }

  const char *k_, *v_;  // the row that is next
  int64_t step_ = 0;    // bytes from one to the next
  int left_;            // rows of the run from it on; at most 0: it is in a later run
  int run_;
};

// Query rows of one warp, and its work on each key tile.
template <class Shape>
class WarpTile : public SoftmaxRows<Shape::kM, Shape::kDim, Shape::kKeys> {
  using Rows = SoftmaxRows<Shape::kM, Shape::kDim, Shape::kKeys>;
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

  // Keys [key, key + kKeys) of the task are in stage `stage`; `run` is at or before them.
  __device__ __forceinline__ void step(const TileInputs& in, const TileRef& tile, int stage,
                                       int key, int run) {
    Scores s;
    multiply_rows<Shape>(s, shared_ + uint32_t(Shape::k_offset(stage)),
                         [&](int k) -> const Fragment(&)[kM] {
                           if constexpr (!Shape::kQInRegisters)
                             load_operand<Shape>(q_[k], shared_, first_row_, k);
                           return q_[k];
                         });
    if (key + kKeys > tile.unmasked) mask(s, in, tile, key, run);
    Factors shrink;
    this->softmax(s, in.scale_log2, shrink);
    this->rescale(shrink);
    add_weighted_rows<Shape>(o, s, shared_ + uint32_t(Shape::v_offset(stage)));
  }

 private:
  // Run by run: a row sees the first keys of each.
  __device__ __forceinline__ void mask(Scores& s, const TileInputs& in, const TileRef& tile,
                                       int key, int at) const {
    int begin = 0;
    while (begin < kKeys && key + begin < tile.keys) {
      while (key + begin >= in.runs[at].begin + in.runs[at].rows) ++at;
      const TileRun& run = in.runs[at];
      // Column `begin` holds key begin - shift of the run.
      const int shift = begin - (key + begin - run.begin), end = min(run.rows + shift, kKeys);
      this->mask_columns(s, begin, end, [&](int m, int h) {
        const int row = tile.row + this->row_of(m, h);
        return min((in.causal ? run.limit.visible(row) : run.rows) + shift, end);
      });
      begin = end;
    }
    if (begin < kKeys) this->mask_columns(s, begin, kKeys, [](int, int) { return 0; });
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

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerSm)
    attend_kernel(const __grid_constant__ TileInputs in) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t shared = uint32_t(__cvta_generic_to_shared(memory));
  const TileRef tile = in.tiles[blockIdx.x];  // in registers: copies clobber memory
  const TileTask& task = in.tasks[tile.task];
  KeyRows<Shape> keys(task);
  int here = task.first_run;  // a run at or before the keys of this tile
  WarpTile<Shape> rows;
  rows.begin(shared, int(threadIdx.x >> 5) * 16 * Shape::kM);
  if (tile.keys > 0) {
    load_queries<Shape>(shared, in, tile);
    keys.load(in, shared, 0, 0, tile.keys);
    commit_copies();
  }
  int stage = 0;
  for (int key = 0; key < tile.keys; key += Shape::kKeys, stage ^= 1) {
    wait_for_copies();
    __syncthreads();  // the tile has arrived for all, and no warp reads the other stage now
    const int next = max(here, keys.run());
    if (key + Shape::kKeys < tile.keys) {
      keys.load(in, shared, stage ^ 1, key + Shape::kKeys, tile.keys);
      commit_copies();
    }
    if (key == 0) rows.load_queries();
    rows.step(in, tile, stage, key, here);
    here = next;
  }
  rows.finish(task, in, tile.row);
}

}  // namespace longnet
