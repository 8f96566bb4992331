// The loop of the cuda_sm90a kernel, executed on the CPU with a thread per warpgroup, against the
// reference kernel.
#include "kernels/cuda/group_tile.h"

#include <gtest/gtest.h>

#include "kernels/cuda/group_plan.h"
#include "kernels/cuda/group_shapes.h"
#include "kernels/cuda/testing/emulated_group.h"
#include "kernels/cuda/testing/tile_case.h"

namespace longnet {
namespace {

template <class Shape>
void emulate(std::span<const AttendTask> tasks, const AttendOptions& options, bool merge,
             EmulatedOrder order) {
  const GroupPlan plan =
      plan_groups(tasks, options.causal, {.rows = Shape::kRows, .keys = Shape::kKeys, .blocks = 2});
  GroupInputs in = group_inputs(options.head_dim, options.causal, merge, options.output_scale);
  in.tasks = plan.tasks.data();
  in.runs = plan.runs.data();
  in.tiles = plan.tiles.data();
  in.block_begin = plan.block_begin.data();
  for (size_t block = 0; block + 1 < plan.block_begin.size(); ++block)
    emulate_group_block<Shape>(
        in, [&](int view) { return plan.views[size_t(view)]; }, int(block), order);
}

EmulatedOrder next_order() {  // all four, in turn
  static unsigned turn = 0;
  ++turn;
  return {.copies_land_late = (turn & 1) != 0, .products_late = (turn & 2) != 0};
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
  emulate<Shape>({&task, 1}, setup.options(), false, next_order());
  expect_same_rows(result, expected);
}

TEST(GroupTileTest, OddShapes) {
  for (const bool causal : {false, true})
    for (const int64_t rows : {1, 192, 200})
      for (const int64_t keys : {0, 1, 127, 128, 129, 400})
        expect_like_reference<Group64>({.q = {.rows = rows, .first_token = 20, .stride = 64 * 3},
                                        .kv = {{.rows = keys, .stride = 64 * 2}},
                                        .causal = causal});
}

TEST(GroupTileTest, HeadDims) {
  for (const bool causal : {false, true}) {
    const KeyRows q{.rows = 70}, kv{.rows = 140};
    for (const int64_t d : {8, 40, 64})
      expect_like_reference<Group64>({.head_dim = d, .q = q, .kv = {kv}, .causal = causal});
    for (const int64_t d : {72, 96, 128})
      expect_like_reference<Group128>({.head_dim = d, .q = q, .kv = {kv}, .causal = causal});
  }
}

TEST(GroupTileTest, EveryShapeOfTheLibrary) {
  const TileCase c{.q = {.rows = 250, .first_token = 200},
                   .kv = {{.rows = 150}, {.rows = 460, .first_token = 150}},
                   .causal = true};
  for_each_group_shape([&](auto shape) {
    TileCase sized = c;
    sized.head_dim = decltype(shape)::kDim;
    for (int order = 0; order < 2; ++order) expect_like_reference<decltype(shape)>(sized);
  });
}

TEST(GroupTileTest, RunsOfUnequalLength) {
  expect_runs_of_unequal_length([](const TileCase& c) { expect_like_reference<Group64>(c); }, 6,
                                40);
}

TEST(GroupTileTest, CausalRunsInAnyOrder) {
  expect_causal_runs_in_any_order([](const TileCase& c) { expect_like_reference<Group64Two>(c); });
}

TEST(GroupTileTest, FarPositionsAndHugeScores) {
  expect_far_positions_and_huge_scores(
      [](const TileCase& c) { expect_like_reference<Group64>(c); });
}

// Blocks do several tiles of several tasks; tiles without keys stand between others.
TEST(GroupTileTest, ManyTasks) {
  std::vector<TileTaskData> data;
  for (const int64_t keys : {300, 0, 130, 5, 260}) {
    const KeyRows q{.rows = 210, .first_token = 100}, kv{.rows = keys, .stride = 64 * 3};
    data.emplace_back(TileCase{.q = q, .kv = {kv}, .causal = true});
  }
  std::vector<TileResult> expected, results(data.size());
  std::vector<AttendTask> tasks;
  for (size_t i = 0; i < data.size(); ++i) {
    expected.push_back(reference_result(data[i]));
    tasks.push_back(data[i].task(results[i]));
  }
  for (int order = 0; order < 4; ++order) {
    for (TileResult& result : results) std::ranges::fill(result.o, -77.0f);
    emulate<Group64>(tasks, data[0].options(), false, next_order());
    for (size_t i = 0; i < data.size(); ++i) expect_same_rows(results[i], expected[i]);
  }
}

TEST(GroupTileTest, MergeInTheEpilogue) {
  expect_merges_in_the_epilogue(
      [](std::span<const AttendTask> tasks, const AttendOptions& options, bool merge) {
        emulate<Group64>(tasks, options, merge, next_order());
      });
}

// Keys that a row sees, by counting positions.
TEST(GroupPlanTest, VisibleKeysAreThoseAtPositionsUpToTheRows) {
  for (const int64_t q_step : {1, 2, 4, 6})
    for (const int64_t k_step : {1, 2, 3, 4, 7})
      for (const int64_t q_first : {0, 5, 40, 1000})
        for (const int64_t k_first : {0, 4, 41, 300}) {
          TileTaskData setup({.q = {.rows = 30, .first_token = q_first, .token_step = q_step},
                              .kv = {{.rows = 25, .first_token = k_first, .token_step = k_step}}});
          TileResult result;
          const AttendTask task = setup.task(result);
          const GroupPlan plan =
              plan_groups({&task, 1}, true, {.rows = 128, .keys = 128, .blocks = 1});
          for (int row = 0; row < 30; ++row) {
            int seen = 0;
            for (int64_t k = 0; k < 25; ++k)
              seen += k_first + k * k_step <= q_first + row * q_step ? 1 : 0;
            ASSERT_EQ(plan.runs[0].limit.visible(row), seen)
                << q_first << "+" << q_step << " " << k_first << "+" << k_step << " row " << row;
          }
        }
}

TEST(GroupPlanTest, DivisionByTheInverse) {
  for (const uint64_t step : {1ull, 2ull, 3ull, 7ull, 4096ull, 1000003ull, (1ull << 40) + 9}) {
    for (uint64_t x = 1; x < (1ull << 62); x = x * 3 + 1)
      for (const uint64_t y : {x, x / step * step, x / step * step + step - 1})
        ASSERT_EQ(divided(y, step, inverse_of(step)), y / step) << y << " / " << step;
  }
}

TEST(GroupPlanTest, TilesGoToTheBlockWithTheLeastToDo) {
  TileTaskData setup({.q = {.rows = 640}, .kv = {{.rows = 640}}, .causal = true});
  TileResult result;
  const AttendTask task = setup.task(result);
  const GroupPlan plan = plan_groups({&task, 1}, true, {.rows = 128, .keys = 128, .blocks = 2});
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
  TileTaskData setup({.q = {.rows = 100}, .kv = {{.rows = 10}}});
  TileResult result;
  const AttendTask task = setup.task(result);
  const GroupPlan plan = plan_groups({&task, 1}, false, {.rows = 192, .keys = 128, .blocks = 132});
  EXPECT_EQ(plan.block_begin, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(plan.query_views, 1u);
  EXPECT_LE(plan.views.size(), 3u);  // keys and values may share one
}

}  // namespace
}  // namespace longnet
