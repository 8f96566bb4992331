#include "kernels/testing/packed_branch.h"

#include <utility>

namespace longnet {

std::vector<AttendGrid> branch_grids(const PackedAttention& p, int64_t w, int64_t r,
                                     KvLists& lists) {
  const int64_t d = p.head_dim, segments = p.tokens / w;
  const auto at = [&](const void* base, int64_t row) {
    return static_cast<const std::byte*>(base) + row * d * p.element_bytes;
  };
  std::vector<AttendGrid> grids;
  int64_t compact_row = 0;
  for (int64_t head = 0; head < p.heads; ++head) {
    const int64_t first = head % r, rows = (w - first + r - 1) / r;
    if (rows <= 0 || segments == 0) continue;
    const int64_t kv_row = first * p.kv_heads + head * p.kv_heads / p.heads;
    const int64_t out_row = p.compact_results ? compact_row : first * p.heads + head;
    const int64_t out_step = p.compact_results ? 1 : r * p.heads;
    const int64_t segment_step = p.compact_results ? rows : w * p.heads;
    auto& list = lists.emplace_back();
    list.push_back({.k = at(p.k, kv_row),
                    .v = at(p.v, kv_row),
                    .row_stride = r * p.kv_heads * d,
                    .rows = rows,
                    .first_token = first,
                    .token_step = r,
                    .step_bytes = {w * p.kv_heads * d * p.element_bytes}});
    grids.push_back({.task = {.q = {.q = at(p.q, first * p.heads + head),
                                    .row_stride = r * p.heads * d,
                                    .rows = rows,
                                    .first_token = first,
                                    .token_step = r},
                              .kv = list,
                              .out = {p.o + out_row * d, p.lse + out_row, out_step * d, out_step}},
                     .count = {segments, 1, 1, 1},
                     .q_step_bytes = {w * p.heads * d * p.element_bytes},
                     .o_step = {segment_step * d},
                     .lse_step = {segment_step}});
    compact_row += segments * rows;
  }
  return joined(joined(grids, 1, lists), 2, lists);
}

std::vector<BackwardGrid> backward_grids(const PackedAttention& p, const void* grad_out,
                                         float* grad_keys, int64_t w, int64_t r, KvLists& lists) {
  std::vector<BackwardGrid> out;
  for (AttendGrid grid : branch_grids(p, w, r, lists)) {
    const PartialRun rows = std::exchange(grid.task.out, {});
    GridVector statistics_step = std::exchange(grid.lse_step, {});
    for (int64_t& step : statistics_step) step *= 2;  // two numbers a row
    grid.o_step = {};
    out.push_back(
        {.attend = grid,
         .grad_out = static_cast<const std::byte*>(grad_out) + bytes_between(p.q, grid.task.q.q),
         .grad_q = rows.o,
         .statistics = rows.lse + (rows.lse - p.lse),
         .statistics_stride = 2 * rows.lse_stride,
         .statistics_step = statistics_step,
         .keys = p.k,
         .grad_keys = grad_keys});
  }
  return out;
}

}  // namespace longnet
