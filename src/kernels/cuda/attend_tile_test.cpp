// The cuda kernel's tile loop, executed lane by lane on the CPU, against the reference kernel.
#include "kernels/cuda/attend_tile.h"

#include <gtest/gtest.h>

#include "kernels/cuda/testing/emulated_block.h"
#include "kernels/cuda/testing/tile_case.h"
#include "kernels/cuda/tile_plan.h"
#include "kernels/cuda/tile_shapes.h"

namespace longnet {
namespace {

template <class Shape>
void emulate(std::span<const AttendTask> tasks, const AttendOptions& options, bool merge,
             typename EmulatedBlock<Shape>::Order order) {
  const TilePlan plan = plan_tiles(tasks, options.causal, Shape::kRows);
  const TileInputs in = tile_inputs(plan.tasks.data(), plan.runs.data(), plan.tiles.data(),
                                    options.head_dim, options.causal, merge, options.output_scale);
  for (const TileRef& tile : plan.tiles) {
    EmulatedBlock<Shape> block(order);
    attend_tile<Shape>(block, in, tile);
  }
}

template <class Shape>
void expect_like_reference(const TileCase& c) {
  SCOPED_TRACE(testing::Message() << "d " << c.head_dim << " rows " << c.q.rows << " runs "
                                  << c.kv.size() << " causal " << c.causal << " shape "
                                  << Shape::kDim << "/" << Shape::kRows << "/" << Shape::kKeys);
  TileTaskData setup(c);
  const TileResult expected = reference_result(setup);
  TileResult result;
  const AttendTask task = setup.task(result);
  static int turn = 0;  // all four orders, in turn
  ++turn;
  emulate<Shape>({&task, 1}, setup.options(), false, {(turn & 1) != 0, (turn & 2) != 0});
  expect_same_rows(result, expected);
}

using Shape64 = DefaultShape<64>;
using Shape128 = DefaultShape<128>;
using Shape256 = DefaultShape<256>;

TEST(AttendTileTest, OddShapes) {
  for (const bool causal : {false, true})
    for (const int64_t rows : {1, 17, 128, 131})
      for (const int64_t keys : {0, 1, 63, 64, 65, 200})
        expect_like_reference<Shape64>({.q = {.rows = rows, .first_token = 20, .stride = 64 * 3},
                                        .kv = {{.rows = keys, .stride = 64 * 2}},
                                        .causal = causal});
}

TEST(AttendTileTest, HeadDims) {
  for (const bool causal : {false, true}) {
    const KeyRows q{.rows = 40}, kv{.rows = 70};
    for (const int64_t d : {8, 24, 48, 64})
      expect_like_reference<Shape64>({.head_dim = d, .q = q, .kv = {kv}, .causal = causal});
    for (const int64_t d : {80, 96, 128})
      expect_like_reference<Shape128>({.head_dim = d, .q = q, .kv = {kv}, .causal = causal});
    for (const int64_t d : {136, 256})
      expect_like_reference<Shape256>({.head_dim = d, .q = q, .kv = {kv}, .causal = causal});
  }
}

TEST(AttendTileTest, EveryShapeOfTheLibrary) {
  const TileCase c{.q = {.rows = 150, .first_token = 100},
                   .kv = {{.rows = 90}, {.rows = 160, .first_token = 90}},
                   .causal = true};
  for_each_shape([&](auto shape) {
    TileCase sized = c;
    sized.head_dim = decltype(shape)::kDim;
    expect_like_reference<decltype(shape)>(sized);
  });
}

TEST(AttendTileTest, RunsOfUnequalLength) {
  expect_runs_of_unequal_length([](const TileCase& c) { expect_like_reference<Shape64>(c); }, 9,
                                13);
}

TEST(AttendTileTest, CausalRunsInAnyOrder) {
  expect_causal_runs_in_any_order([](const TileCase& c) { expect_like_reference<Shape64>(c); });
}

TEST(AttendTileTest, FarPositionsAndHugeScores) {
  expect_far_positions_and_huge_scores(
      [](const TileCase& c) { expect_like_reference<Shape64>(c); });
}

TEST(AttendTileTest, MergeInTheEpilogue) {
  expect_merges_in_the_epilogue([](std::span<const AttendTask> tasks, const AttendOptions& options,
                                   bool merge) { emulate<Shape64>(tasks, options, merge, {}); });
}

TEST(AttendTileTest, NoKeysGiveTheIdentityOfMerge) {
  TileTaskData setup({.q = {.rows = 5}, .kv = {{.rows = 0}}});
  TileResult result;
  const AttendTask task = setup.task(result);
  emulate<Shape64>({&task, 1}, setup.options(), false, {});
  for (int64_t row = 0; row < 5; ++row) {
    EXPECT_EQ(result.lse[size_t(row * 3)], kMinusInfinity);
    for (int64_t c = 0; c < 64; ++c) EXPECT_EQ(result.o[size_t(row * 66 + c)], 0.0f);
    EXPECT_EQ(result.o[size_t(row * 66 + 64)], -77.0f) << "wrote beyond the row";
  }
}

TEST(TilePlanTest, CausalTilesStopWhereNoRowSees) {
  TileTaskData setup({.q = {.rows = 300}, .kv = {{.rows = 300}}, .causal = true});
  TileResult result;
  const AttendTask task = setup.task(result);
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
  TileTaskData setup({.q = {.rows = 2}, .kv = {{.rows = 2}}});
  TileResult result;
  AttendTask task = setup.task(result);
  EXPECT_EQ(why_misaligned({&task, 1}), "");
  task.q.row_stride += 4;
  EXPECT_NE(why_misaligned({&task, 1}).find("queries of task 0"), std::string::npos);
  task.q.row_stride -= 4;
  task.q.q = static_cast<const uint16_t*>(task.q.q) + 4;
  EXPECT_NE(why_misaligned({&task, 1}).find("not 16-byte aligned"), std::string::npos);
}

// Eight rows of an 8 x 8 matrix lie in distinct groups of four banks, whatever the column.
TEST(AttendTileTest, MatricesHaveNoBankConflicts) {
  for_each_shape([](auto shape) {
    using Shape = decltype(shape);
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
      int groups = 0;
      for (int row = 0; row < 8; ++row) groups |= 1 << chunk_offset<Shape>(row, chunk) / 16 % 8;
      EXPECT_EQ(groups, 0xFF);
    }
  });
}

}  // namespace
}  // namespace longnet
