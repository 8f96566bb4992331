#include "kernels/attend_grid.h"

#include <algorithm>

namespace longnet {
namespace {

QueryRun rows_of(const QueryRun& run, int64_t first, int64_t rows, int64_t element_bytes) {
  QueryRun part = run;
  part.q = static_cast<const std::byte*>(run.q) + first * run.row_stride * element_bytes;
  part.first_token += first * run.token_step;
  part.rows = rows;
  return part;
}

bool alike(const QueryRun& a, const QueryRun& b) {
  return a.rows == b.rows && a.row_stride == b.row_stride && a.token_step == b.token_step;
}
bool alike(const KvRun& a, const KvRun& b) {
  return a.rows == b.rows && a.row_stride == b.row_stride && a.token_step == b.token_step &&
         a.step_bytes == b.step_bytes;
}
bool alike(const AttendGrid& a, const AttendGrid& b) {
  return alike(a.task.q, b.task.q) && a.task.kv.size() == b.task.kv.size() && a.count == b.count &&
         a.q_step_bytes == b.q_step_bytes && a.o_step == b.o_step && a.lse_step == b.lse_step &&
         a.task.out.o_stride == b.task.out.o_stride &&
         a.task.out.lse_stride == b.task.out.lse_stride;
}
bool same_place(const AttendTask& a, const AttendTask& b) {
  bool same = a.q.q == b.q.q && a.out.o == b.out.o && a.out.lse == b.out.lse;
  for (size_t i = 0; same && i < a.kv.size(); ++i) {
    const KvRun x = a.kv[i], y = b.kv[i];
    same = alike(x, y) && x.k == y.k && x.v == y.v &&
           x.first_token - a.q.first_token == y.first_token - b.q.first_token;
  }
  return same;
}

}  // namespace

AttendTask rows_of(const AttendTask& task, int64_t first, int64_t rows, int64_t element_bytes) {
  AttendTask part = task;
  part.q = rows_of(task.q, first, rows, element_bytes);
  part.out.o += first * task.out.o_stride;
  part.out.lse += first * task.out.lse_stride;
  return part;
}

BackwardTask rows_of(const BackwardTask& task, int64_t first, int64_t rows, int64_t element_bytes) {
  BackwardTask part = task;
  const int64_t elements = first * task.q.row_stride;
  part.q = rows_of(task.q, first, rows, element_bytes);
  part.grad_out = static_cast<const std::byte*>(task.grad_out) + elements * element_bytes;
  part.grad_q += elements;
  part.statistics += first * task.statistics_stride;
  return part;
}

GridVector AttendGrid::place(int64_t i) const {
  GridVector at{};
  for (size_t d = 0; d < at.size(); i /= count[d], ++d) at[d] = i % count[d];
  return at;
}

AttendTask AttendGrid::at(const GridVector& place) const {
  AttendTask moved = task;
  moved.q.q = static_cast<const std::byte*>(task.q.q) + along(place, q_step_bytes);
  moved.kv = task.kv.moved(place);
  moved.out.o += along(place, o_step);
  moved.out.lse += along(place, lse_step);
  return moved;
}

BackwardTask BackwardGrid::at(const GridVector& place, int64_t element_bytes) const {
  const AttendTask task = attend.at(place);
  const int64_t q_bytes = along(place, attend.q_step_bytes);
  return {.q = task.q,
          .grad_out = static_cast<const std::byte*>(grad_out) + q_bytes,
          .statistics = statistics + along(place, statistics_step),
          .statistics_stride = statistics_stride,
          .grad_q = grad_q + q_bytes / element_bytes,
          .kv = task.kv,
          .keys = keys,
          .grad_keys = grad_keys};
}

std::optional<GridStep> step_between(const AttendGrid& a, const AttendGrid& b) {
  if (!alike(a, b)) return std::nullopt;
  const AttendTask &x = a.task, &y = b.task;
  GridStep step{
      .q = bytes_between(x.q.q, y.q.q), .o = y.out.o - x.out.o, .lse = y.out.lse - x.out.lse};
  if (step.q <= 0 || (x.out.o != nullptr && (step.o <= 0 || step.lse <= 0))) return std::nullopt;
  for (size_t i = 0; i < x.kv.size(); ++i) {
    const KvRun k = x.kv[i], l = y.kv[i];
    step.keys.push_back(bytes_between(k.k, l.k));
    if (!alike(k, l) || step.keys.back() < 0 || bytes_between(k.v, l.v) != step.keys.back() ||
        l.first_token - y.q.first_token != k.first_token - x.q.first_token)
      return std::nullopt;
  }
  return step;
}

bool same_tasks(std::span<const AttendGrid> a, std::span<const AttendGrid> b) {
  return std::ranges::equal(a, b, [](const AttendGrid& x, const AttendGrid& y) {
    return alike(x, y) && same_place(x.task, y.task);
  });
}

AttendGrid repeated(const AttendGrid& grid, size_t dimension, int64_t count, const GridStep& step,
                    KvLists& lists) {
  AttendGrid out = grid;
  out.count[dimension] = count;
  out.q_step_bytes[dimension] = step.q;
  out.o_step[dimension] = step.o;
  out.lse_step[dimension] = step.lse;
  auto& runs = lists.emplace_back(grid.task.kv.list());
  for (size_t r = 0; r < runs.size(); ++r) runs[r].step_bytes[dimension] = step.keys[r];
  out.task.kv = runs;
  return out;
}

std::vector<AttendGrid> joined(const std::vector<AttendGrid>& grids, size_t dimension,
                               KvLists& lists) {
  std::vector<AttendGrid> out;
  for (size_t i = 0; i < grids.size();) {
    std::optional<GridStep> step;
    size_t count = 1;
    for (; i + count < grids.size(); ++count) {
      auto next = step_between(grids[i + count - 1], grids[i + count]);
      if (!next || (step && *next != *step)) break;
      step = std::move(next);
    }
    out.push_back(step ? repeated(grids[i], dimension, int64_t(count), *step, lists) : grids[i]);
    i += count;
  }
  return out;
}

}  // namespace longnet
