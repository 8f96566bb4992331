#include "kernels/cuda/group_plan.h"

#include <gtest/gtest.h>

namespace longnet {
namespace {

alignas(16) const uint16_t kRow[16] = {};  // nothing is read

GroupPlan plan_of(int64_t q_rows, int64_t k_rows, bool causal, const GroupTiling& tiling) {
  const KvRun run{.k = kRow, .v = kRow, .row_stride = 64, .rows = k_rows};
  const AttendTask task{
      .q = {.q = kRow, .row_stride = 64, .rows = q_rows}, .kv = {&run, 1}, .out = {}};
  return plan_groups({&task, 1}, causal, tiling);
}

TEST(GroupPlanTest, TilesGoToTheBlockWithTheLeastToDo) {
  const GroupPlan plan = plan_of(640, 640, true, {.rows = 128, .keys = 128, .blocks = 2});
  ASSERT_EQ(plan.block_begin.size(), 3u);
  std::vector<std::vector<int>> rows(2);
  for (size_t block = 0; block < 2; ++block)
    for (int i = plan.block_begin[block]; i < plan.block_begin[block + 1]; ++i)
      rows[block].push_back(plan.tiles[size_t(i)].row);
  // 6 5 4 3 2 with the one for begin and end: 6 + 3 (+ 2) and 5 + 4
  EXPECT_EQ(rows[0], (std::vector<int>{512, 128, 0}));
  EXPECT_EQ(rows[1], (std::vector<int>{384, 256}));
}

TEST(GroupPlanTest, NoMoreBlocksThanTiles) {
  const GroupPlan plan = plan_of(100, 10, false, {.rows = 192, .keys = 128, .blocks = 132});
  EXPECT_EQ(plan.block_begin, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(plan.query_views, 1u);
  EXPECT_LE(plan.views.size(), 3u);  // keys and values may share one
}

}  // namespace
}  // namespace longnet
