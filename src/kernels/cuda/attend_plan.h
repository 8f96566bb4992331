// Turns grids of attention tasks into the lists that the own kernels read: tasks, key runs and
// tiles of query rows; for `cuda_sm90a` also strided views, and the tiles of each block.
//
//   a task of 300 causal rows in tiles of 128: three tiles, the longest (rows 256..299) first
//
// Tasks with the most keys come first and, under a causal mask, the last rows of each: long tiles
// that start late would keep the device waiting.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "kernels/attention_kernel.h"
#include "kernels/cuda/grid_views.h"
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

struct GroupPlan {
  std::vector<TensorView> views;
  std::vector<GroupTask> tasks;
  std::vector<GroupRun> runs;
  std::vector<GroupTile> tiles;  // that see keys, block by block
  std::vector<int32_t> block_begin;
  std::vector<GroupTile> keyless;  // tiles that see no key
};
struct GroupTiling {
  int rows, keys;  // per tile
  int blocks;      // maximum
};
// Tiles in BlockLists. Throws Error as plan_tiles.
GroupPlan plan_groups(std::span<const AttendGrid> grids, bool causal, const GroupTiling& tiling);

// Returns "" when every row of every task of the grids can be read in 16-byte pieces, else the
// reason: the first grid with a misaligned pointer or stride.
std::string why_misaligned(std::span<const AttendGrid> grids);

}  // namespace longnet
