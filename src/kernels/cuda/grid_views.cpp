#include "kernels/cuda/grid_views.h"

namespace longnet {
namespace {

// Returns the number of leading runs at equal distances: those of many ranks in one gathered slot.
size_t progression(std::span<const KvRun> runs) {
  const auto follows = [&](const KvRun& b, const KvRun& a) {
    const int64_t step = bytes_between(runs[0].k, runs[1].k);
    return step > 0 && bytes_between(a.k, b.k) == step && bytes_between(a.v, b.v) == step &&
           a.rows == b.rows && a.row_stride == b.row_stride && a.step_bytes == b.step_bytes;
  };
  size_t count = 1;
  while (count < runs.size() && follows(runs[count], runs[count - 1])) ++count;
  return count;
}

}  // namespace

GridViews::GridViews(TensorView view, const GridVector& count, const GridVector& step_bytes,
                     std::vector<TensorView>& views)
    : first_(int32_t(views.size())) {
  for (size_t d = 0; d < 3; ++d) {
    if (step_bytes[d] == 0) continue;
    view.count[d] = count[d];
    view.step_bytes[d] = step_bytes[d];
    at_[d][d] = 1;
  }
  int64_t sequences = step_bytes[3] == 0 ? 1 : count[3];
  if (step_bytes[3] != 0 && (count[0] == 1 || step_bytes[3] == count[0] * step_bytes[0])) {
    if (count[0] == 1) view.step_bytes[0] = step_bytes[3];
    view.count[0] *= sequences;
    at_[0][3] = count[0];
    sequences = 1;
  }
  views_[3] = sequences > 1 ? 1 : 0;
  for (int64_t i = 0; i < sequences; ++i) {
    views.push_back(view);
    view.first = static_cast<const std::byte*>(view.first) + step_bytes[3];
  }
}

ViewPlace GridViews::place(const GridVector& task) const {
  ViewPlace place{.view = first_ + int32_t(along(task, views_)), .at = {}};
  for (size_t d = 0; d < 3; ++d) place.at[d] = int32_t(along(task, at_[d]));
  return place;
}

GridViews ViewLists::of(const TensorView& rows, const GridVector& count,
                        const GridVector& step_bytes) {
  const auto [known, added] = known_.try_emplace({rows, count, step_bytes});
  if (added) known->second = GridViews(rows, count, step_bytes, views_);
  return known->second;
}

std::vector<RunViews> ViewLists::of(std::span<const KvRun> runs, const GridVector& grid_count) {
  std::vector<RunViews> of_runs;
  while (!runs.empty()) {
    const KvRun& run = runs[0];
    GridVector count = grid_count, step = run.step_bytes;
    const size_t together = count[0] == 1 ? progression(runs) : 1;
    if (together > 1) {
      count[0] = int64_t(together);
      step[0] = bytes_between(run.k, runs[1].k);
    }
    const GridViews k = of({false, run.k, run.rows, run.row_stride}, count, step);
    const GridViews v = of({false, run.v, run.rows, run.row_stride}, count, step);
    for (size_t i = 0; i < together; ++i) of_runs.push_back({k, v, int64_t(i)});
    runs = runs.subspan(together);
  }
  return of_runs;
}

}  // namespace longnet
