#include "kernels/cuda/attend_plan.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "core/check.h"
#include "core/token_range.h"
#include "kernels/cuda/block_lists.h"

namespace longnet {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

// Fills the plan of a kernel's `lists`: lists.enter(grid, its key runs that have rows), then for
// each task its form, that of each key run, and its tiles.
template <class Lists>
void plan_tasks(std::span<const AttendGrid> grids, bool causal, Lists& lists) {
  const auto keys_of = [](const AttendGrid* grid) {
    int64_t keys = 0;
    for (const KvRun run : grid->task.kv) keys += run.rows;
    return keys;
  };
  std::vector<const AttendGrid*> order;
  for (const AttendGrid& grid : grids)
    if (grid.task.q.rows > 0) order.push_back(&grid);
  std::ranges::stable_sort(order, std::greater<>{}, keys_of);

  auto& plan = lists.plan;
  for (const AttendGrid* const grid : order) {
    const QueryRun& q = grid->task.q;
    check(q.rows < (int64_t{1} << 30), "a task of ", q.rows, " rows");
    std::vector<KvRun> runs = grid->task.kv.list();
    std::erase_if(runs, [](const KvRun& run) { return run.rows == 0; });
    std::vector<KeyLimit> limits;  // the same for all tasks of a grid
    for (const KvRun& run : runs) limits.push_back(key_limit(q, run, causal));
    lists.enter(*grid, runs);
    for (int64_t i = 0; i < grid->size(); ++i) {
      const GridVector at = grid->place(i);
      AttendTask task = grid->at(at);
      task.kv = KeyRuns(runs).moved(at);
      plan.tasks.push_back(lists.task({.o = task.out.o,
                                       .lse = task.out.lse,
                                       .o_stride = task.out.o_stride,
                                       .lse_stride = task.out.lse_stride,
                                       .rows = int32_t(q.rows),
                                       .first_run = int32_t(plan.runs.size()),
                                       .num_runs = int32_t(runs.size())},
                                      task.q, at));
      for (size_t r = 0; r < runs.size(); ++r)
        plan.runs.push_back(lists.run(task.kv, r, at, limits[r]));
      check(plan.runs.size() < (size_t{1} << 31), "too many key runs: ", plan.runs.size());
      lists.add_tiles(int32_t(plan.tasks.size()) - 1);
    }
  }
}

// ---- cuda ----

constexpr int64_t kMostKeys = (int64_t{1} << 31) - 1024;  // tiles end beyond the last one

// True when positions ascend through all runs: a query then sees the first keys.
bool ascending(std::span<const KvRun> runs) {
  int64_t last = std::numeric_limits<int64_t>::min();
  for (const KvRun& run : runs) {
    if (run.first_token <= last) return false;
    last = run.first_token + (run.rows - 1) * run.token_step;
  }
  return true;
}

class TileLists {
 public:
  TileLists(bool causal, int rows_per_tile) : causal_(causal), rows_per_tile_(rows_per_tile) {}
  TilePlan plan;

  void enter(const AttendGrid&, std::span<const KvRun> runs) {
    prefix_ = causal_ && ascending(runs);
  }
  static TileTask task(const TaskRows& rows, const QueryRun& q, const GridVector&) {
    return {rows, q.q, q.row_stride};
  }
  TileRun run(const KeyRuns& runs, size_t r, const GridVector&, const KeyLimit& limit) const {
    const KvRun run = runs[r];
    const int64_t begin = r == 0 ? 0 : int64_t{plan.runs.back().begin} + plan.runs.back().rows;
    check(begin + run.rows <= kMostKeys, "a task of ", begin + run.rows, " keys");
    return {.k = run.k,
            .v = run.v,
            .stride = run.row_stride,
            .begin = int32_t(begin),
            .rows = int32_t(run.rows),
            .limit = limit};
  }
  void add_tiles(int32_t index) {
    const TileTask& task = plan.tasks[size_t(index)];
    const std::span runs(plan.runs.data() + task.first_run, size_t(task.num_runs));
    const int32_t all = runs.empty() ? 0 : runs.back().begin + runs.back().rows;
    const auto count_up_to = [&](int row) {
      int32_t keys = 0;
      for (const TileRun& run : runs) keys += run.limit.visible(row);
      return keys;
    };
    for (int i = int(ceil_div(task.rows, rows_per_tile_)) - 1; i >= 0; --i) {
      TileRef tile{.task = index, .row = i * rows_per_tile_, .keys = all, .unmasked = all};
      if (causal_) tile.unmasked = prefix_ ? count_up_to(tile.row) : 0;
      if (prefix_) tile.keys = count_up_to(std::min(tile.row + rows_per_tile_, task.rows) - 1);
      plan.tiles.push_back(tile);
    }
  }

