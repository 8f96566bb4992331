// Rows of a grid of tasks as strided tensors of five dimensions: what a TMA tensor map describes.
//
// A dilated branch is such a tensor: [head_dim][row][segment][offset][head of an offset]. Segments
// of the next sequence of a batch go on where those of the last one end; where they do not, each
// sequence has a view of its own.
#pragma once
#include <vector>

#include "kernels/attend_grid.h"
#include "kernels/cuda/group_layout.h"

namespace longnet {

// `rows` rows of 16-bit elements, `row_stride` elements apart; run (i, j, k) starts
// i step_bytes[0] + j step_bytes[1] + k step_bytes[2] behind `first`.
struct TensorView {
  const void* first = nullptr;
  int64_t rows = 0, row_stride = 0;
  int64_t count[3] = {1, 1, 1}, step_bytes[3] = {0, 0, 0};
};

// One tensor's rows for all tasks of a grid. Tasks that share their rows (a step of 0) share a
// place: tensor maps have no such steps.
class GridViews {
 public:
  // Appends to `views`.
  GridViews(const TensorView& rows, const GridVector& count, const GridVector& step_bytes,
            std::vector<TensorView>& views)
      : first_(views.size()), count_(count), step_bytes_(step_bytes) {
    TensorView view = rows;
    for (size_t d = 0; d < 3; ++d)
      if (!shared(d)) view.count[d] = count[d], view.step_bytes[d] = step_bytes[d];
    if (goes_on()) {
      view.count[0] *= count[3];
      if (count[0] == 1) view.step_bytes[0] = step_bytes[3];
    }
    const int64_t sequences = goes_on() || shared(3) ? 1 : count[3];
    for (int64_t i = 0; i < sequences; ++i) {
      views.push_back(view);
      view.first = static_cast<const std::byte*>(view.first) + step_bytes[3];
    }
  }
  ViewPlace place(const GridVector& task) const {
    ViewPlace place{.view = int32_t(first_), .at = {}};
    for (size_t d = 0; d < 3; ++d) place.at[d] = shared(d) ? 0 : int32_t(task[d]);
    if (shared(3)) return place;
    if (goes_on())
      place.at[0] += int32_t(task[3] * count_[0]);
    else
      place.view += int32_t(task[3]);
    return place;
  }

 private:
  bool shared(size_t d) const { return step_bytes_[d] == 0; }
  bool goes_on() const {
    return !shared(3) && (count_[0] == 1 || step_bytes_[3] == count_[0] * step_bytes_[0]);
  }
  size_t first_;
  GridVector count_, step_bytes_;
};

}  // namespace longnet
