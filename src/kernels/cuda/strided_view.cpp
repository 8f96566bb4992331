#include "kernels/cuda/strided_view.h"

#include <algorithm>
#include <cstddef>
#include <optional>

namespace longnet {
namespace {

constexpr int64_t kLongest = 32768;  // of a dimension: grids have 65535 blocks in two directions

struct Delta {
  int64_t q, k, v, o, lse;  // elements
  bool operator==(const Delta&) const = default;
};

// Distance of two pointers, when it is a whole number of elements.
template <class T>
std::optional<int64_t> distance(const T* a, const T* b, int64_t bytes) {
  const auto x = reinterpret_cast<intptr_t>(a), y = reinterpret_cast<intptr_t>(b);
  if ((y - x) % bytes != 0) return std::nullopt;
  return (y - x) / bytes;
}

bool same_shape(const ViewTask& a, const ViewTask& b) {
  return a.q.rows == b.q.rows && a.q.row_stride == b.q.row_stride && a.kv.rows == b.kv.rows &&
         a.kv.row_stride == b.kv.row_stride && a.out.o_stride == b.out.o_stride &&
         a.out.lse_stride == b.out.lse_stride && a.mask == b.mask;
}

// Nothing when the tasks differ in shape, overlap, or descend: views want positive strides.
std::optional<Delta> delta(const ViewTask& a, const ViewTask& b) {
  if (!same_shape(a, b)) return std::nullopt;
  const auto q = distance(a.q.q, b.q.q, 2), k = distance(a.kv.k, b.kv.k, 2),
             v = distance(a.kv.v, b.kv.v, 2), o = distance(a.out.o, b.out.o, 4),
             lse = distance(a.out.lse, b.out.lse, 4);
  if (!q || !k || !v || !o || !lse) return std::nullopt;
  if (*q <= 0 || *k <= 0 || *v <= 0 || *o <= 0 || *lse <= 0) return std::nullopt;
  return Delta{*q, *k, *v, *o, *lse};
}

// Tasks [begin, begin + count) at equal distances.
struct Progression {
  size_t begin, count;
  Delta step;
};

}  // namespace

std::vector<StridedView> strided_views(std::span<const ViewTask> tasks) {
  std::vector<Progression> rows;
  for (size_t i = 0; i < tasks.size();) {
    Progression p{i, 1, {0, 0, 0, 0, 0}};
    while (i + p.count < tasks.size() && int64_t(p.count) < kLongest) {
      const auto step = delta(tasks[i + p.count - 1], tasks[i + p.count]);
      if (!step || (p.count > 1 && *step != p.step)) break;
      p.step = *step;
      ++p.count;
    }
    rows.push_back(p);
    i += p.count;
  }
  std::vector<StridedView> views;
  for (size_t i = 0; i < rows.size();) {
    size_t count = 1;
    Delta outer{0, 0, 0, 0, 0};
    while (i + count < rows.size() && int64_t(count) < kLongest) {
      const Progression &a = rows[i + count - 1], &b = rows[i + count];
      const auto step = delta(tasks[a.begin], tasks[b.begin]);
      const bool alike = a.count == b.count && a.step == b.step;
      if (!alike || !step || (count > 1 && *step != outer)) break;
      outer = *step;
      ++count;
    }
    const Delta inner = rows[i].step;
    StridedView view{.first = tasks[rows[i].begin],
                     .inner = int64_t(rows[i].count),
                     .outer = int64_t(count),
                     .q = {inner.q, outer.q},
                     .k = {inner.k, outer.k},
                     .v = {inner.v, outer.v},
                     .o = {inner.o, outer.o},
                     .lse = {inner.lse, outer.lse},
                     .tasks = {}};
    for (size_t row = i; row < i + count; ++row)
      for (size_t t = 0; t < rows[row].count; ++t) view.tasks.push_back(rows[row].begin + t);
    views.push_back(std::move(view));
    i += count;
  }
  return views;
}

MaskKind causal_mask_kind(const QueryRun& q, const KvRun& kv) {
  const int64_t last_q = q.first_token + (q.rows - 1) * q.token_step;
  const int64_t last_k = kv.first_token + (kv.rows - 1) * kv.token_step;
  using Is = MaskKind::Is;
  if (last_k <= q.first_token) return {Is::kEverything};
  if (kv.first_token > last_q) return {Is::kNothing};
  const bool one_step = q.rows == 1 || kv.rows == 1 || q.token_step == kv.token_step;
  const int64_t step = q.rows > 1 ? q.token_step : kv.token_step;
  const int64_t ahead =
      q.first_token - kv.first_token;  // key j is seen when j step <= i step + ahead
  if (one_step && ahead >= 0 && ahead < step) return {Is::kMask, ViewMask::kUpToOwn};
  if (one_step && ahead < 0 && ahead >= -step) return {Is::kMask, ViewMask::kBeforeOwn};
  return {Is::kOther};
}

namespace {

constexpr int64_t kElement = 2;  // bytes

const void* advanced(const void* at, int64_t elements) {
  return static_cast<const std::byte*>(at) + elements * kElement;
}

QueryRun rows_of(const QueryRun& q, int64_t first, int64_t count) {
  return {advanced(q.q, first * q.row_stride), q.row_stride, count,
          q.first_token + first * q.token_step, q.token_step};
}
KvRun keys_of(const KvRun& kv, int64_t first, int64_t count) {
  const int64_t at = first * kv.row_stride;
  return {advanced(kv.k, at),
          advanced(kv.v, at),
          kv.row_stride,
          count,
          kv.first_token + first * kv.token_step,
          kv.token_step};
}

// 0 where rows and keys are unequally far apart.
int64_t common_step(const QueryRun& q, const KvRun& kv) {
  if (q.rows > 1 && kv.rows > 1 && q.token_step != kv.token_step) return 0;
  return q.rows > 1 ? q.token_step : kv.token_step;
}

}  // namespace

std::vector<CutTask> cut_at_diagonals(const AttendTask& task) {
  std::vector<int64_t> cuts{0, task.q.rows};
  for (const KvRun& run : task.kv) {
    if (run.rows == 0 || causal_mask_kind(task.q, run).is != MaskKind::Is::kOther) continue;
    const int64_t step = common_step(task.q, run), behind = run.first_token - task.q.first_token;
    if (step > 0 && behind > 0) cuts.push_back((behind + step - 1) / step);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<CutTask> parts;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const int64_t first = cuts[i];
    CutTask part{.q = rows_of(task.q, first, cuts[i + 1] - first), .kv = {}, .out = task.out};
    part.out.o += first * task.out.o_stride;
    part.out.lse += first * task.out.lse_stride;
    for (const KvRun& run : task.kv) {
      const int64_t step = common_step(part.q, run);
      const int64_t ahead = part.q.first_token - run.first_token;
      const bool cut = run.rows > 0 && step > 0 && ahead >= step &&
                       causal_mask_kind(part.q, run).is == MaskKind::Is::kOther;
      if (!cut) {
        part.kv.push_back(run);
        continue;
      }
      const int64_t seen_by_all = ahead / step;
      part.kv.push_back(keys_of(run, 0, seen_by_all));
      part.kv.push_back(keys_of(run, seen_by_all, run.rows - seen_by_all));
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace longnet
