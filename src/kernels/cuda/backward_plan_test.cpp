#include "kernels/cuda/backward_plan.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <utility>

#include "core/check.h"

namespace longnet {
namespace {

// Three query heads of a K/V head: 70 queries and 130 keys, in rows of 64 elements that are
// compared, never read.
struct Rows {
  KvRun run{.k = address(2), .v = address(3), .row_stride = 64, .rows = 130};
  BackwardGrid grid;

  Rows() {
    grid = {.attend = {.task = {.q = {.q = address(1), .row_stride = 192, .rows = 70},
                                .kv = {&run, 1},
                                .out = {}},
                       .count = {3, 1, 1, 1},
                       .q_step_bytes = {128}},
            .grad_out = address(4),
            .grad_q = static_cast<float*>(address(5)),
            .statistics = static_cast<float*>(address(6)),
            .statistics_stride = 6,
            .statistics_step = {2},
            .keys = address(2),
            .grad_keys = static_cast<float*>(address(7))};
  }
  static void* address(int64_t tensor) { return std::bit_cast<void*>(tensor << 40); }
};

TEST(BackwardPlanTest, HeadsThatShareKeysAreSummedByOneBlock) {
  const Rows rows;
  const BackwardPlan plan = plan_backward({&rows.grid, 1}, true, 64);
  ASSERT_EQ(plan.tasks.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plan.tasks[i].grad_q, rows.grid.grad_q + 64 * i);
    EXPECT_EQ(plan.tasks[i].statistics, rows.grid.statistics + 2 * i);
    EXPECT_EQ(bytes_between(rows.grid.grad_out, plan.tasks[i].grad_out), int64_t(128 * i));
  }
  ASSERT_EQ(plan.groups.size(), 1u);
  EXPECT_EQ(plan.groups[0].num_sources, 3);
  EXPECT_EQ(plan.sources[2].task, 2);
  EXPECT_EQ(plan.runs[0].grad_k, rows.grid.grad_keys);
  EXPECT_EQ(plan.runs[0].grad_v, rows.grid.grad_keys + (int64_t{1} << 39));
  EXPECT_EQ(plan.query_tiles.size(), 6u);
  ASSERT_EQ(plan.key_tiles.size(), 3u);
  EXPECT_EQ(plan.key_tiles[2].row, 128);
}

TEST(BackwardPlanTest, RowsHaveTheirPlaceInAView) {
  const Rows rows;
  const BackwardPlan plan = plan_backward({&rows.grid, 1}, false, 128);
  for (const BackwardRows& task : plan.tasks)
    for (const auto& [place, row] :
         {std::pair{task.place.a, task.q}, {task.place.b, task.grad_out}}) {
      const TensorView& view = plan.views.at(size_t(place.view));
      EXPECT_EQ(bytes_between(view.first, row), place.at[0] * view.step_bytes[0]);
      EXPECT_EQ(view.rows, 70);
    }
  EXPECT_EQ(plan.views.at(size_t(plan.runs[2].place.b.view)).first, rows.run.v);
  EXPECT_EQ(plan.views.size(), 4u);  // three heads share their keys
}

TEST(BackwardPlanTest, BlocksShareTheWork) {
  Rows rows;
  rows.grid.attend.task.q.rows = rows.run.rows = 512;
  const BackwardPlan plan = plan_backward({&rows.grid, 1}, true, 128);
  for (const bool of_keys : {false, true}) {
    const BackwardBlocks blocks = backward_blocks(plan, of_keys, true, 128, 2);
    const auto& all = of_keys ? plan.key_tiles : plan.query_tiles;
    ASSERT_EQ(blocks.begin.size(), 3u);
    EXPECT_EQ(blocks.begin.back(), std::ssize(all));
    int64_t columns[2] = {};  // under a mask: queries from the key on, keys up to the query
    for (const int block : {0, 1})
      for (int i = blocks.begin[size_t(block)]; i < blocks.begin[size_t(block) + 1]; ++i) {
        const int row = blocks.tiles[size_t(i)].row;
        columns[block] += of_keys ? 3 * (512 - row) : row + 128;
      }
    EXPECT_LE(std::abs(columns[0] - columns[1]), 512) << of_keys;
  }
}

TEST(BackwardPlanTest, KeysThatOverlapInPartAreRefused) {
  const Rows all;
  Rows some;
  some.run.rows = 100;
  const BackwardGrid grids[] = {all.grid, some.grid};
  EXPECT_THROW(plan_backward(grids, false, 64), Error);
}

TEST(BackwardPlanTest, MisalignedStatisticsAreNamed) {
  Rows rows;
  EXPECT_EQ(why_misaligned({&rows.grid, 1}), "");
  rows.grid.statistics_stride = 5;
  EXPECT_NE(why_misaligned({&rows.grid, 1}).find("statistics of grid 0"), std::string::npos);
}

}  // namespace
}  // namespace longnet
