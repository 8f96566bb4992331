// Turns attention tasks into the flat lists that the tile loop reads: tasks, key runs and tiles.
//
//   a task of 300 causal rows in tiles of 128: three tiles, the longest (rows 256..299) first
#pragma once
#include <span>
#include <string>
#include <vector>

#include "kernels/attention_kernel.h"
#include "kernels/cuda/tile_layout.h"

namespace longnet {

struct TilePlan {
  std::vector<TileTask> tasks;
  std::vector<TileRun> runs;
  std::vector<TileRef> tiles;
};

// Returns the limit on the keys of `run` that rows of `q` see; without a mask only the number of
// keys is set. Throws Error for runs that cannot be counted in 31 bits and, under a mask, for
// positions that do not ascend.
KeyLimit key_limit(const QueryRun& q, const KvRun& run, bool causal);

// Tiles of `rows_per_tile` query rows. Tasks with the most keys come first and, under a causal
// mask, the last rows of each: long tiles that start late would keep the device waiting. Throws
// Error for rows that cannot be counted in 31 bits.
TilePlan plan_tiles(std::span<const AttendGrid> grids, bool causal, int rows_per_tile);

// Returns "" when every row of every task of the grids can be read in 16-byte pieces, else the
// reason: the first grid with a misaligned pointer or stride.
std::string why_misaligned(std::span<const AttendGrid> grids);

}  // namespace longnet
