// The blocks of a grid's backward pass, in an order in which threads need no atomics and every sum
// has its terms in one order.
//
// A block adds to dQ of its queries and to dK, dV of its keys. Tasks that add to the same keys are
// a group: its queries are those of all its tasks, one after another. Of n blocks of queries and of
// keys (n: the larger number), step s runs the pairs (key block k, query block (k + s) mod n),
// which share no row, in parallel (a Latin square; DASH's "shift", arXiv 2601.21824):
//
//   n = 3     k: 0 1 2
//   step 0       0 1 2   query blocks
//   step 1       1 2 0
//   step 2       2 0 1
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "core/check.h"
#include "core/token_range.h"
#include "kernels/attend_grid.h"
#include "kernels/cpu/attend_simd.h"
#include "kernels/cpu/key_panels.h"

namespace longnet {

// A set of dimensions of a grid, one bit each.
using Dimensions = unsigned;
inline bool contains(Dimensions set, int d) { return (set >> d & 1) != 0; }

// Bytes from the first to the end of the last K row that tasks along `moving` read of `run`, or
// nothing when it cannot be excluded that two of those rows overlap: sorted, each step must be as
// long as all that the shorter ones reach.
inline std::optional<int64_t> distinct_reach(const KvRun& run, const GridVector& count,
                                             Dimensions moving, int64_t element_bytes,
                                             int64_t row_bytes) {
  struct Step {
    int64_t bytes, count;
  };
  std::array<Step, kGridDimensions + 1> steps;
  size_t used = 0;
  const auto insert = [&](const Step& step) {
    size_t at = used++;
    for (; at > 0 && steps[at - 1].bytes > step.bytes; --at) steps[at] = steps[at - 1];
    steps[at] = step;
  };
  if (run.rows > 1) insert({run.row_stride * element_bytes, run.rows});
  for (int d = 0; d < kGridDimensions; ++d)
    if (contains(moving, d)) insert({run.step_bytes[size_t(d)], count[size_t(d)]});
  int64_t reach = row_bytes;
  for (size_t i = 0; i < used; ++i) {
    if (steps[i].bytes < reach) return std::nullopt;
    reach += (steps[i].count - 1) * steps[i].bytes;
  }
  return reach;
}

inline bool distinct_keys(const AttendGrid& grid, Dimensions moving, int64_t element_bytes,
                          int64_t row_bytes) {
  for (size_t i = 0; i < grid.task.kv.size(); ++i) {
    const KvRun a = grid.task.kv[i];
    if (a.rows == 0) continue;
    const auto reach = distinct_reach(a, grid.count, moving, element_bytes, row_bytes);
    if (!reach) return false;
    for (size_t j = 0; j < grid.task.kv.size(); ++j) {
      const KvRun b = grid.task.kv[j];
      const int64_t to = bytes_between(a.k, b.k);
      if (j != i && b.rows > 0 && to >= 0 && to < *reach) return false;
    }
  }
  return true;
}

// How tasks of a grid share keys, by dimension.
struct KeySharing {
  Dimensions independent =
      0;                 // along these no two tasks share a key; along the others all of them,
  bool tangled = false;  // or some in ways that are not looked into
};

// Throws Error where a task's keys lie before those of the task before it: grids are made ascending
// (step_between), and what descends would pass for shared.
inline KeySharing key_sharing(const AttendGrid& grid, int64_t element_bytes, int64_t head_dim) {
  KeySharing out;
  const auto longest_step = [&](size_t d) {
    int64_t longest = 0;
    for (const KvRun run : grid.task.kv) longest = std::max(longest, run.step_bytes[d]);
    return longest;
  };
  for (const KvRun run : grid.task.kv)
    for (const int64_t step : run.step_bytes)
      check(step >= 0, "keys of the next task lie ", step, " bytes behind: tasks must ascend");
  for (int d = 0; d < kGridDimensions; ++d)
    if (grid.count[size_t(d)] > 1 && longest_step(size_t(d)) > 0) out.independent |= 1u << d;
  while (!distinct_keys(grid, out.independent, element_bytes, head_dim * element_bytes)) {
    out.tangled = true;
    if (out.independent == 0) break;
    int longest = -1;
    for (int d = 0; d < kGridDimensions; ++d)
      if (contains(out.independent, d) &&
          (longest < 0 || longest_step(size_t(d)) > longest_step(size_t(longest))))
        longest = d;
    out.independent &= ~(1u << longest);
  }
  return out;
}

// Rows of a block. Every block copies its queries and packs its keys anew: at 512 rows that takes a
// few percent, below it is not worth a thread. Blocks are as long as caches allow (2048), and as
// short where the groups are too few to keep 32 threads busy. The number of threads itself may not
// matter: it would change the sums.
inline int64_t block_rows(int64_t rows, int64_t groups, int64_t multiple) {
  constexpr int64_t kThreads = 32, kShort = 512, kLong = 2048;
  const int64_t wanted = ceil_div(kThreads, std::max<int64_t>(groups, 1));
  const int64_t blocks =
      std::max({int64_t{1}, std::min(wanted, ceil_div(rows, kShort)), ceil_div(rows, kLong)});
  return std::max(multiple, round_up(ceil_div(rows, blocks), multiple));
}

class BackwardSchedule {
 public:
  struct Block {
    GridVector place;  // its task's, in the grid
    int64_t first_row, rows;
    KeyRange keys;
  };

