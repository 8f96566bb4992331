#include "kernels/cuda/group_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>

#include "core/check.h"
#include "core/token_range.h"
#include "kernels/cuda/tile_plan.h"

namespace longnet {
namespace {

int64_t keys_of(const GroupPlan& plan, const GroupTask& task) {
  int64_t keys = 0;
  for (int i = 0; i < task.num_runs; ++i) keys += plan.runs[size_t(task.first_run + i)].limit.rows;
  return keys;
}

// Key tiles that a tile walks, and one for what it does before and after.
int64_t cost_of(const GroupPlan& plan, const GroupTask& task, int last_row, bool causal, int keys) {
  int64_t tiles = 1;
  for (int i = 0; i < task.num_runs; ++i) {
    const GroupRun& run = plan.runs[size_t(task.first_run + i)];
    const int64_t seen = causal ? run.limit.visible(last_row) : run.limit.rows;
    tiles += ceil_div(seen, keys);
  }
  return tiles;
}

void add_views(GroupPlan& plan, std::span<const RowRun> queries, std::span<const RowRun> keys,
               std::span<const RowRun> values) {
  const TensorViews q = tensor_views(queries);
  std::vector<RowRun> both(keys.begin(), keys.end());
  both.insert(both.end(), values.begin(), values.end());
  const TensorViews kv = tensor_views(both);
  plan.query_views = q.views.size();
  plan.views = q.views;
  plan.views.insert(plan.views.end(), kv.views.begin(), kv.views.end());
  const auto shifted = [&](ViewPlace place) {
    place.view += int32_t(plan.query_views);
    return place;
  };
  for (size_t i = 0; i < plan.tasks.size(); ++i) plan.tasks[i].q = q.places[i];
  for (size_t i = 0; i < plan.runs.size(); ++i) {
    plan.runs[i].k = shifted(kv.places[i]);
    plan.runs[i].v = shifted(kv.places[plan.runs.size() + i]);
  }
}

void add_tiles(GroupPlan& plan, bool causal, const GroupTiling& tiling) {
  std::vector<int32_t> order(plan.tasks.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>{},
                           [&](int32_t i) { return keys_of(plan, plan.tasks[size_t(i)]); });
  using Load = std::pair<int64_t, int>;  // so far, block
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (int b = 0; b < tiling.blocks; ++b) least.emplace(0, b);
  std::vector<std::vector<GroupTile>> lists(static_cast<size_t>(tiling.blocks));
  int64_t count = 0;
  for (const int32_t i : order) {
    const GroupTask& task = plan.tasks[size_t(i)];
    for (int tile = int(ceil_div(task.rows, tiling.rows)) - 1; tile >= 0; --tile, ++count) {
      const int row = tile * tiling.rows, last = std::min(row + tiling.rows, task.rows) - 1;
      auto [load, block] = least.top();
      least.pop();
      lists[size_t(block)].push_back({i, row});
      least.emplace(load + cost_of(plan, task, last, causal, tiling.keys), block);
    }
  }
  check(count < std::numeric_limits<int32_t>::max(), "too many tiles for one launch: ", count);
  plan.block_begin.push_back(0);
  for (const auto& list : lists) {
    if (list.empty()) continue;
    plan.tiles.insert(plan.tiles.end(), list.begin(), list.end());
    plan.block_begin.push_back(int32_t(plan.tiles.size()));
  }
}

}  // namespace

GroupPlan plan_groups(std::span<const AttendTask> tasks, bool causal, GroupTiling tiling) {
  check(tiling.blocks > 0 && tiling.rows > 0 && tiling.keys > 0, "a tiling of ", tiling.rows, " x ",
        tiling.keys, " on ", tiling.blocks, " blocks");
  GroupPlan plan;
  std::vector<RowRun> queries, keys, values;
  for (const AttendTask& task : tasks) {
    if (task.q.rows == 0) continue;
    check(task.q.rows < (int64_t{1} << 30), "a task of ", task.q.rows, " rows");
    GroupTask out{.o = task.out.o,
                  .lse = task.out.lse,
                  .o_stride = task.out.o_stride,
                  .lse_stride = task.out.lse_stride,
                  .q = {},
                  .rows = int32_t(task.q.rows),
                  .first_run = int32_t(plan.runs.size()),
                  .num_runs = 0};
    for (const KvRun& run : task.kv) {
      if (run.rows == 0) continue;
      plan.runs.push_back({.k = {}, .v = {}, .limit = key_limit(task.q, run, causal)});
      keys.push_back({run.k, run.rows, run.row_stride});
      values.push_back({run.v, run.rows, run.row_stride});
    }
    check(plan.runs.size() < (size_t{1} << 30), "too many key runs: ", plan.runs.size());
    out.num_runs = int32_t(plan.runs.size()) - out.first_run;
    plan.tasks.push_back(out);
    queries.push_back({task.q.q, task.q.rows, task.q.row_stride});
  }
  add_views(plan, queries, keys, values);
  add_tiles(plan, causal, tiling);
  return plan;
}

}  // namespace longnet
