#include "kernels/cuda/strided_view.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>

#include "kernels/testing/packed_branch.h"

namespace longnet {
namespace {

// Addresses of a task: queries, keys, values, results.
using Addresses = std::array<const void*, 5>;
Addresses addresses(const AttendTask& task, const KvRun& kv) {
  return {task.q.q, kv.k, kv.v, task.out.o, task.out.lse};
}

void add_tasks(const StridedView& view, std::multiset<Addresses>& all) {
  AttendGrid with_keys = view.grid;
  with_keys.task.kv = {&view.kv, 1};
  for (int64_t i = 0; i < with_keys.size(); ++i)
    all.insert(addresses(with_keys.at(i), with_keys.at(i).kv[0]));
}

struct Case {
  int64_t w, r, heads, kv_heads, segments;
  size_t views;
};

// Every task is in exactly one view, which has two dimensions.
void expect_views(const Case& c) {
  SCOPED_TRACE(testing::Message() << "w " << c.w << " r " << c.r << " H " << c.heads << "/"
                                  << c.kv_heads);
  KvLists lists;
  std::multiset<Addresses> wanted, found;
  size_t views = 0;
  for (const AttendGrid& grid :
       branch_grids(unread_packed(c.w * c.segments, c.heads, c.kv_heads), c.w, c.r, lists)) {
    for (int64_t i = 0; i < grid.size(); ++i)
      wanted.insert(addresses(grid.at(i), grid.at(i).kv[0]));
    for (const StridedView& view : strided_views(grid, grid.task.kv[0], ViewMask::kNone)) {
      ++views;
      EXPECT_EQ(view.grid.count[2] * view.grid.count[3], 1);
      for (size_t d : {0u, 1u}) EXPECT_TRUE(view.grid.count[d] == 1 || view.kv.step_bytes[d] > 0);
      add_tasks(view, found);
    }
  }
  EXPECT_EQ(found, wanted);
  EXPECT_EQ(views, c.views);
}

TEST(StridedViewTest, ABranchIsFewLaunches) {
  for (const Case& c :
       {Case{2048, 1, 12, 12, 8, 1}, Case{8192, 4, 12, 12, 8, 3}, Case{65536, 32, 12, 12, 4, 1},
        Case{4096, 2, 12, 12, 8, 2}, Case{2048, 1, 1, 1, 1, 1}, Case{16384, 8, 12, 12, 1, 2}})
    expect_views(c);
}

TEST(StridedViewTest,
     UnequalRowCountsStayApart) {  // 16384 / 6: 2731 rows at offsets 0..3, else 2730
  expect_views({16384, 6, 12, 12, 4, 4});
}

TEST(StridedViewTest, HeadsThatShareKeysAreNotOneView) {
  expect_views({2048, 1, 8, 2, 4, 4});  // the i-th head of each group
}

TEST(StridedViewTest, SequencesOfABatchAreViewsOfTheirOwn) {
  KvLists lists;
  const auto grids = branch_grids(unread_packed(8 * 8192, 12, 12), 8192, 4, lists);
  ASSERT_EQ(grids.size(), 1u);
  const AttendGrid batch = repeated(grids[0], 3, 5, {1 << 30, 1 << 30, 1 << 24, {1 << 30}}, lists);
  const auto views = strided_views(batch, batch.task.kv[0], ViewMask::kNone);
  EXPECT_EQ(views.size(), 4u * 3u);  // 8 segments x 5 sequences for each offset and head
}

TEST(StridedViewTest, PartsHaveTheTasksOfTheirView) {
  KvLists lists;
  const auto grids = branch_grids(unread_packed(8 * 8192, 12, 12), 8192, 4, lists);
  const StridedView view = strided_views(grids[0], grids[0].task.kv[0], ViewMask::kNone).at(1);
  ASSERT_EQ(view.grid.size(), 8 * 4);
  std::multiset<Addresses> wanted;
  add_tasks(view, wanted);
  for (const int64_t most : {1, 3, 4, 5, 8, 11, 24, 31, 32, 100}) {
    std::multiset<Addresses> found;
    for (const StridedView& part : parts_of(view, most)) {
      EXPECT_LE(part.grid.size(), most);
      add_tasks(part, found);
    }
    EXPECT_EQ(found, wanted) << most;
  }
  EXPECT_EQ(parts_of(view, 32).size(), 1u);
}

TEST(CausalMaskTest, WhatTheViewSees) {
  const QueryRun q{.rows = 10, .first_token = 100, .token_step = 4};
  const auto mask = [&](int64_t first, int64_t step, int64_t rows = 10) {
    return causal_mask(q, {.rows = rows, .first_token = first, .token_step = step});
  };
  EXPECT_EQ(mask(0, 4), ViewMask::kNone);          // 0 .. 36
  EXPECT_EQ(mask(64, 4), ViewMask::kNone);         // 64 .. 100: the first row sees the last key
  EXPECT_EQ(mask(140, 4), ViewMask::kEverything);  // rows end at 136
  EXPECT_EQ(mask(100, 4), ViewMask::kUpToOwn);
  EXPECT_EQ(mask(98, 4), ViewMask::kUpToOwn);
  EXPECT_EQ(mask(101, 4), ViewMask::kBeforeOwn);
  EXPECT_EQ(mask(104, 4), ViewMask::kBeforeOwn);
  EXPECT_EQ(mask(105, 4), ViewMask::kOther);
  EXPECT_EQ(mask(96, 4), ViewMask::kOther);
  EXPECT_EQ(mask(100, 2), ViewMask::kOther);
}

// Counts how often a list of parts covers each (row, key) position; "other" masks are failures.
std::map<std::pair<int64_t, int64_t>, int> pairs_of(const std::vector<AttendTask>& parts) {
  std::map<std::pair<int64_t, int64_t>, int> pairs;
  for (const AttendTask& part : parts)
    for (const KvRun run : part.kv) {
      if (run.rows == 0) continue;
      const ViewMask mask = causal_mask(part.q, run);
      EXPECT_NE(mask, ViewMask::kOther) << part.q.first_token << " x " << part.q.rows << " over "
                                        << run.first_token << " x " << run.rows;
      for (int64_t i = 0; i < part.q.rows; ++i)
        for (int64_t j = 0; j < run.rows; ++j) {
          const bool seen = mask == ViewMask::kNone || (mask == ViewMask::kUpToOwn && j <= i) ||
                            (mask == ViewMask::kBeforeOwn && j < i);
          if (seen)
            ++pairs[{part.q.first_token + i * part.q.token_step,
                     run.first_token + j * run.token_step}];
        }
    }
  return pairs;
}

TEST(CutAtDiagonalsTest, EveryVisiblePairOnceAndNoOther) {
  std::vector<uint16_t> q(4096), k(4096);
  std::vector<float> o(4096), lse(256);
  for (const int64_t step : {1, 4, 6})
    for (const int64_t rows : {1, 2, 7, 12})
      for (const int64_t first_q : {0, 3, 30, 61})
        for (const int64_t first_k : {0, 2, 29, 45}) {
          const std::vector<KvRun> runs{{k.data(), k.data(), 16, 9, first_k, step},
                                        {k.data(), k.data(), 16, 0, 7, step},
                                        {k.data(), k.data(), 16, 5, first_k + 9 * step, step}};
          const AttendTask task{.q = {q.data(), 16, rows, first_q, step},
                                .kv = runs,
                                .out = {o.data(), lse.data(), 24, 2}};
          std::map<std::pair<int64_t, int64_t>, int> wanted;
          for (int64_t i = 0; i < rows; ++i)
            for (const KvRun& run : runs)
              for (int64_t j = 0; j < run.rows; ++j)
                if (run.first_token + j * step <= first_q + i * step)
                  wanted[{first_q + i * step, run.first_token + j * step}] = 1;
          KvLists lists;
          const auto parts = cut_at_diagonals(task, lists);
          EXPECT_EQ(pairs_of(parts), wanted)
              << step << " " << rows << " " << first_q << " " << first_k;
          int64_t row = 0;
          for (const AttendTask& part : parts) {  // rows follow each other, addresses with them
            EXPECT_EQ(part.q.q, q.data() + row * 16);
            EXPECT_EQ(part.out.o, o.data() + row * 24);
            EXPECT_EQ(part.out.lse, lse.data() + row * 2);
            for (const KvRun run : part.kv) {
              if (run.rows > 0 && run.first_token < first_k + 9 * step) {
                EXPECT_EQ(run.k, k.data() + (run.first_token - first_k) / step * 16);
              }
            }
            row += part.q.rows;
          }
          EXPECT_EQ(row, rows);
        }
}

TEST(CutAtDiagonalsTest, OtherStepsStayAsTheyAre) {
  const std::vector<KvRun> runs{{nullptr, nullptr, 8, 10, 0, 2}};
  KvLists lists;
  const auto parts = cut_at_diagonals({.q = {nullptr, 8, 10, 7, 3}, .kv = runs, .out = {}}, lists);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(causal_mask(parts[0].q, parts[0].kv[0]), ViewMask::kOther);
}

}  // namespace
}  // namespace longnet
