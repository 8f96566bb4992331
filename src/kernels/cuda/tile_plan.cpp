#include "kernels/cuda/tile_plan.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "core/check.h"
#include "core/token_range.h"

namespace longnet {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

// Positions ascend through all runs: then the keys that a query sees are the first ones.
bool ascending(const KeyRuns& runs) {
  int64_t last = std::numeric_limits<int64_t>::min();
  for (const KvRun run : runs) {
    if (run.rows == 0) continue;
    if (run.first_token <= last) return false;
    last = run.first_token + (run.rows - 1) * run.token_step;
  }
  return true;
}

// prefix: what the rows see are the task's first keys.
void add_tiles(TilePlan& plan, int32_t index, bool causal, bool prefix, int rows_per_tile) {
  const TileTask& task = plan.tasks[size_t(index)];
  const std::span runs(plan.runs.data() + task.first_run, size_t(task.num_runs));
  const int64_t all = runs.empty() ? 0 : runs.back().begin + runs.back().rows;
  const auto count_up_to = [&](int64_t row) {
    int64_t keys = 0;
    for (const TileRun& run : runs) keys += run.limit.visible(int(row));
    return keys;
  };
  const int tiles = int(ceil_div(task.rows, rows_per_tile));
  for (int i = tiles - 1; i >= 0; --i) {
    TileRef tile{.task = index, .row = i * rows_per_tile, .keys = all, .unmasked = all};
    if (causal) tile.unmasked = prefix ? count_up_to(tile.row) : 0;
    if (prefix) tile.keys = count_up_to(std::min(tile.row + rows_per_tile, task.rows) - 1);
    plan.tiles.push_back(tile);
  }
}

}  // namespace

KeyLimit key_limit(const QueryRun& q, const KvRun& run, bool causal) {
  check(run.rows >= 0 && run.rows < (int64_t{1} << 30), "a run of ", run.rows, " rows");
  KeyLimit limit{.rows = int32_t(run.rows)};
  if (!causal) return limit;
  const int64_t step = run.rows > 1 ? run.token_step : 1;
  const int64_t row_step = q.rows > 1 ? q.token_step : 0;
  check(step > 0 && row_step >= 0, "causal rows and keys must ascend");
  const int64_t ahead = floor_div(q.first_token - run.first_token, step);
  limit.ahead = ahead + 1;
  limit.per_row = row_step / step;
  limit.rest = uint64_t(q.first_token - run.first_token - ahead * step);
  limit.rest_per_row = uint64_t(row_step % step);
  limit.step = uint64_t(step);
  limit.inverse = inverse_of(limit.step);
  return limit;
}

TilePlan plan_tiles(std::span<const AttendGrid> grids, bool causal, int rows_per_tile) {
  const auto keys_of = [](const AttendGrid* grid) {
    int64_t keys = 0;
    for (const KvRun run : grid->task.kv) keys += run.rows;
    return keys;
  };
  std::vector<const AttendGrid*> order;
  for (const AttendGrid& grid : grids)
    if (grid.task.q.rows > 0) order.push_back(&grid);
  std::ranges::stable_sort(order, std::greater<>{}, keys_of);

  TilePlan plan;
  for (const AttendGrid* const grid : order) {
    const QueryRun& q = grid->task.q;
    check(q.rows < (int64_t{1} << 30), "a task of ", q.rows, " rows");
    std::vector<KeyLimit> limits;  // all tasks of a grid see their keys alike
    for (const KvRun run : grid->task.kv) limits.push_back(key_limit(q, run, causal));
    const bool prefix = causal && ascending(grid->task.kv);
    for (int64_t i = 0; i < grid->size(); ++i) {
      const AttendTask task = grid->at(i);
      TileTask out{.q = task.q.q,
                   .o = task.out.o,
                   .lse = task.out.lse,
                   .q_stride = q.row_stride,
                   .o_stride = task.out.o_stride,
                   .lse_stride = task.out.lse_stride,
                   .rows = int32_t(q.rows),
                   .first_run = int32_t(plan.runs.size()),
                   .num_runs = 0};
      int64_t keys = 0;
      for (size_t r = 0; r < limits.size(); ++r) {
        const KvRun run = task.kv[r];
        if (run.rows == 0) continue;
        plan.runs.push_back({.k = run.k,
                             .v = run.v,
                             .stride = run.row_stride,
                             .begin = keys,
                             .rows = run.rows,
                             .limit = limits[r]});
        keys += run.rows;
      }
      check(plan.runs.size() < (size_t{1} << 31), "too many key runs: ", plan.runs.size());
      out.num_runs = int32_t(plan.runs.size()) - out.first_run;
      plan.tasks.push_back(out);
      add_tiles(plan, int32_t(plan.tasks.size()) - 1, causal, prefix, rows_per_tile);
    }
  }
  return plan;
}

std::string why_misaligned(std::span<const AttendGrid> grids) {
  const auto odd = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 != 0; };
  const auto odd_steps = [](const GridVector& steps) {
    return std::ranges::any_of(steps, [](int64_t bytes) { return bytes % 16 != 0; });
  };
  for (size_t i = 0; i < grids.size(); ++i) {
    const AttendTask& t = grids[i].task;
    if (odd(t.q.q) || odd_steps(grids[i].q_step_bytes) || (t.q.rows > 1 && t.q.row_stride % 8 != 0))
      return concat("the queries of grid ", i, " are not 16-byte aligned (address ", t.q.q,
                    ", row stride ", t.q.row_stride, " elements)");
    for (const KvRun run : t.kv)
      if (odd(run.k) || odd(run.v) || odd_steps(run.step_bytes) ||
          (run.rows > 1 && run.row_stride % 8 != 0))
        return concat("keys or values of grid ", i, " are not 16-byte aligned (addresses ", run.k,
                      ", ", run.v, ", row stride ", run.row_stride, " elements)");
  }
  return "";
}

}  // namespace longnet
