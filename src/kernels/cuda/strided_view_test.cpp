#include "kernels/cuda/strided_view.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace longnet {
namespace {

// The tasks of a dilated branch over packed [N][H][d] tensors, as a program's attend lists them:
// head after head, segment after segment. Addresses are only compared, never read.
std::vector<ViewTask> branch_tasks(int64_t w, int64_t r, int64_t heads, int64_t segments,
                                   int64_t d = 64, int64_t kv_heads = 0) {
  if (kv_heads == 0) kv_heads = heads;
  const auto address = [](int64_t base, int64_t element, int64_t bytes) {
    return reinterpret_cast<void*>((base << 40) + element * bytes);
  };
  std::vector<ViewTask> tasks;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t s = 0; s < segments; ++s) {
      const int64_t offset = h % r, rows = (w - offset + r - 1) / r, token = s * w + offset;
      const int64_t q = (token * heads + h) * d, kv_head = h / (heads / kv_heads);
      const int64_t kv = (token * kv_heads + kv_head) * d;
      tasks.push_back({.q = {.q = address(1, q, 2), .row_stride = r * heads * d, .rows = rows},
                       .kv = {.k = address(2, kv, 2),
                              .v = address(3, kv, 2),
                              .row_stride = r * kv_heads * d,
                              .rows = rows},
                       .out = {static_cast<float*>(address(4, q, 4)),
                               static_cast<float*>(address(5, token * heads + h, 4)), r * heads * d,
                               r * heads}});
    }
  return tasks;
}

// Every task is where the view's strides say, and in one view only.
void expect_complete(const std::vector<ViewTask>& tasks, const std::vector<StridedView>& views) {
  std::set<size_t> seen;
  for (const StridedView& view : views) {
    ASSERT_EQ(int64_t(view.tasks.size()), view.inner * view.outer);
    for (int64_t o = 0; o < view.outer; ++o)
      for (int64_t i = 0; i < view.inner; ++i) {
        const size_t index = view.tasks[size_t(o * view.inner + i)];
        EXPECT_TRUE(seen.insert(index).second);
        const ViewTask& task = tasks[index];
        const auto at = [&](const void* first, const OuterStrides& s, int64_t bytes) {
          return static_cast<const char*>(first) + (i * s.inner + o * s.outer) * bytes;
        };
        EXPECT_EQ(task.q.q, at(view.first.q.q, view.q, 2));
        EXPECT_EQ(task.kv.k, at(view.first.kv.k, view.k, 2));
        EXPECT_EQ(task.kv.v, at(view.first.kv.v, view.v, 2));
        EXPECT_EQ(static_cast<const void*>(task.out.o), at(view.first.out.o, view.o, 4));
        EXPECT_EQ(static_cast<const void*>(task.out.lse), at(view.first.out.lse, view.lse, 4));
        EXPECT_EQ(task.q.rows, view.first.q.rows);
      }
  }
  EXPECT_EQ(seen.size(), tasks.size());
}

TEST(StridedViewTest, ABranchIsFewLaunches) {
  const struct {
    int64_t w, r, heads, segments;
    size_t views;
  } cases[] = {{2048, 1, 12, 8, 1}, {8192, 4, 12, 8, 3}, {65536, 32, 12, 4, 1},
               {4096, 2, 12, 8, 6}, {2048, 1, 1, 1, 1},  {16384, 8, 12, 1, 2}};
  for (const auto& c : cases) {
    const auto tasks = branch_tasks(c.w, c.r, c.heads, c.segments);
    const auto views = strided_views(tasks);
    EXPECT_EQ(views.size(), c.views) << "w " << c.w << " r " << c.r;
    expect_complete(tasks, views);
  }
}

TEST(StridedViewTest, UnequalRowCountsStayApart) {  // 16384 / 6: 2731 or 2730 rows
  const auto tasks = branch_tasks(16384, 6, 12, 4);
  const auto views = strided_views(tasks);
  expect_complete(tasks, views);
  EXPECT_EQ(views.size(), 4u);  // offsets 0..3 and 4..5, twice
}

TEST(StridedViewTest, HeadsThatShareKeysAreNotOneView) {
  const auto tasks = branch_tasks(2048, 1, 8, 4, 64, 2);
  const auto views = strided_views(tasks);
  expect_complete(tasks, views);
  EXPECT_EQ(views.size(), 7u);  // the last head of one group and the first of the next are one
}

TEST(CausalMaskKindTest, WhatTheViewSees) {
  using Is = MaskKind::Is;
  const QueryRun q{.rows = 10, .first_token = 100, .token_step = 4};
  const auto kind = [&](int64_t first, int64_t step, int64_t rows = 10) {
    return causal_mask_kind(q, {.rows = rows, .first_token = first, .token_step = step});
  };
  EXPECT_EQ(kind(0, 4).is, Is::kEverything);   // 0 .. 36
  EXPECT_EQ(kind(64, 4).is, Is::kEverything);  // 64 .. 100: the first row sees the last key
  EXPECT_EQ(kind(140, 4).is, Is::kNothing);    // rows end at 136
  EXPECT_EQ(kind(100, 4).mask, ViewMask::kUpToOwn);
  EXPECT_EQ(kind(98, 4).mask, ViewMask::kUpToOwn);
  EXPECT_EQ(kind(101, 4).mask, ViewMask::kBeforeOwn);
  EXPECT_EQ(kind(104, 4).mask, ViewMask::kBeforeOwn);
  EXPECT_EQ(kind(105, 4).is, Is::kOther);
  EXPECT_EQ(kind(96, 4).is, Is::kOther);
  EXPECT_EQ(kind(100, 2).is, Is::kOther);
}

// Which (row, key) positions a list of parts covers, how often; "other" masks are failures.
std::map<std::pair<int64_t, int64_t>, int> pairs_of(const std::vector<CutTask>& parts) {
  std::map<std::pair<int64_t, int64_t>, int> pairs;
  for (const CutTask& part : parts)
    for (const KvRun& run : part.kv) {
      if (run.rows == 0) continue;
      const MaskKind kind = causal_mask_kind(part.q, run);
      EXPECT_NE(int(kind.is), int(MaskKind::Is::kOther))
          << part.q.first_token << " x " << part.q.rows << " over " << run.first_token << " x "
          << run.rows;
      for (int64_t i = 0; i < part.q.rows; ++i)
        for (int64_t j = 0; j < run.rows; ++j) {
          const bool seen =
              kind.is == MaskKind::Is::kEverything ||
              (kind.is == MaskKind::Is::kMask && j <= i - (kind.mask == ViewMask::kBeforeOwn));
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
          const auto parts = cut_at_diagonals(task);
          EXPECT_EQ(pairs_of(parts), wanted)
              << step << " " << rows << " " << first_q << " " << first_k;
          int64_t row = 0;
          for (const CutTask& part : parts) {  // rows follow each other, addresses with them
            EXPECT_EQ(part.q.q, q.data() + row * 16);
            EXPECT_EQ(part.out.o, o.data() + row * 24);
            EXPECT_EQ(part.out.lse, lse.data() + row * 2);
            for (const KvRun& run : part.kv) {
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
  const auto parts = cut_at_diagonals({.q = {nullptr, 8, 10, 7, 3}, .kv = runs, .out = {}});
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(int(causal_mask_kind(parts[0].q, parts[0].kv.at(0)).is), int(MaskKind::Is::kOther));
}

}  // namespace
}  // namespace longnet
