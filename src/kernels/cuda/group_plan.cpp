#include "kernels/cuda/group_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>

#include "core/check.h"
#include "core/token_range.h"
#include "kernels/cuda/tile_plan.h"

namespace longnet {
namespace {

// One tensor's rows for all tasks of a grid. Tasks that share their rows (a step of 0) share a
// place: tensor maps have no such steps.
class GridViews {
 public:
  // Appends to `views`.
  GridViews(const TensorView& rows, const GridVector& count, const GridVector& step_bytes,
            std::vector<TensorView>& views)
      : first_(views.size()), count_(count), step_bytes_(step_bytes) {
    TensorView view = rows;
    for (size_t d = 0; d < 3; ++d)
      if (!shared(d)) view.count[d] = count[d], view.step_bytes[d] = step_bytes[d];
    if (goes_on()) {
      view.count[0] *= count[3];
      if (count[0] == 1) view.step_bytes[0] = step_bytes[3];
    }
    const int64_t sequences = goes_on() || shared(3) ? 1 : count[3];
    for (int64_t i = 0; i < sequences; ++i) {
      views.push_back(view);
      view.first = static_cast<const std::byte*>(view.first) + step_bytes[3];
    }
  }
  ViewPlace place(const GridVector& task) const {
    ViewPlace place{.view = int32_t(first_), .at = {}};
    for (size_t d = 0; d < 3; ++d) place.at[d] = shared(d) ? 0 : int32_t(task[d]);
    if (shared(3)) return place;
    if (goes_on())
      place.at[0] += int32_t(task[3] * count_[0]);
    else
      place.view += int32_t(task[3]);
    return place;
  }

 private:
  bool shared(size_t d) const { return step_bytes_[d] == 0; }
  bool goes_on() const {
    return !shared(3) && (count_[0] == 1 || step_bytes_[3] == count_[0] * step_bytes_[0]);
  }
  size_t first_;
  GridVector count_, step_bytes_;
};

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

// K and V of a key run, or of several at equal distances: those of many ranks in one gathered slot.
struct KeyViews {
  GridViews k, v;
};
// Equal runs of several grids share their views.
using KnownKeys =
    std::map<std::tuple<const void*, const void*, int64_t, int64_t, GridVector, GridVector>,
             KeyViews>;

// Bytes from one run to the next; 0 where they are not alike, or have no such distance.
int64_t step_between(const KvRun& a, const KvRun& b) {
  const auto bytes = [](const void* from, const void* to) {
    return static_cast<const std::byte*>(to) - static_cast<const std::byte*>(from);
  };
  const int64_t step = bytes(a.k, b.k);
  const bool alike = a.rows == b.rows && a.row_stride == b.row_stride &&
                     a.step_bytes == b.step_bytes && bytes(a.v, b.v) == step;
  return alike && step > 0 ? step : 0;
}

// Returns the number of leading runs at equal distances, and that distance (0 for one run).
std::pair<size_t, int64_t> progression(std::span<const KvRun> runs) {
  if (runs.size() < 2) return {runs.size(), 0};
  const int64_t step = step_between(runs[0], runs[1]);
  size_t count = 1;
  while (step > 0 && count < runs.size() && step_between(runs[count - 1], runs[count]) == step)
    ++count;
  return {count, count > 1 ? step : 0};
}

class GridTasks {
 public:
  GridTasks(GroupPlan& plan, bool causal) : plan_(plan), causal_(causal) {}

  void add(const AttendGrid& grid) {
    const QueryRun& q = grid.task.q;
    check(q.rows < (int64_t{1} << 30), "a task of ", q.rows, " rows");
    const GridViews queries =
        views_of({q.q, q.rows, q.row_stride}, grid.count, grid.q_step_bytes, true);
    const std::vector<Run> runs = runs_of(grid);
    for (int64_t i = 0; i < grid.size(); ++i) {
      const GridVector at = grid.place(i);
      const PartialRun out = grid.at(at).out;
      plan_.tasks.push_back({.o = out.o,
                             .lse = out.lse,
                             .o_stride = out.o_stride,
                             .lse_stride = out.lse_stride,
                             .q = queries.place(at),
                             .rows = int32_t(q.rows),
                             .first_run = int32_t(plan_.runs.size()),
                             .num_runs = int32_t(runs.size())});
      for (const Run& run : runs) {
        GridVector place = at;
        place[0] += run.index;
        plan_.runs.push_back(
            {.k = run.views.k.place(place), .v = run.views.v.place(place), .limit = run.limit});
      }
      check(plan_.runs.size() < (size_t{1} << 30), "too many key runs: ", plan_.runs.size());
    }
  }

 private:
  struct Run {
    KeyViews views;
    int64_t index;  // in a progression, which takes the place of the grid's first dimension
    KeyLimit limit;
  };

  GridViews views_of(const TensorView& rows, const GridVector& count, const GridVector& step_bytes,
                     bool queries) {
    const GridViews views(rows, count, step_bytes, plan_.views);
    plan_.of_queries.resize(plan_.views.size(), queries);
    return views;
  }

  std::vector<Run> runs_of(const AttendGrid& grid) {
    std::vector<KvRun> all = grid.task.kv.list();
    std::erase_if(all, [](const KvRun& run) { return run.rows == 0; });
    std::vector<Run> runs;
    for (size_t i = 0; i < all.size();) {
      const KvRun& first = all[i];
      GridVector count = grid.count, step = first.step_bytes;
      size_t together = 1;
      if (count[0] == 1) {
        std::tie(together, step[0]) = progression(std::span(all).subspan(i));
        count[0] = int64_t(together);
      }
      const KeyViews views = key_views(first, count, step);
      for (size_t j = 0; j < together; ++j)
        runs.push_back({views, int64_t(j), key_limit(grid.task.q, all[i + j], causal_)});
      i += together;
    }
    return runs;
  }

  KeyViews key_views(const KvRun& run, const GridVector& count, const GridVector& step_bytes) {
    const KnownKeys::key_type key{run.k, run.v, run.rows, run.row_stride, count, step_bytes};
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
    const GridViews k = views_of({run.k, run.rows, run.row_stride}, count, step_bytes, false);
    const GridViews v = views_of({run.v, run.rows, run.row_stride}, count, step_bytes, false);
    return known_.emplace(key, KeyViews{k, v}).first->second;
  }

  GroupPlan& plan_;
  bool causal_;
  KnownKeys known_;
};

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

GroupPlan plan_groups(std::span<const AttendGrid> grids, bool causal, GroupTiling tiling) {
  check(tiling.blocks > 0 && tiling.rows > 0 && tiling.keys > 0, "a tiling of ", tiling.rows, " x ",
        tiling.keys, " on ", tiling.blocks, " blocks");
  GroupPlan plan;
  GridTasks tasks(plan, causal);
  for (const AttendGrid& grid : grids)
    if (grid.task.q.rows > 0) tasks.add(grid);
  add_tiles(plan, causal, tiling);
  return plan;
}

}  // namespace longnet
