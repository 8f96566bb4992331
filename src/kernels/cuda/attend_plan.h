// Turns grids of attention tasks into the lists that the own kernels read: tasks, key runs and
// tiles of query rows; for `cuda_sm90a` also strided views, and the tiles of each block.
//
//   a task of 300 causal rows in tiles of 128: three tiles, the longest (rows 256..299) first
//   5 tiles of 4 4 3 2 1 key tiles on 2 blocks: block 0 does 4 and 3, block 1 does 4, 2 and 1
//
// Tasks with the most keys come first and, under a causal mask, the last rows of each: long tiles
// that start late would keep the device waiting.
#pragma once
#include <compare>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention_kernel.h"
#include "kernels/cuda/group_layout.h"
#include "kernels/cuda/tile_layout.h"

namespace longnet {

// Returns the limit on the keys of `run` that rows of `q` see; without a mask only the number of
// keys is set. Throws Error for runs that cannot be counted in 31 bits and, under a mask, for
// positions that do not ascend.
KeyLimit key_limit(const QueryRun& q, const KvRun& run, bool causal);

struct TilePlan {
  std::vector<TileTask> tasks;
  std::vector<TileRun> runs;
  std::vector<TileRef> tiles;
};
// Tiles of `rows_per_tile` query rows. Throws Error for rows that cannot be counted in 31 bits.
TilePlan plan_tiles(std::span<const AttendGrid> grids, bool causal, int rows_per_tile);

// A strided tensor of five dimensions, which a TMA tensor map describes: `rows` rows of 16-bit
// elements, `row_stride` elements apart; run (i, j, k) starts i step_bytes[0] + j step_bytes[1] + k
// step_bytes[2] behind `first`.
//
// The rows of a dilated branch are such a tensor: [head_dim][row][segment][offset][head of an
// offset]. Segments of the next sequence of a batch go on where those of the last one end; where
// they do not, each sequence has a view of its own.
struct TensorView {
  bool of_queries = false;  // false: of keys or values
  const void* first = nullptr;
  int64_t rows = 0, row_stride = 0;
  int64_t count[3] = {1, 1, 1}, step_bytes[3] = {0, 0, 0};
  auto operator<=>(const TensorView&) const = default;
};
struct GroupPlan {
  std::vector<TensorView> views;
  std::vector<GroupTask> tasks;
  std::vector<GroupRun> runs;
  std::vector<GroupTile> tiles;  // block by block
  std::vector<int32_t> block_begin;
};
struct GroupTiling {
  int rows, keys;  // per tile
  int blocks;      // maximum
};
// Tiles are given, in order, each to the block with the least to do so far: neighbours in that
// order run at the same time and share their keys in the L2 cache. Throws Error as plan_tiles.
GroupPlan plan_groups(std::span<const AttendGrid> grids, bool causal, const GroupTiling& tiling);

// Returns "" when every row of every task of the grids can be read in 16-byte pieces, else the
// reason: the first grid with a misaligned pointer or stride.
std::string why_misaligned(std::span<const AttendGrid> grids);

}  // namespace longnet
