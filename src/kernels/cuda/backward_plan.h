// Grids of the backward pass as lists of tasks, key groups and tiles for the `cuda` kernel.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "kernels/attend_grid.h"
#include "kernels/cuda/backward_layout.h"

namespace longnet {

struct BackwardPlan {
  std::vector<BackwardRows> tasks;
  std::vector<BackwardRun> runs;
  std::vector<KeySource> sources;  // group by group
  std::vector<KeyGroup> groups;
  std::vector<BackwardTile> query_tiles, key_tiles;
};
// Tiles of `rows_per_tile` queries or keys. Queries of two tasks are disjoint; keys of two runs are
// the same or disjoint. Throws Error for runs that begin at the same key and differ, and for rows
// that cannot be counted in 31 bits.
BackwardPlan plan_backward(std::span<const BackwardGrid> grids, bool causal, int rows_per_tile);

// Returns "" when every row of the grids can be read in 16-byte pieces, and its statistics in
// 8-byte pieces, else the reason.
std::string why_misaligned(std::span<const BackwardGrid> grids);

}  // namespace longnet
