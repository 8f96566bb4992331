#include "kernels/cuda/attend_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "kernels/testing/packed_branch.h"

namespace longnet {
namespace {

alignas(16) const uint16_t kRow[16] = {};  // nothing is read

TEST(TilePlanTest, CausalTilesStopWhereNoRowSees) {
  const KvRun run{.k = kRow, .v = kRow, .row_stride = 64, .rows = 300};
  const AttendGrid task{
      {.q = {.q = kRow, .row_stride = 64, .rows = 300}, .kv = {&run, 1}, .out = {}}};
  const TilePlan plan = plan_tiles({&task, 1}, true, 128);
  ASSERT_EQ(plan.tiles.size(), 3u);
  EXPECT_EQ(plan.tiles[0].row, 256);
  EXPECT_EQ(plan.tiles[0].keys, 300);
  EXPECT_EQ(plan.tiles[0].unmasked, 257);
  EXPECT_EQ(plan.tiles[2].row, 0);
  EXPECT_EQ(plan.tiles[2].keys, 128);
  EXPECT_EQ(plan.tiles[2].unmasked, 1);
}

TEST(TilePlanTest, MisalignedRowsAreNamed) {
  const KvRun run{.k = kRow, .v = kRow, .row_stride = 64, .rows = 2};
  AttendGrid grid{{.q = {.q = kRow, .row_stride = 64, .rows = 2}, .kv = {&run, 1}, .out = {}}};
  EXPECT_EQ(why_misaligned({&grid, 1}), "");
  grid.task.q.row_stride += 4;
  EXPECT_NE(why_misaligned({&grid, 1}).find("queries of grid 0"), std::string::npos);
  grid.task.q.row_stride -= 4;
  grid.q_step_bytes = {8};
  EXPECT_NE(why_misaligned({&grid, 1}).find("queries of grid 0"), std::string::npos);
  grid.q_step_bytes = {};
  grid.task.q.q = kRow + 4;
  EXPECT_NE(why_misaligned({&grid, 1}).find("not 16-byte aligned"), std::string::npos);
}

// Keys that a row sees, by counting positions.
TEST(TilePlanTest, VisibleKeysAreThoseAtPositionsUpToTheRows) {
  for (const int64_t q_step : {1, 2, 4, 6})
    for (const int64_t k_step : {1, 2, 3, 4, 7})
      for (const int64_t q_first : {0, 5, 40, 1000})
        for (const int64_t k_first : {0, 4, 41, 300}) {
          const QueryRun q{.rows = 30, .first_token = q_first, .token_step = q_step};
          const KvRun run{.rows = 25, .first_token = k_first, .token_step = k_step};
          const KeyLimit limit = key_limit(q, run, true);
          for (int row = 0; row < 30; ++row) {
            int seen = 0;
            for (int64_t k = 0; k < 25; ++k)
              seen += k_first + k * k_step <= q_first + row * q_step ? 1 : 0;
            ASSERT_EQ(limit.visible(row), seen)
                << q_first << "+" << q_step << " " << k_first << "+" << k_step << " row " << row;
          }
        }
}

TEST(TilePlanTest, DivisionByTheInverse) {
  for (const uint64_t step : {1ull, 2ull, 3ull, 7ull, 4096ull, 1000003ull, (1ull << 40) + 9}) {
    for (uint64_t x = 1; x < (1ull << 62); x = x * 3 + 1)
      for (const uint64_t y : {x, x / step * step, x / step * step + step - 1})
        ASSERT_EQ(divided(y, step, inverse_of(step)), y / step) << y << " / " << step;
  }
}

// Eight rows of an 8 x 8 matrix lie in distinct groups of four banks, whatever the column.
TEST(TileLayoutTest, MatricesHaveNoBankConflicts) {
  const auto check_shape = [](auto shape) {
    using Shape = decltype(shape);
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
      int groups = 0;
      for (int row = 0; row < 8; ++row) groups |= 1 << chunk_offset<Shape>(row, chunk) / 16 % 8;
      EXPECT_EQ(groups, 0xFF);
    }
  };
  const auto check_all = [&](auto... shapes) { (check_shape(shapes), ...); };
  check_all(Shape64{}, Shape128{}, Shape256{});
}

GroupPlan plan_of(int64_t q_rows, int64_t k_rows, bool causal, const GroupTiling& tiling) {
  const KvRun run{.k = kRow, .v = kRow + 8, .row_stride = 64, .rows = k_rows};
  const AttendGrid grid{
      {.q = {.q = kRow, .row_stride = 64, .rows = q_rows}, .kv = {&run, 1}, .out = {}}};
  return plan_groups({&grid, 1}, causal, tiling);
}

TEST(GroupPlanTest, TilesGoToTheBlockWithTheLeastToDo) {
  const GroupPlan plan = plan_of(640, 640, true, {.rows = 128, .keys = 128, .blocks = 2});
  ASSERT_EQ(plan.block_begin.size(), 3u);
  std::vector<std::vector<int>> rows(2);
  for (size_t block = 0; block < 2; ++block)
    for (int i = plan.block_begin[block]; i < plan.block_begin[block + 1]; ++i)
      rows[block].push_back(plan.tiles[size_t(i)].row);
  // 11 9 7 5 3 half key tiles with what is done between tiles: 11 + 5 (+ 3) and 9 + 7
  EXPECT_EQ(rows[0], (std::vector<int>{512, 128, 0}));
  EXPECT_EQ(rows[1], (std::vector<int>{384, 256}));
}

// 300 rows, keys that begin at the position of row 200: the first of three tiles sees none.
TEST(GroupPlanTest, TilesThatSeeNoKeyAreInNoBlock) {
  const GroupTiling tiling{.rows = 128, .keys = 128, .blocks = 2};
  const KvRun run{.k = kRow, .v = kRow, .row_stride = 64, .rows = 90, .first_token = 200};
  const AttendGrid grid{
      {.q = {.q = kRow, .row_stride = 64, .rows = 300}, .kv = {&run, 1}, .out = {}}};
  const GroupPlan plan = plan_groups({&grid, 1}, true, tiling);
  EXPECT_EQ(plan.tiles.size(), 2u);
  ASSERT_EQ(plan.keyless.size(), 1u);
  EXPECT_EQ(plan.keyless[0].row, 0);
  // Where no tile sees any, there is a block that has none.
  const GroupPlan none = plan_of(300, 0, false, tiling);
  EXPECT_EQ(none.keyless.size(), 3u);
  EXPECT_EQ(none.block_begin, (std::vector<int32_t>{0, 0}));
}

TEST(GroupPlanTest, NoMoreBlocksThanTiles) {
  const GroupPlan plan = plan_of(100, 10, false, {.rows = 192, .keys = 128, .blocks = 132});
  EXPECT_EQ(plan.block_begin, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(plan.views.size(), 3u);  // queries, keys, values
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(plan.views[i].of_queries, i == 0);
}

// Returns the address of a place in a view.
const void* address(const GroupPlan& plan, const ViewPlace& place) {
  const TensorView& view = plan.views.at(size_t(place.view));
  const auto* at = static_cast<const std::byte*>(view.first);
  for (size_t d = 0; d < 3; ++d) {
    EXPECT_LT(place.at[d], view.count[d]);
    at += place.at[d] * view.step_bytes[d];
  }
  return at;
}

TEST(GroupPlanTest, PlacesLeadToTheTasksRows) {
  const struct {
    int64_t w, r, heads, kv_heads, segments;
    size_t views;
  } cases[] = {{2048, 1, 12, 12, 8, 3},
               {8192, 4, 12, 12, 8, 3},
               {2048, 1, 8, 2, 4, 3},
               {16384, 6, 12, 12, 4, 12},
               {512, 4, 10, 10, 2, 6}};
  for (const auto& c : cases)
    for (const int64_t batch : {1, 3}) {
      KvLists lists;
      const PackedAttention packed = unread_packed(c.w * c.segments, c.heads, c.kv_heads);
      auto grids = branch_grids(packed, c.w, c.r, lists);
      const int64_t q_bytes = packed.tokens * c.heads * 128,
                    k_bytes = packed.tokens * c.kv_heads * 128;
      if (batch > 1)
        for (AttendGrid& grid : grids)
          grid = repeated(grid, 3, batch, {q_bytes, q_bytes, q_bytes / 64, {k_bytes}}, lists);
      const GroupPlan plan = plan_groups(grids, false, {.rows = 128, .keys = 128, .blocks = 2});
      EXPECT_EQ(plan.views.size(), c.views) << c.w << " " << c.r << " batch " << batch;
      std::ranges::stable_sort(grids, std::greater<>{},
                               [](const AttendGrid& grid) { return grid.task.kv[0].rows; });
      size_t i = 0;
      for (const AttendGrid& grid : grids)
        for (int64_t t = 0; t < grid.size(); ++t, ++i) {
          const AttendTask task = grid.at(t);
          const GroupTask& planned = plan.tasks.at(i);
          EXPECT_EQ(address(plan, planned.q), task.q.q);
          EXPECT_EQ(planned.o, task.out.o);
          ASSERT_EQ(planned.num_runs, 1);
          EXPECT_EQ(address(plan, plan.runs[size_t(planned.first_run)].k), task.kv[0].k);
          EXPECT_EQ(address(plan, plan.runs[size_t(planned.first_run)].v), task.kv[0].v);
        }
      EXPECT_EQ(i, plan.tasks.size());
    }
}

// 16 ranks' rows in one gathered slot: one view of K and one of V.
TEST(GroupPlanTest, RunsAtEqualDistancesShareAView) {
  const std::vector<uint16_t> gathered(16 * 2048);
  std::vector<KvRun> runs;
  for (int64_t i = 0; i < 16; ++i)
    runs.push_back({.k = &gathered[size_t(i * 2048)],
                    .v = &gathered[size_t(i * 2048 + 1024)],
                    .row_stride = 64,
                    .rows = 16 - i / 15});  // the last one is shorter
  const AttendGrid grid{{.q = {.q = kRow, .row_stride = 64, .rows = 100}, .kv = runs, .out = {}}};
  const GroupPlan plan = plan_groups({&grid, 1}, false, {.rows = 128, .keys = 128, .blocks = 1});
  EXPECT_EQ(plan.views.size(), 1u + 2u + 2u);
  ASSERT_EQ(plan.runs.size(), 16u);
  for (size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(address(plan, plan.runs[i].k), runs[i].k);
    EXPECT_EQ(address(plan, plan.runs[i].v), runs[i].v);
  }
}

}  // namespace
}  // namespace longnet
