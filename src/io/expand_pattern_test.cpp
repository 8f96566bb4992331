// Tests of expand.cpp: the branches of a point.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/testing/test_support.h"
#include "io/expand.h"
#include "io/testing/small_run.h"

namespace longnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using B = DilatedBranch;

Value tokens(int64_t n) { return n; }

std::vector<DilatedBranch> resolve(RatioRule rule, std::vector<Value> segments, int64_t n,
                                   int64_t ranks, std::vector<int64_t> ratios = {},
                                   int64_t heads = 12) {
  DilatedConfig d;
  d.segments = std::move(segments);
  d.ratio_rule = rule;
  d.ratios = std::move(ratios);
  return resolve_branches(d, n, ranks, heads);
}

int64_t pairs_of(const AttentionProblem& problem, const DilatedPattern& pattern) {
  int64_t pairs = 0;
  for (int b = 0; b < int(pattern.branches.size()); ++b) pairs += branch_pairs(problem, pattern, b);
  return pairs;
}

TEST(ResolveBranches, FigureFive) {
  const std::vector<Value> figure{tokens(2048), kPerRank, kSequence};
  EXPECT_THAT(resolve(RatioRule::kGeometric, figure, 65536, 4),
              ElementsAre(B{2048, 1}, B{16384, 8}, B{65536, 32}));
  // One rank: per_rank and sequence are the same branch.
  EXPECT_THAT(resolve(RatioRule::kGeometric, figure, 65536, 1),
              ElementsAre(B{2048, 1}, B{65536, 32}));
  // Two ranks and 4096 tokens: per_rank is no longer than w_0.
  EXPECT_THAT(resolve(RatioRule::kGeometric, figure, 4096, 2), ElementsAre(B{2048, 1}, B{4096, 2}));
  EXPECT_THAT(resolve(RatioRule::kGeometric, figure, 2048, 1), ElementsAre(B{2048, 1}));
  // Short sequences clip w_0 itself.
  EXPECT_THAT(resolve(RatioRule::kGeometric, figure, 100, 8), ElementsAre(B{100, 1}));
  // More ranks than w_0 has room for: per_rank is dropped, sequence stays.
  EXPECT_THAT(resolve(RatioRule::kGeometric, figure, 65536, 64),
              ElementsAre(B{2048, 1}, B{65536, 32}));
}

TEST(ResolveBranches, PerRankRoundsUpAndRatiosRound) {
  EXPECT_THAT(resolve(RatioRule::kGeometric, {tokens(4), kPerRank}, 19, 3),
              ElementsAre(B{4, 1}, B{7, 2}));  // 1.75
  EXPECT_THAT(resolve(RatioRule::kGeometric, {tokens(4), tokens(9)}, 19, 3),
              ElementsAre(B{4, 1}, B{9, 2}));  // 2.25
  EXPECT_THAT(resolve(RatioRule::kGeometric, {tokens(4), tokens(10)}, 19, 3),
              ElementsAre(B{4, 1}, B{10, 3}));  // 2.5
  EXPECT_THAT(resolve(RatioRule::kGeometric, {tokens(8), tokens(2)}, 19, 3),
              ElementsAre(B{8, 1}, B{2, 1}));
  EXPECT_THAT(resolve(RatioRule::kGeometric, {kSequence}, 19, 3), ElementsAre(B{19, 1}));
}

TEST(ResolveBranches, SqrtRoundsUpToAPowerOfTwo) {
  EXPECT_THAT(
      resolve(RatioRule::kSqrt, {tokens(2048), tokens(4096), tokens(8192), tokens(8193), kSequence},
              1 << 30, 1),
      ElementsAre(B{2048, 1}, B{4096, 2}, B{8192, 2}, B{8193, 4}, B{1 << 30, 1024}));
  EXPECT_THAT(resolve(RatioRule::kSqrt, {tokens(1), tokens(int64_t{1} << 40)}, int64_t{1} << 40, 1),
              ElementsAre(B{1, 1}, B{int64_t{1} << 40, 1 << 20}));
}

TEST(ResolveBranches, CappedStopsAtTheHeads) {
  EXPECT_THAT(
      resolve(RatioRule::kCapped, {tokens(2048), tokens(8192), kSequence}, 1 << 20, 1, {}, 12),
      ElementsAre(B{2048, 1}, B{8192, 4}, B{1 << 20, 12}));
}

TEST(ResolveBranches, ListKeepsItsRatiosAndClips) {
  const std::vector<Value> lm{tokens(2048), tokens(4096), tokens(8192), tokens(16384),
                              tokens(32768)};
  EXPECT_THAT(resolve(RatioRule::kList, lm, 32768, 1, {1, 2, 4, 6, 12}),
              ElementsAre(B{2048, 1}, B{4096, 2}, B{8192, 4}, B{16384, 6}, B{32768, 12}));
  EXPECT_THAT(resolve(RatioRule::kList, lm, 8192, 1, {1, 2, 4, 6, 12}),
              ElementsAre(B{2048, 1}, B{4096, 2}, B{8192, 4}, B{8192, 6}, B{8192, 12}));
  EXPECT_THAT(resolve(RatioRule::kList, lm, 8192, 1, {1, 2, 4, 4, 4}),
              ElementsAre(B{2048, 1}, B{4096, 2}, B{8192, 4}));
  // A dropped symbolic segment takes its ratio along.
  EXPECT_THAT(resolve(RatioRule::kList, {tokens(2048), kPerRank, kSequence}, 8192, 8, {1, 3, 5}),
              ElementsAre(B{2048, 1}, B{8192, 5}));
}

