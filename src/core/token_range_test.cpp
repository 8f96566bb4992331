#include "core/token_range.h"

#include <gtest/gtest.h>

#include "core/check.h"
#include "core/problem.h"

namespace longnet {
namespace {

TEST(TokenRange, ClipIsTheFilteredList) {
  for (int64_t first : {0, 5})
    for (int64_t stride : {1, 3, 8})
      for (int64_t count : {0, 1, 6})
        for (int64_t lo = 0; lo < 60; ++lo)
          for (int64_t hi = lo; hi < 60; hi += 7) {
            const TokenRange all{first, stride, count}, some = clip(all, {lo, hi});
            int64_t n = 0, lowest = -1;
            for (int64_t i = 0; i < count; ++i)
              if (all[i] >= lo && all[i] < hi && n++ == 0) lowest = all[i];
            EXPECT_EQ(some.count, n);
            if (n > 0) {
              EXPECT_EQ(some.first, lowest);
            }
          }
}

TEST(PartBegin, SplitsEvenlyAndCompletely) {
  EXPECT_EQ(part_begin(10, 4, 0), 0);
  EXPECT_EQ(part_begin(10, 4, 1), 3);
  EXPECT_EQ(part_begin(10, 4, 2), 6);
  EXPECT_EQ(part_begin(10, 4, 3), 8);
  EXPECT_EQ(part_begin(10, 4, 4), 10);
  EXPECT_EQ(part_begin(3, 8, 5), 3);  // more parts than tokens: the rest is empty
}

TEST(Check, MessageHoldsValuesAndPlace) {
  try {
    check(1 > 2, "rows = ", -3);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("rows = -3 (src/core/token_range_test.cpp:"),
              std::string::npos)
        << e.what();
  }
}

TEST(Problem, RefusesShapesThatNoKernelSupports) {
  AttentionProblem p{.seq_len = 8, .num_heads = 6, .num_kv_heads = 4};
  EXPECT_THROW(check_problem(p), Error);
  p.num_kv_heads = 3;
  EXPECT_NO_THROW(check_problem(p));
  EXPECT_EQ(p.kv_head_of(5), 2);
  p.head_dim = 20;
  EXPECT_THROW(check_problem(p), Error);
}

}  // namespace
}  // namespace longnet
