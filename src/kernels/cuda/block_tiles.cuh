// Iterators over the tiles of query rows of a block of the `cuda_sm90a` kernel and over the key
// tiles of each. Every warp has iterators of its own.
//
//   rows 0 ... 383 in tiles of 192, causal, key tiles of 128: keys 0, 128 of the first tile, then
//   keys 0, 128, 256 of the second
#pragma once
#include "kernels/cuda/group_layout.h"
#include "kernels/cuda/tile_products.cuh"

namespace longnet {

// The first of a consumer warp's 16 rows in a tile. (Warps 0 to 3 load.)
__device__ __forceinline__ int first_row_of_warp() { return (int(threadIdx.x) / 32 - 4) * 16; }

// The key tiles that rows of a task see, up to row `last`: producer and consumers walk the same
// ones. A tile holds keys of one run. Small on purpose: consumers have few registers to spare.
template <int kKeys>
class KeyTiles {
 public:
  KeyTiles() = default;
  // `row`: a lane has this one and the eighth behind it.
  __device__ __forceinline__ KeyTiles(const GroupTask& task, int row, int last)
      : run_(task.first_run - 1), left_(task.num_runs), row_(row), last_(last) {}
  __device__ __forceinline__ bool next(const GroupInputs& in) {
    key_ += kKeys;
    while (key_ >= visible_) {
      if (left_-- == 0) return false;
      ++run_;
      key_ = 0;
      visible_ = seen_by(in, last_);
      seen_[0] = seen_by(in, row_);
      seen_[1] = seen_by(in, row_ + 8);
    }
    return true;
  }
  __device__ __forceinline__ const GroupRun& run(const GroupInputs& in) const {
    return in.runs[run_];
  }
  __device__ __forceinline__ int run_index() const { return run_; }
  __device__ __forceinline__ int key() const { return key_; }  // the tile's first key in the run
  // Columns of the tile that row h of the lane sees; may be negative or beyond kKeys.
  __device__ __forceinline__ int limit(int h) const { return seen_[h] - key_; }

 private:
  __device__ __forceinline__ int seen_by(const GroupInputs& in, int row) const {
    const KeyLimit& keys = run(in).limit;
    return in.causal ? keys.visible(row) : keys.rows;
  }
  int run_ = 0, left_ = 0, row_ = 0, last_ = 0;
  int key_ = 0, visible_ = 0, seen_[2] = {0, 0};
};

// The key tiles of a block's tiles, one tile after the other.
template <class Shape>
class BlockTiles {
 public:
  __device__ __forceinline__ explicit BlockTiles(const GroupInputs& in)
      : next_(in.block_begin[blockIdx.x]) {}
  // On to the next key tile, of this tile or of the next one; false behind the last one.
  __device__ __forceinline__ bool next(const GroupInputs& in) {
    begins_ = !keys_.next(in);
    return !begins_ || next_tile(in);
  }
  // Whether it is the first of a tile.
  __device__ __forceinline__ bool begins() const { return begins_; }
  // This tile of rows, and the one before it.
  __device__ __forceinline__ const GroupTile& tile(const GroupInputs& in) const {
    return in.tiles[next_ - 1];
  }
  __device__ __forceinline__ const GroupTile& last_tile(const GroupInputs& in) const {
    return in.tiles[next_ - 2];
  }
  __device__ __forceinline__ const KeyTiles<Shape::kKeys>& keys() const { return keys_; }

 private:
  __device__ __forceinline__ bool next_tile(const GroupInputs& in) {
    if (next_ == in.block_begin[blockIdx.x + 1]) return false;
    const GroupTile tile = in.tiles[next_];
    const GroupTask& task = in.tasks[tile.task];
    const int own = tile.row + first_row_of_warp() + accumulator_row(lane_of_thread(), 0);
    const int end = tile.row + Shape::kRows < task.rows ? tile.row + Shape::kRows : task.rows;
    keys_ = KeyTiles<Shape::kKeys>(task, own, end - 1);
    ++next_;
    return keys_.next(in);
  }
  int next_;
  bool begins_ = false;
  KeyTiles<Shape::kKeys> keys_;
};

}  // namespace longnet
