// Grids of the backward pass as lists of tasks, key groups and tiles for the own kernels.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "kernels/attend_grid.h"
#include "kernels/cuda/backward_layout.h"
#include "kernels/cuda/grid_views.h"

namespace longnet {

struct BackwardPlan {
  std::vector<BackwardRows> tasks;
  std::vector<BackwardRun> runs;
  std::vector<KeySource> sources;  // group by group
  std::vector<KeyGroup> groups;
  std::vector<BackwardTile> query_tiles, key_tiles;
  std::vector<TensorView> views;  // views of Q, dO, K and V
};
// Tiles of `rows_per_tile` queries or keys. Queries of two tasks are disjoint; keys of two runs are
// the same or disjoint. Throws Error for runs that begin at the same key and differ, and for rows
// that cannot be counted in 31 bits.
BackwardPlan plan_backward(std::span<const BackwardGrid> grids, bool causal, int rows_per_tile);

// Tiles of queries or of keys in BlockLists.
struct BackwardBlocks {
  std::vector<BackwardTile> tiles;
  std::vector<int32_t> begin;
};
BackwardBlocks backward_blocks(const BackwardPlan& plan, bool of_keys, bool causal,
                               int rows_per_tile, int blocks);

// Returns "" when every row of the grids can be read in 16-byte pieces, and its statistics in
// 8-byte pieces, else the reason.
std::string why_misaligned(std::span<const BackwardGrid> grids);

}  // namespace longnet
