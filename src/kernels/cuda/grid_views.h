// The rows of grids as strided tensors that TMA reads.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "kernels/attend_grid.h"
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
  bool of_queries = false;  // false: of keys or values
  const void* first = nullptr;
  int64_t rows = 0, row_stride = 0;
  int64_t count[3] = {1, 1, 1}, step_bytes[3] = {0, 0, 0};
  auto operator<=>(const TensorView&) const = default;
};

// One tensor's rows for all tasks of a grid, as views: a place in them is linear in the task's
// place. Tasks that share their rows (a step of 0) share a place: tensor maps have no such steps.
class GridViews {
 public:
  GridViews() = default;
  // Appends to `views`.
  GridViews(TensorView view, const GridVector& count, const GridVector& step_bytes,
            std::vector<TensorView>& views);
  ViewPlace place(const GridVector& task) const;

 private:
  int32_t first_ = 0;
  GridVector views_{}, at_[3]{};  // steps of a task's view, and of its place there
};

// K and V of one key run of a grid.
struct RunViews {
  GridViews k, v;
  int64_t index;  // among runs at equal distances, which replace the grid's first dimension
  PlacePair place(GridVector task) const {
    task[0] += index;
    return {k.place(task), v.place(task)};
  }
};

// Equal rows of several grids share their views.
class ViewLists {
 public:
  GridViews of(const TensorView& rows, const GridVector& count, const GridVector& step_bytes);
  // Returns the views of each key run of a grid of `count` tasks.
  std::vector<RunViews> of(std::span<const KvRun> runs, const GridVector& count);
  const std::vector<TensorView>& all() const { return views_; }

 private:
  std::vector<TensorView> views_;
  std::map<std::tuple<TensorView, GridVector, GridVector>, GridViews> known_;
};

}  // namespace longnet
