#include "kernels/cuda/backward_plan.h"

#include <algorithm>
#include <unordered_map>

#include "core/check.h"
#include "core/token_range.h"
#include "kernels/cuda/attend_plan.h"
#include "kernels/cuda/block_lists.h"

namespace longnet {
namespace {

constexpr int64_t kElementBytes = 2;

class BackwardLists {
 public:
  BackwardPlan plan;

  void add(const BackwardGrid& grid, bool causal) {
    const QueryRun& q = grid.attend.task.q;
    check(q.rows < (int64_t{1} << 30), "a task of ", q.rows, " rows");
    std::vector<KvRun> runs = grid.attend.task.kv.list();
    std::erase_if(runs, [](const KvRun& run) { return run.rows == 0; });
    if (q.rows == 0 || runs.empty()) return;
    std::vector<KeyLimit> limits;  // the same for all tasks of a grid
    for (const KvRun& run : runs) limits.push_back(key_limit(q, run, causal));
    const AttendGrid& rows = grid.attend;
    const GridViews queries =
        views_.of({true, q.q, q.rows, q.row_stride}, rows.count, rows.q_step_bytes);
    const GridViews grad_out =
        views_.of({true, grid.grad_out, q.rows, q.row_stride}, rows.count, rows.q_step_bytes);
    const std::vector<RunViews> keys = views_.of(runs, rows.count);
    for (int64_t i = 0; i < grid.size(); ++i) {
      const GridVector at = grid.attend.place(i);
      BackwardTask task = grid.at(at, kElementBytes);
      task.kv = KeyRuns(runs).moved(at);
      const auto index = int32_t(plan.tasks.size());
      plan.tasks.push_back({.q = task.q.q,
                            .grad_out = task.grad_out,
                            .statistics = task.statistics,
                            .grad_q = task.grad_q,
                            .stride = q.row_stride,
                            .statistics_stride = task.statistics_stride,
                            .rows = int32_t(q.rows),
                            .first_run = int32_t(plan.runs.size()),
                            .num_runs = int32_t(runs.size()),
                            .place = {queries.place(at), grad_out.place(at)}});
      for (size_t r = 0; r < runs.size(); ++r)
        add_run(task, task.kv[r], limits[r], keys[r].place(at), index);
    }
  }

  void finish(int rows_per_tile) {
    // Under a mask a task's last rows see the most keys, and the first keys are seen the most.
    for (size_t i = 0; i < plan.tasks.size(); ++i)
      for (int64_t t = ceil_div(plan.tasks[i].rows, rows_per_tile) - 1; t >= 0; --t)
        plan.query_tiles.push_back({int32_t(i), int32_t(t) * rows_per_tile});
    for (const std::vector<KeySource>& sources : of_group_) {
      const auto group = int32_t(plan.groups.size());
      plan.groups.push_back({int32_t(plan.sources.size()), int32_t(sources.size())});
      plan.sources.insert(plan.sources.end(), sources.begin(), sources.end());
      const int32_t rows = plan.runs[size_t(sources.front().run)].limit.rows;
      for (int32_t row = 0; row < rows; row += rows_per_tile)
        plan.key_tiles.push_back({group, row});
    }
    plan.views = views_.all();
    check(plan.sources.size() < (size_t{1} << 31), "too many key runs: ", plan.sources.size());
  }

 private:
  void add_run(const BackwardTask& task, const KvRun& run, const KeyLimit& limit,
               const PlacePair& place, int32_t index) {
    const KeySource source{index, int32_t(plan.runs.size())};
    plan.runs.push_back({.k = run.k,
                         .v = run.v,
                         .grad_k = task.gradient_of(run.k, kElementBytes),
                         .grad_v = task.gradient_of(run.v, kElementBytes),
                         .stride = run.row_stride,
                         .limit = limit,
                         .place = place});
    const auto [known, is_new] = groups_.try_emplace(run.k, of_group_.size());
    if (is_new) of_group_.emplace_back();
    std::vector<KeySource>& sources = of_group_[known->second];
    sources.push_back(source);
    const BackwardRun &first = plan.runs[size_t(sources.front().run)], &added = plan.runs.back();
    check(first.v == added.v && first.grad_k == added.grad_k && first.grad_v == added.grad_v &&
              first.limit.rows == added.limit.rows &&
              (first.stride == added.stride || run.rows == 1),
          "runs of ", first.limit.rows, " and of ", run.rows,
          " keys that begin at the same one, and are not the same");
  }

  ViewLists views_;
  std::unordered_map<const void*, size_t> groups_;  // by the first key
  std::vector<std::vector<KeySource>> of_group_;
};

}  // namespace

BackwardPlan plan_backward(std::span<const BackwardGrid> grids, bool causal, int rows_per_tile) {
  BackwardLists lists;
  for (const BackwardGrid& grid : grids) lists.add(grid, causal);
  lists.finish(rows_per_tile);
  return std::move(lists.plan);
}

BackwardBlocks backward_blocks(const BackwardPlan& plan, bool of_keys, bool causal,
                               int rows_per_tile, int blocks) {
  BlockLists<BackwardTile> lists(blocks);
  for (const BackwardTile& tile : of_keys ? plan.key_tiles : plan.query_tiles) {
    int64_t columns = rows_per_tile;  // and what a block does before and after
    if (of_keys) {
      const KeyGroup& group = plan.groups[size_t(tile.owner)];
      for (const KeySource& source :
           std::span(plan.sources).subspan(size_t(group.first_source), size_t(group.num_sources))) {
        const int rows = plan.tasks[size_t(source.task)].rows;
        const KeyLimit& limit = plan.runs[size_t(source.run)].limit;
        columns += causal ? rows - limit.first_to_see(tile.row, rows) : rows;
      }
    } else {
      const BackwardRows& task = plan.tasks[size_t(tile.owner)];
      for (const BackwardRun& run :
           std::span(plan.runs).subspan(size_t(task.first_run), size_t(task.num_runs)))
        columns += causal ? run.limit.visible(std::min(tile.row + rows_per_tile, task.rows) - 1)
                          : run.limit.rows;
    }
    lists.add(tile, columns);
  }
  BackwardBlocks result;
  lists.finish(result.tiles, result.begin);
  return result;
}

std::string why_misaligned(std::span<const BackwardGrid> grids) {
  for (size_t i = 0; i < grids.size(); ++i) {
    const BackwardGrid& grid = grids[i];
    if (std::string why = why_misaligned({&grid.attend, 1}); !why.empty()) return why;
    const auto odd = [](int64_t floats) { return floats % 2 != 0; };
    if (reinterpret_cast<uintptr_t>(grid.grad_out) % 16 != 0 ||
        reinterpret_cast<uintptr_t>(grid.statistics) % 8 != 0 || odd(grid.statistics_stride) ||
        std::ranges::any_of(grid.statistics_step, odd))
      return concat("dO or the statistics of grid ", i, " are not aligned (addresses ",
                    grid.grad_out, ", ", static_cast<const void*>(grid.statistics), ")");
  }
  return "";
}

}  // namespace longnet