  // Blocks have whole tiles of `tile_rows` queries.
  BackwardSchedule(const AttendGrid& grid, int64_t element_bytes, int64_t head_dim,
                   int64_t tile_rows)
      : count_(grid.count), rows_(grid.task.q.rows) {
    const KeySharing sharing = key_sharing(grid, element_bytes, head_dim);
    independent_ = sharing.independent;
    for (const KvRun run : grid.task.kv) keys_ += run.rows;
    int64_t tasks = 1;  // in a group
    for (int d = 0; d < kGridDimensions; ++d)
      (contains(independent_, d) ? groups_ : tasks) *= count_[size_t(d)];
    rows_per_block_ = block_rows(rows_, groups_, tile_rows);
    keys_per_block_ =
        sharing.tangled ? std::max<int64_t>(keys_, 1) : block_rows(keys_, groups_, kPanelKeys);
    row_blocks_ = ceil_div(rows_, rows_per_block_);
    key_blocks_ = ceil_div(keys_, keys_per_block_);
    query_blocks_ = tasks * row_blocks_;
    steps_ = std::max(query_blocks_, key_blocks_);
    if (query_blocks_ == 0 || key_blocks_ == 0) steps_ = 0;
  }

  int64_t steps() const { return steps_; }
  int64_t blocks() const { return groups_ * key_blocks_; }  // in one step

  // Block i of a step; nothing where the square has none.
  std::optional<Block> block(int64_t step, int64_t i) const {
    const int64_t key_block = i % key_blocks_, at = (key_block + step) % steps_;
    if (at >= query_blocks_) return std::nullopt;
    const int64_t first_row = at % row_blocks_ * rows_per_block_;
    const int64_t first_key = key_block * keys_per_block_;
    return Block{.place = place(i / key_blocks_, at / row_blocks_),
                 .first_row = first_row,
                 .rows = std::min(rows_per_block_, rows_ - first_row),
                 .keys = {first_key, first_key + keys_per_block_}};
  }

 private:
  GridVector place(int64_t group, int64_t task) const {
    GridVector out;
    for (int d = 0; d < kGridDimensions; ++d) {
      int64_t& from = contains(independent_, d) ? group : task;
      out[size_t(d)] = from % count_[size_t(d)];
      from /= count_[size_t(d)];
    }
    return out;
  }

  GridVector count_;
  int64_t rows_;
  Dimensions independent_;
  int64_t keys_ = 0, groups_ = 1;
  int64_t rows_per_block_, keys_per_block_, row_blocks_, key_blocks_, query_blocks_, steps_;
};

}  // namespace longnet