 private:
  bool causal_, prefix_ = false;  // prefix_: rows see the first keys of their task
  int rows_per_tile_;
};

// ---- cuda_sm90a ----

class GroupLists {
 public:
  GroupLists(bool causal, const GroupTiling& tiling)
      : causal_(causal), tiling_(tiling), blocks_(tiling.blocks) {}
  GroupPlan plan;

  void enter(const AttendGrid& grid, std::span<const KvRun> runs) {
    const QueryRun& q = grid.task.q;
    queries_ = views_.of({true, q.q, q.rows, q.row_stride}, grid.count, grid.q_step_bytes);
    runs_ = views_.of(runs, grid.count);
  }
  GroupTask task(const TaskRows& rows, const QueryRun&, const GridVector& at) const {
    return {rows, queries_.place(at)};
  }
  GroupRun run(const KeyRuns&, size_t r, const GridVector& at, const KeyLimit& limit) const {
    const PlacePair keys = runs_[r].place(at);
    return {.k = keys.a, .v = keys.b, .limit = limit};
  }
  void add_tiles(int32_t index) {
    const GroupTask& task = plan.tasks[size_t(index)];
    for (int i = int(ceil_div(task.rows, tiling_.rows)) - 1; i >= 0; --i) {
      const int row = i * tiling_.rows, last = std::min(row + tiling_.rows, task.rows) - 1;
      if (const int64_t keys = key_tiles_of(task, last); keys > 0)
        blocks_.add({index, row}, 2 * keys + 1);  // half a key tile for what it does between tiles
      else
        plan.keyless.push_back({index, row});
    }
  }
  void finish() {
    plan.views = views_.all();
    blocks_.finish(plan.tiles, plan.block_begin);
    if (plan.tiles.empty() && !plan.keyless.empty()) plan.block_begin.push_back(0);
  }

 private:
  int64_t key_tiles_of(const GroupTask& task, int last_row) const {
    int64_t tiles = 0;
    for (const GroupRun& run :
         std::span(plan.runs).subspan(size_t(task.first_run), size_t(task.num_runs)))
      tiles += ceil_div(causal_ ? run.limit.visible(last_row) : run.limit.rows, tiling_.keys);
    return tiles;
  }

  bool causal_;
  GroupTiling tiling_;
  ViewLists views_;
  GridViews queries_;           // the grid's
  std::vector<RunViews> runs_;  // the grid's
  BlockLists<GroupTile> blocks_;
};

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
  TileLists lists(causal, rows_per_tile);
  plan_tasks(grids, causal, lists);
  return std::move(lists.plan);
}

GroupPlan plan_groups(std::span<const AttendGrid> grids, bool causal, const GroupTiling& tiling) {
  check(tiling.blocks > 0 && tiling.rows > 0 && tiling.keys > 0, "a tiling of ", tiling.rows, " x ",
        tiling.keys, " on ", tiling.blocks, " blocks");
  GroupLists lists(causal, tiling);
  plan_tasks(grids, causal, lists);
  lists.finish();
  return std::move(lists.plan);
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