TEST(Expand, PatternsFollowTheAlgorithm) {
  const auto points =
      expand(config(R"("algorithm": ["dilated", "ring", "sparse", "other"],
                        "seq_len": "8K", "ranks": 2)",
                    R"("dilated": {"phase": "shard", "mix": "mean", "gather_scope": "world"},
                       "sparse": {"segment": 100, "summary": 7})"),
             {.known = {.algorithms = {{"other", {.pattern = PatternKind::kDilated}}}}});
  EXPECT_THAT(points[0].params.pattern.branches, ElementsAre(B{2048, 1}, B{4096, 2}, B{8192, 4}));
  EXPECT_EQ(points[0].params.pattern.phase_parts, 2);
  EXPECT_EQ(points[0].params.pattern.mix, MixRule::kMean);
  EXPECT_EQ(points[0].params.gather_scope, GatherScope::kWholeWorld);
  EXPECT_EQ(points[1].params.pattern, dense_pattern(8192));
  EXPECT_EQ(points[1].params.gather_scope, GatherScope::kSegmentGroup);
  EXPECT_EQ(points[2].params.pattern, sparse_pattern(100, 7));
  EXPECT_EQ(points[2].params.gather_scope, GatherScope::kSegmentGroup);
  EXPECT_EQ(points[3].params.pattern, points[0].params.pattern);
}

TEST(ResolveSparse, SqrtIsTheNearestPowerOfTwo) {
  const auto segment = [](int64_t n) {
    return resolve_sparse({.segment = {}, .summary = 1}, {.seq_len = n}, {})
        .branches[0]
        .segment_length;
  };
  EXPECT_EQ(segment(1), 1);
  EXPECT_EQ(segment(2), 1);  // 1.41
  EXPECT_EQ(segment(3), 2);  // 1.73
  EXPECT_EQ(segment(9), 4);  // 3 is halfway between 2 and 4
  EXPECT_EQ(segment(8), 2);  // 2.83
  EXPECT_EQ(segment(16384), 128);
  EXPECT_EQ(segment(36863), 128);  // just below 192^2
  EXPECT_EQ(segment(36864), 256);
  EXPECT_EQ(segment(kMaxSeqLen), 1 << 20);
}

TEST(ResolveSparse, NumbersAreClipped) {
  const auto resolved = [](int64_t segment, int64_t summary, int64_t n) {
    return resolve_sparse({.segment = segment, .summary = summary}, {.seq_len = n}, {});
  };
  EXPECT_EQ(resolved(64, 8, 1000), sparse_pattern(64, 8));
  EXPECT_EQ(resolved(2000, 8, 1000), sparse_pattern(1000, 8));
  EXPECT_EQ(resolved(2000, 1500, 1000), sparse_pattern(1000, 1000));
}

// The c that bisection finds is the one that trying all of them finds.
TEST(ResolveSparse, MatchesThePairsOfDilated) {
  for (const int64_t n : {64, 256, 1000, 1024, 4096})
    for (const int64_t heads : {1, 3, 8})
      for (const bool causal : {false, true})
        for (const int64_t w0 : {1, 16, 64, 512}) {
          const AttentionProblem problem{
              .seq_len = n, .num_heads = heads, .num_kv_heads = heads, .causal = causal};
          const DilatedPattern dilated{
              .branches = resolve(RatioRule::kGeometric, {tokens(w0), kSequence}, n, 1)};
          const int64_t target = pairs_of(problem, dilated);
          const DilatedPattern found = resolve_sparse({}, problem, dilated);
          const int64_t w = found.branches[0].segment_length, c = found.branches[1].summary_tokens;
          ASSERT_GE(c, 1);
          ASSERT_LE(c, w);
          int64_t best = std::abs(pairs_of(problem, found) - target);
          for (int64_t other = 1; other <= w; ++other)
            EXPECT_LE(best, std::abs(pairs_of(problem, sparse_pattern(w, other)) - target))
                << "N=" << n << " H=" << heads << " w0=" << w0 << " w=" << w << " c=" << c
                << " other=" << other << " causal=" << causal;
        }
  // Fewer pairs than one summary token makes, and more than whole segments make.
  const AttentionProblem problem{.seq_len = 4096};
  EXPECT_EQ(resolve_sparse({}, problem, {.branches = {{1, 1}}}), sparse_pattern(64, 1));
  EXPECT_EQ(resolve_sparse({.segment = 16}, problem, dense_pattern(4096)), sparse_pattern(16, 16));
}

// Pairs of 2^33 tokens pass 2^63: the summary is still the one nearest to dilated attention's.
TEST(Expand, SparsePairsPassSixtyThreeBits) {
  const AttentionProblem problem{.seq_len = int64_t{1} << 33, .num_heads = 2};
  const DilatedPattern dilated{.branches = {{256, 1}, {int64_t{1} << 33, 1 << 25}}};
  EXPECT_EQ(resolve_sparse({}, problem, dilated).branches.back().summary_tokens, 1);
  EXPECT_THAT(usage_error([&] { resolve_sparse({.segment = 2}, problem, dilated); }),
              HasSubstr("use longer segments"));
}

}  // namespace
}  // namespace longnet
