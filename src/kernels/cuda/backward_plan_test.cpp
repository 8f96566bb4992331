#include "kernels/cuda/backward_plan.h"

#include <gtest/gtest.h>

#include <bit>

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
