#include "kernels/cuda/tile_plan.h"

#include <gtest/gtest.h>

#include "kernels/cuda/tile_layout.h"

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
  check_all(Shape64{}, Shape128{}, Shape256{}, Shape64Lean{}, Shape64Wide{}, Shape64Small{},
            Shape128Lean{}, Shape128Small{});
}

}  // namespace
}  // namespace longnet
