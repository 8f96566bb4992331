// Turns grids of attention tasks into the lists that the loop of `cuda_sm90a` reads: views, tasks,
// key runs, and the tiles of each block.
//
//   5 tiles of 4 4 3 2 1 key tiles on 2 blocks: block 0 does 4 and 3, block 1 does 4, 2 and 1
#pragma once
#include <span>
#include <vector>

#include "kernels/attention_kernel.h"
#include "kernels/cuda/group_layout.h"

namespace longnet {

// A strided tensor of five dimensions, which a TMA tensor map describes: `rows` rows of 16-bit
// elements, `row_stride` elements apart; run (i, j, k) starts i step_bytes[0] + j step_bytes[1] + k
// step_bytes[2] behind `first`.
//
// The rows of a dilated branch are such a tensor: [head_dim][row][segment][offset][head of an
// offset]. Segments of the next sequence of a batch go on where those of the last one end; where
// they do not, each sequence has a view of its own.
struct TensorView {
  const void* first = nullptr;
  int64_t rows = 0, row_stride = 0;
  int64_t count[3] = {1, 1, 1}, step_bytes[3] = {0, 0, 0};
};

struct GroupPlan {
  std::vector<TensorView> views;
  std::vector<bool> of_queries;  // by view; the others are of keys and values
  std::vector<GroupTask> tasks;
  std::vector<GroupRun> runs;
  std::vector<GroupTile> tiles;  // block by block
  std::vector<int32_t> block_begin;
};

struct GroupTiling {
  int rows, keys;  // of a tile
  int blocks;      // at most
};

// Tiles are given, in the order of the tasks (most keys first, under a causal mask last rows
// first), each to the block with the least to do so far: neighbours in that order run at the same
// time and share their keys in the L2 cache. Throws Error for rows that cannot be counted in 31
// bits.
GroupPlan plan_groups(std::span<const AttendGrid> grids, bool causal, GroupTiling tiling);

}  // namespace longnet
