#include "kernels/cuda/strided_view.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace longnet {
namespace {

constexpr int64_t kElement = 2;      // bytes
constexpr int64_t kLongest = 32768;  // of a dimension: grids have 65535 blocks in two directions

// `count` tasks of one dimension of a grid, from number `first`.
AttendGrid part_of(const AttendGrid& grid, size_t dimension, int64_t first, int64_t count) {
  GridVector at{};
  at[dimension] = first;
  AttendGrid part = grid;
  part.task = grid.at(at);
  part.count[dimension] = count;
  return part;
}

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
  std::vector<AttendGrid> grids{grid};
  grids.front().task.kv = {&kv, 1};
  const auto cut = [&](size_t dimension, int64_t longest) {
    std::vector<AttendGrid> parts;
    for (const AttendGrid& whole : grids)
      for (int64_t at = 0; at < whole.count[dimension]; at += longest)
        parts.push_back(
            part_of(whole, dimension, at, std::min(longest, whole.count[dimension] - at)));
    grids = std::move(parts);
  };
  std::array<size_t, kGridDimensions> dimensions{0, 1, 2, 3};
  for (const size_t d : dimensions) cut(d, kv.step_bytes[d] == 0 ? 1 : kLongest);
  std::ranges::sort(dimensions, {}, [count = grids.front().count](size_t d) { return count[d]; });
  cut(dimensions[0], 1);
  cut(dimensions[1], 1);
  std::ranges::sort(dimensions);
  // Dimensions of one task go to the end.
  std::ranges::stable_partition(dimensions, [&](size_t d) { return grids.front().count[d] > 1; });
  std::vector<StridedView> views;
  for (const AttendGrid& part : grids) {
    StridedView view{part, part.task.kv[0], mask};
    for (size_t d = 0; d < dimensions.size(); ++d) {
      const size_t from = dimensions[d];
      view.grid.count[d] = part.count[from];
      view.grid.q_step_bytes[d] = part.q_step_bytes[from];
      view.grid.o_step[d] = part.o_step[from];
      view.grid.lse_step[d] = part.lse_step[from];
      view.kv.step_bytes[d] = kv.step_bytes[from];
    }
    view.grid.task.kv = {};
    views.push_back(view);
  }
  return views;
}

SdpaShape sdpa_shape(const StridedView& view, int64_t head_dim, DeviceElement element) {
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
              .v = strides(view.kv.step_bytes, kElement, view.kv.row_stride),
              .o = {g.count[0] * rows * d, rows * d, d},
              .lse = strides(g.lse_step, 1, t.out.lse_stride),
              .element = element,
              .mask = view.mask};
  for (auto* tensor : {&s.q, &s.k, &s.v, &s.o, &s.lse}) {
    auto& [outer, inner, row] = *tensor;
    if (row == 0) row = d;
    if (inner == 0) inner = row * std::max(rows, s.keys);
    if (outer == 0) outer = inner * s.inner;
  }
  return s;
}

std::string why_misaligned(const SdpaShape& s) {
  const struct {
    const char* name;
    const std::array<int64_t, 3>& strides;
  } tensors[] = {{"Q", s.q}, {"K", s.k}, {"V", s.v}, {"O", s.o}};
  if (s.head_dim % 8 != 0) return concat("head_dim ", s.head_dim, " is not a multiple of 8");
  const int64_t extent[3] = {s.outer, s.inner, std::max(s.rows, s.keys)};
  for (const auto& [name, strides] : tensors)
    for (size_t i = 0; i < 3; ++i)
      if (extent[i] > 1 && strides[i] % 8 != 0)
        return concat("stride ", i, " of ", name, " is ", strides[i],
                      " elements, not a multiple of 16 bytes");
  return "";
}

MaskKind causal_mask_kind(const QueryRun& q, const KvRun& kv) {
  const int64_t last_q = q.first_token + (q.rows - 1) * q.token_step;
  const int64_t last_k = kv.first_token + (kv.rows - 1) * kv.token_step;
  using Is = MaskKind::Is;
  if (last_k <= q.first_token) return {Is::kEverything};
  if (kv.first_token > last_q) return {Is::kNothing};
  const int64_t step = common_step(q, kv);
  const int64_t ahead =
      q.first_token - kv.first_token;  // key j is seen when j step <= i step + ahead
  if (ahead >= 0 && ahead < step) return {Is::kMask, ViewMask::kUpToOwn};
  if (ahead < 0 && ahead >= -step) return {Is::kMask, ViewMask::kBeforeOwn};
  return {Is::kOther};
}

std::vector<AttendTask> cut_at_diagonals(const AttendTask& task, KvLists& lists) {
  std::vector<int64_t> cuts{0, task.q.rows};
  for (const KvRun run : task.kv) {
    if (run.rows == 0 || causal_mask_kind(task.q, run).is != MaskKind::Is::kOther) continue;
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
      const bool cut = run.rows > 0 && step > 0 && ahead >= step &&
                       causal_mask_kind(part.q, run).is == MaskKind::Is::kOther;
      const int64_t seen_by_all = cut ? ahead / step : 0;
      if (cut) keys.push_back(keys_of(run, 0, seen_by_all));
      keys.push_back(keys_of(run, seen_by_all, run.rows - seen_by_all));
    }
    part.kv = keys;
  }
  return parts;
}

}  // namespace longnet
