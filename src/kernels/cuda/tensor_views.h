// Runs of rows that lie at equal distances become one strided tensor of up to five dimensions: what
// a TMA tensor map describes.
//
// A dilated branch is such a tensor: [head_dim][row][heads of one offset][offset][segment].
//
//   N = 8 w, H = 12, r = 4: 96 query runs -> 1 view of 3 x 4 x 8 runs
//   r = 1:                  96 query runs -> 1 view of 12 x 8 x 1 runs
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/group_layout.h"

namespace longnet {

// `rows` rows, `row_stride` elements of 16 bits apart.
struct RowRun {
  const void* first = nullptr;
  int64_t rows = 0, row_stride = 0;
};

// Run (i, j, k) starts at base + i step[0] + j step[1] + k step[2] (elements).
struct TensorView {
  RowRun base;
  int64_t count[3] = {1, 1, 1};
  int64_t step[3] = {0, 0, 0};
};

struct TensorViews {
  std::vector<TensorView> views;
  std::vector<ViewPlace> places;  // of every run; equal runs share one
};

// Runs have rows. Steps keep within what a tensor map can hold (multiples of 16 bytes below 2^40
// bytes); runs that no step reaches become views of their own. Deterministic.
TensorViews tensor_views(std::span<const RowRun> runs);

}  // namespace longnet
