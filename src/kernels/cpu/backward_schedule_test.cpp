#include "kernels/cpu/backward_schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "kernels/cpu/attend_amx_simd.h"
#include "kernels/cpu/attend_backward_simd.h"
#include "kernels/testing/packed_branch.h"

namespace longnet {
namespace {

constexpr int64_t kHeadDim = 8, kElement = 2;

// Addresses of the K rows of a block.
std::vector<const void*> keys_of(const AttendTask& task, KeyRange range) {
  std::vector<const void*> out;
  int64_t key = 0;
  for (const KvRun run : task.kv)
    for (int64_t i = 0; i < run.rows; ++i, ++key)
      if (key >= range.begin && key < range.end)
        out.push_back(static_cast<const std::byte*>(run.k) + i * run.row_stride * kElement);
  return out;
}

// Every pair of a query and a key once; in no step two blocks with one row. Returns the most blocks
// of a step.
size_t check_schedule(const AttendGrid& grid, int64_t tile_rows, int64_t most_rows) {
  const BackwardSchedule schedule(grid, kElement, kHeadDim, tile_rows);
  std::map<GridVector, int64_t> pairs;
  size_t most = 0;
  for (int64_t step = 0; step < schedule.steps(); ++step) {
    std::set<const void*> keys;
    std::set<std::pair<GridVector, int64_t>> queries;
    size_t blocks = 0;
    for (int64_t i = 0; i < schedule.blocks(); ++i) {
      const auto block = schedule.block(step, i);
      if (!block) continue;
      ++blocks;
      std::set<const void*> own;
      const auto rows = keys_of(grid.at(block->place), block->keys);
      pairs[block->place] += block->rows * std::ssize(rows);
      own.insert(rows.begin(), rows.end());
      for (const void* row : own) EXPECT_TRUE(keys.insert(row).second) << step;
      EXPECT_LE(block->rows, most_rows);
      EXPECT_TRUE(queries.insert({block->place, block->first_row}).second) << step;
    }
    most = std::max(most, blocks);
  }
  int64_t all = 0;
  for (const KvRun run : grid.task.kv) all += run.rows * grid.task.q.rows;
  EXPECT_EQ(pairs.size(), all == 0 ? 0 : size_t(grid.size()));
  for (const auto& [place, count] : pairs) EXPECT_EQ(count, all);
  return most;
}

// With the tiles of cpu_amx too; returns the blocks of cpu.
size_t check_schedule(const AttendGrid& grid) {
  check_schedule(grid, kAmxBackwardTileRows, kAmxBackwardRows);
  return check_schedule(grid, kBackwardTileRows, kBackwardRows);
}

std::vector<size_t> check_branch(PackedAttention packed, int64_t w, int64_t r) {
  packed.head_dim = kHeadDim;
  KvLists lists;
  std::vector<size_t> most;
  for (const AttendGrid& grid : branch_grids(packed, w, r, lists))
    most.push_back(check_schedule(grid));
  return most;
}

TEST(BackwardScheduleTest, RunsSegmentsOffsetsAndKvHeadsInParallel) {
  using Blocks = std::vector<size_t>;
  EXPECT_EQ(check_branch(unread_packed(64, 12, 12), 16, 4), Blocks{48});
  EXPECT_EQ(check_branch(unread_packed(64, 12, 4), 16, 1), Blocks{16});  // 4 segments x 4
  EXPECT_EQ(check_branch(unread_packed(64, 4, 1), 64, 2), Blocks{2});    // two offsets
  EXPECT_EQ(check_branch(unread_packed(64, 1, 1), 64, 1), Blocks{1});
}

TEST(BackwardScheduleTest, CutsOneTaskIntoALatinSquare) {
  EXPECT_EQ(check_branch(unread_packed(513, 1, 1), 513, 1), std::vector<size_t>{2});
  EXPECT_EQ(check_branch(unread_packed(2048, 2, 1), 2048, 1), std::vector<size_t>{4});
  EXPECT_EQ(check_branch(unread_packed(10000, 1, 1), 10000, 1), std::vector<size_t>{19});
  EXPECT_EQ(check_branch(unread_packed(20000, 1, 1), 20000, 1), std::vector<size_t>{30});
}

// An address that is not read.
const void* unread(int64_t byte) { return reinterpret_cast<const void*>(byte); }

AttendGrid grid_of(const std::vector<KvRun>& runs, int64_t tasks) {
  return {.task = {.q = {.q = unread(int64_t{1} << 41), .row_stride = kHeadDim, .rows = 600},
                   .kv = runs,
                   .out = {}},
          .count = {tasks, 1, 1, 1},
          .q_step_bytes = {int64_t{1} << 30}};
}

std::vector<KvRun> two_runs(int64_t second_row, int64_t step_rows) {
  constexpr int64_t kRow = kHeadDim * kElement;
  const auto run = [&](int64_t row) {
    return KvRun{.k = unread((int64_t{1} << 40) + row * kRow),
                 .v = unread((int64_t{1} << 42) + row * kRow),
                 .row_stride = kHeadDim,
                 .rows = 600,
                 .step_bytes = {step_rows * kRow}};
  };
  return {run(0), run(second_row)};
}

TEST(BackwardScheduleTest, SeveralRuns) {
  EXPECT_EQ(check_schedule(grid_of(two_runs(100000, 1000), 3)), 3 * 2u);  // apart
  EXPECT_EQ(check_schedule(grid_of(two_runs(600, 0), 3)), 3u);            // shared by all tasks
}

TEST(BackwardScheduleTest, TasksWhoseKeysAreNotKnownToDifferRunOneByOne) {
  EXPECT_EQ(check_schedule(grid_of(two_runs(600, 600), 3)), 1u);  // a window over its predecessor
  EXPECT_EQ(check_schedule(grid_of(two_runs(0, 0), 1)), 1u);      // a run listed twice
  EXPECT_EQ(check_schedule(grid_of(two_runs(100000, 300), 3)), 1u);  // steps shorter than runs
}

TEST(BackwardScheduleTest, ManyGroupsGetLongBlocks) {
  EXPECT_EQ(check_branch(unread_packed(2048, 12, 12), 2048, 1), std::vector<size_t>{12 * 3});
  EXPECT_EQ(check_branch(unread_packed(2048, 32, 32), 2048, 1), std::vector<size_t>{32});
}

TEST(BackwardScheduleTest, TasksThatDescendAreRefused) {
  const std::vector<KvRun> runs = two_runs(100000, -1000);
  EXPECT_THROW(BackwardSchedule(grid_of(runs, 3), kElement, kHeadDim, kBackwardTileRows), Error);
}

TEST(BackwardScheduleTest, NothingToDo) {
  EXPECT_EQ(check_schedule(grid_of({}, 2)), 0u);
  const std::vector<KvRun> runs = two_runs(1000, 0);
  AttendGrid grid = grid_of(runs, 1);
  grid.task.q.rows = 0;
  EXPECT_EQ(check_schedule(grid), 0u);
}

}  // namespace
}  // namespace longnet
