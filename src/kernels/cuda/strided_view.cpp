#include "kernels/cuda/strided_view.h"

#include <algorithm>
#include <cstddef>

#include "core/token_range.h"

namespace longnet {
namespace {

constexpr int64_t kElement = 2;      // bytes
constexpr int64_t kLongest = 32768;  // per dimension: grids have 65535 blocks in two directions

KvRun keys_of(const KvRun& kv, int64_t first, int64_t count) {
  const int64_t bytes = first * kv.row_stride * kElement;
  KvRun part = kv;
  part.k = static_cast<const std::byte*>(kv.k) + bytes;
  part.v = static_cast<const std::byte*>(kv.v) + bytes;
  part.rows = count;
  part.first_token += first * kv.token_step;
  return part;
}

// 0 where rows and keys are unequally far apart.
int64_t common_step(const QueryRun& q, const KvRun& kv) {
  if (q.rows > 1 && kv.rows > 1 && q.token_step != kv.token_step) return 0;
  return q.rows > 1 ? q.token_step : kv.token_step;
}

}  // namespace

std::vector<StridedView> strided_views(const AttendGrid& grid, const KvRun& kv, ViewMask mask) {
  GridVector piece{};  // tasks of a view
  for (size_t d = 0; d < piece.size(); ++d)
    piece[d] = kv.step_bytes[d] == 0 ? 1 : std::min(kLongest, grid.count[d]);
  std::array<size_t, kGridDimensions> dimensions{0, 1, 2, 3};
  std::ranges::stable_sort(dimensions, {}, [&](size_t d) { return piece[d]; });
  piece[dimensions[0]] = piece[dimensions[1]] = 1;
  std::ranges::sort(dimensions);
  // Dimensions of one task go to the end.
  std::ranges::stable_partition(dimensions, [&](size_t d) { return piece[d] > 1; });
  AttendGrid pieces;
  for (size_t d = 0; d < piece.size(); ++d) pieces.count[d] = ceil_div(grid.count[d], piece[d]);
  std::vector<StridedView> views;
  for (int64_t i = 0; i < pieces.size(); ++i) {
    GridVector at = pieces.place(i);
    for (size_t d = 0; d < at.size(); ++d) at[d] *= piece[d];
    const AttendTask first = grid.at(at);
    StridedView& view =
        views.emplace_back(StridedView{.grid = {.task = {.q = first.q, .kv = {}, .out = first.out}},
                                       .kv = KeyRuns(&kv, 1).moved(at)[0],
                                       .mask = mask});
    for (size_t d = 0; d < dimensions.size(); ++d) {
      const size_t from = dimensions[d];
      view.grid.count[d] = std::min(piece[from], grid.count[from] - at[from]);
      view.grid.q_step_bytes[d] = grid.q_step_bytes[from];
      view.grid.o_step[d] = grid.o_step[from];
      view.grid.lse_step[d] = grid.lse_step[from];
      view.kv.step_bytes[d] = kv.step_bytes[from];
    }
  }
  return views;
}

std::vector<StridedView> parts_of(const StridedView& view, int64_t most) {
  const auto& [count0, count1, none2, none3] = view.grid.count;
  const int64_t inner = std::min(count0, most);
  const int64_t outer = std::clamp<int64_t>(most / count0, 1, count1);
  std::vector<StridedView> parts;
  for (int64_t j = 0; j < count1; j += outer)
    for (int64_t i = 0; i < count0; i += inner) {
      StridedView& part = parts.emplace_back(view);
      part.grid.task = view.grid.at({i, j, 0, 0});
      part.grid.count = {std::min(inner, count0 - i), std::min(outer, count1 - j), 1, 1};
      part.kv = KeyRuns(&view.kv, 1).moved({i, j, 0, 0})[0];
    }
  return parts;
}

SdpaShape sdpa_shape(const StridedView& view, int64_t head_dim) {
  const AttendGrid& g = view.grid;
  const AttendTask& t = g.task;
  const int64_t d = head_dim, rows = t.q.rows;
  const auto strides = [](const GridVector& step, int64_t unit, int64_t row_stride) {
    return std::array<int64_t, 3>{step[1] / unit, step[0] / unit, row_stride};
  };
  SdpaShape s{.outer = g.count[1],
              .inner = g.count[0],
              .rows = rows,
              .keys = view.kv.rows,
              .head_dim = d,
              .q = strides(g.q_step_bytes, kElement, t.q.row_stride),
              .k = strides(view.kv.step_bytes, kElement, view.kv.row_stride),
              .o = {g.count[0] * rows * d, rows * d, d},
              .lse = strides(g.lse_step, 1, t.out.lse_stride),
              .mask = view.mask};
  for (auto* tensor : {&s.q, &s.k, &s.o, &s.lse}) {
    auto& [outer, inner, row] = *tensor;
    if (row == 0) row = d;
    if (inner == 0) inner = row * std::max(rows, s.keys);
    if (outer == 0) outer = inner * s.inner;
  }
  return s;
}

SdpaShape sdpa_backward_shape(const StridedView& view, int64_t head_dim) {
  SdpaShape s = sdpa_shape(view, head_dim);
  s.backward = true;
  s.lse = {s.inner * s.rows, s.rows, 1};
  return s;
}

std::string why_misaligned(const SdpaShape& s) {
  const struct {
    const char* name;
    const std::array<int64_t, 3>& strides;
  } tensors[] = {{"Q", s.q}, {"K", s.k}, {"O", s.o}};
  if (s.head_dim % 8 != 0) return concat("head_dim ", s.head_dim, " is not a multiple of 8");
  const int64_t extent[3] = {s.outer, s.inner, std::max(s.rows, s.keys)};
  for (const auto& [name, strides] : tensors)
    for (size_t i = 0; i < 3; ++i)
      if (extent[i] > 1 && strides[i] % 8 != 0)
        return concat("stride ", i, " of ", name, " is ", strides[i],
                      " elements, not a multiple of 16 bytes");
  return "";
}

ViewMask causal_mask(const QueryRun& q, const KvRun& kv) {
  const int64_t last_q = q.first_token + (q.rows - 1) * q.token_step;
  const int64_t last_k = kv.first_token + (kv.rows - 1) * kv.token_step;
  if (last_k <= q.first_token) return ViewMask::kNone;
  if (kv.first_token > last_q) return ViewMask::kEverything;
  const int64_t step = common_step(q, kv);
  const int64_t ahead =
      q.first_token - kv.first_token;  // key j is seen when j step <= i step + ahead
  if (ahead >= 0 && ahead < step) return ViewMask::kUpToOwn;
  if (ahead < 0 && ahead >= -step) return ViewMask::kBeforeOwn;
  return ViewMask::kOther;
}

std::vector<AttendTask> cut_at_diagonals(const AttendTask& task, KvLists& lists) {
  std::vector<int64_t> cuts{0, task.q.rows};
  for (const KvRun run : task.kv) {
    if (run.rows == 0 || causal_mask(task.q, run) != ViewMask::kOther) continue;
    const int64_t step = common_step(task.q, run), behind = run.first_token - task.q.first_token;
    if (step > 0 && behind > 0) cuts.push_back((behind + step - 1) / step);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<AttendTask> parts;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    AttendTask& part = parts.emplace_back(rows_of(task, cuts[i], cuts[i + 1] - cuts[i], kElement));
    std::vector<KvRun>& keys = lists.emplace_back();
    for (const KvRun run : task.kv) {
      const int64_t step = common_step(part.q, run);
      const int64_t ahead = part.q.first_token - run.first_token;
      const bool cut =
          run.rows > 0 && step > 0 && ahead >= step && causal_mask(part.q, run) == ViewMask::kOther;
      const int64_t seen_by_all = cut ? ahead / step : 0;
      if (cut) keys.push_back(keys_of(run, 0, seen_by_all));
      keys.push_back(keys_of(run, seen_by_all, run.rows - seen_by_all));
    }
    part.kv = keys;
  }
  return parts;
}

}  // namespace longnet
