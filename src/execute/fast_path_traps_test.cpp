// The traps of other implementations, on the fast path, e.g. a last segment shorter than its rate
// that is padded; definition_test has them on the definition.
#include "execute/testing/executor_case.h"

namespace longnet {
namespace {

Case trap(AttentionProblem problem, const DilatedPattern& pattern, int ranks) {
  Case c;
  c.problem = problem;
  c.problem.head_dim = 16;
  c.pattern = pattern;
  c.ranks = ranks;
  return c;
}
TEST(FastPathTraps, PartialSegmentsAreNotPadded) {
  expect_right(trap({.seq_len = 70, .num_heads = 4, .num_kv_heads = 4},
                    {.branches = {{32, 4}, {70, 7}}}, 3));
}
TEST(FastPathTraps, SegmentsThatTheRateDoesNotDivideAreTrimmed) {
  expect_right(trap({.seq_len = 64, .num_heads = 6, .num_kv_heads = 6},
                    {.branches = {{16, 6}, {64, 1}}}, 4));
}
TEST(FastPathTraps, RowsThatNoBranchSelectsStayZero) {
  expect_right(trap({.seq_len = 64, .num_heads = 2, .num_kv_heads = 2},
                    {.branches = {{16, 8}, {64, 16}}}, 4));
}
TEST(FastPathTraps, CausalGathersHoldTheOwnShard) {
  expect_right(trap({.seq_len = 64, .num_heads = 2, .num_kv_heads = 2, .causal = true},
                    {.branches = {{64, 1}}}, 4));
}
TEST(FastPathTraps,
     QueriesWithoutKeysDoNotBecomeNaN) {  // causal, and heads whose first row comes late
  expect_right(trap({.seq_len = 60, .num_heads = 8, .num_kv_heads = 8, .causal = true},
                    {.branches = {{60, 20}}}, 7));
}
TEST(FastPathTraps,
     MixingWeightsAreNotRoundedToBf16) {  // 8 bits would err by 1e-3; the bound is 1e-6
  Case c = trap({.seq_len = 96, .num_heads = 4, .num_kv_heads = 4, .dtype = DType::kBFloat16},
                {.branches = {{8, 1}, {24, 2}, {96, 4}}}, 3);
  expect_right(c);
}
TEST(FastPathTraps, HeadsAreNotPaddedUpToTheRate) {  // 3 heads at rate 7 gather the rows of 3 heads
  const Case c =
      trap({.seq_len = 70, .num_heads = 3, .num_kv_heads = 3}, {.branches = {{70, 7}}}, 2);
  const RankAccount a = account(sharded(c), schedule_of(c).program(0), 0);
  EXPECT_EQ(a.memory_by_tag.at("gathered"), 3 * 10 * 2 * 16 * 4);
}
TEST(FastPathTraps, EveryHeadRunsEveryBranch) {
  expect_right(trap({.seq_len = 48, .num_heads = 4, .num_kv_heads = 2},
                    {.branches = {{12, 1}, {24, 2}, {48, 4}}}, 5));
}

}  // namespace
}  // namespace longnet
