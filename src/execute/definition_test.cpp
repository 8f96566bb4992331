// The traps that other implementations fell into, one test each.
#include "execute/definition.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/random.h"

namespace longnet {
namespace {

std::vector<double> row_of(const AttentionProblem& p, Tensor tensor, int64_t token, int64_t head) {
  std::vector<float> row(size_t(p.head_dim));
  generate_row({p.seed, tensor, token, head}, p.head_dim, row.data());
  return {row.begin(), row.end()};
}

// One softmax over an explicit list of keys (repeats allowed): the multiset definition of the
// mixture.
DefinedRow softmax_over(const AttentionProblem& p, int64_t head, int64_t query,
                        const std::vector<int64_t>& keys) {
  const auto q = row_of(p, Tensor::kQuery, query, head);
  std::vector<double> scores;
  for (int64_t t : keys) {
    const auto k = row_of(p, Tensor::kKey, t, p.kv_head_of(head));
    double s = 0;
    for (size_t c = 0; c < k.size(); ++c) s += q[c] * k[c];
    scores.push_back(s / std::sqrt(double(p.head_dim)));
  }
  DefinedRow out{std::vector<double>(q.size(), 0.0), -INFINITY};
  double sum = 0;
  for (double s : scores) sum += std::exp(s);
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto v = row_of(p, Tensor::kValue, keys[i], p.kv_head_of(head));
    for (size_t c = 0; c < v.size(); ++c) out.o[c] += std::exp(scores[i]) / sum * v[c];
  }
  if (!keys.empty()) out.lse = std::log(sum);
  return out;
}

void expect_equal(const DefinedRow& a, const DefinedRow& b) {
  if (std::isinf(b.lse))
    EXPECT_EQ(a.lse, b.lse);
  else
    EXPECT_NEAR(a.lse, b.lse, 1e-12);
  for (size_t i = 0; i < a.o.size(); ++i) EXPECT_NEAR(a.o[i], b.o[i], 1e-12);
}

DefinedRow defined_row(const AttentionProblem& p, const DilatedPattern& pattern,
                       const QuerySample& query) {
  return defined_rows(p, pattern, {query}).front();
}

const AttentionProblem kSmall{.seq_len = 22, .num_heads = 4, .num_kv_heads = 4, .head_dim = 8};

TEST(Traps, APartialSegmentHasNoPadding) {  // last segment 16..22, r = 4: head 1 selects 17, 21 and
                                            // no padded keys
  expect_equal(defined_row(kSmall, {.branches = {{8, 4}}}, {0, 1, 21}),
               softmax_over(kSmall, 1, 21, {17, 21}));
}

TEST(Traps,
     SegmentsAreTrimmedWhenTheRateDoesNotDivide) {  // w = 8, r = 3, head 2: 2 5 | 10 13 | 18 21
  expect_equal(defined_row(kSmall, {.branches = {{8, 3}}}, {0, 2, 13}),
               softmax_over(kSmall, 2, 13, {10, 13}));
}

TEST(Traps, AKeySeenByTwoBranchesCountsTwice) {
  expect_equal(defined_row(kSmall, {.branches = {{4, 1}, {22, 4}}}, {0, 0, 4}),
               softmax_over(kSmall, 0, 4, {4, 5, 6, 7, 0, 4, 8, 12, 16, 20}));
}

TEST(Traps, AnUnselectedRowIsAbsentAndZero) {
  const DefinedRow row = defined_row(kSmall, {.branches = {{22, 4}}}, {0, 1, 6});
  EXPECT_EQ(row.lse, -INFINITY);
  for (double x : row.o) EXPECT_EQ(x, 0.0);
}

TEST(Traps, ACausalGatherHoldsTheOwnShardsKeys) {
  AttentionProblem p = kSmall;
  p.causal = true;
  expect_equal(defined_row(p, {.branches = {{22, 1}}}, {0, 3, 5}),
               softmax_over(p, 3, 5, {0, 1, 2, 3, 4, 5}));
}

TEST(Traps, TheOffsetBelongsToTheQueryHead) {  // grouped queries: heads 0 and 1 read other rows of
                                               // kv head 0
  AttentionProblem p = kSmall;
  p.num_kv_heads = 2;
  expect_equal(defined_row(p, {.branches = {{8, 2}}}, {0, 1, 3}),
               softmax_over(p, 1, 3, {1, 3, 5, 7}));
}

TEST(Traps, EveryHeadMixesAllBranches) {  // not one branch per head group
  expect_equal(defined_row(kSmall, {.branches = {{4, 1}, {8, 2}}}, {0, 3, 3}),
               softmax_over(kSmall, 3, 3, {0, 1, 2, 3, 1, 3, 5, 7}));
}

TEST(Options, MeanAndSumAddBranchesAndPhaseRestarts) {
  const DefinedRow a = softmax_over(kSmall, 0, 4, {4, 5, 6, 7}),
                   b = softmax_over(kSmall, 0, 4, {0, 4, 8, 12, 16, 20});
  const DefinedRow sum =
      defined_row(kSmall, {.branches = {{4, 1}, {22, 4}}, .mix = MixRule::kSum}, {0, 0, 4});
  const DefinedRow mean =
      defined_row(kSmall, {.branches = {{4, 1}, {22, 4}}, .mix = MixRule::kMean}, {0, 0, 4});
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(sum.o[i], a.o[i] + b.o[i], 1e-12);
    EXPECT_NEAR(mean.o[i], (a.o[i] + b.o[i]) / 2, 1e-12);
  }
  // Two parts of 11 tokens: dilation by 4 restarts at 11.
  expect_equal(defined_row(kSmall, {.branches = {{22, 4}}, .phase_parts = 2}, {0, 0, 15}),
               softmax_over(kSmall, 0, 15, {0, 4, 8, 11, 15, 19}));
}

// A query's gradient is the sum of those of each branch alone, weighted as in the mixture.
TEST(Options, DetachedWeightsAreConstants) {
  const DilatedPattern all{.branches = {{4, 1}, {22, 4}}, .mix = MixRule::kLseDetached};
  const QuerySample query{0, 0, 4};
  const auto output = defined_row(kSmall, all, query);
  std::vector<double> sum(8);
  for (const DilatedBranch& branch : all.branches) {
    const DilatedPattern alone{.branches = {branch}};
    const double weight = std::exp(defined_row(kSmall, alone, query).lse - output.lse);
    const std::vector<double> row = defined_query_gradients(kSmall, alone, {query}).front();
    for (size_t i = 0; i < 8; ++i) sum[i] += weight * row[i];
  }
  const std::vector<double> detached = defined_query_gradients(kSmall, all, {query}).front();
  DilatedPattern exact = all;
  exact.mix = MixRule::kLse;
  expect_equal(output, defined_row(kSmall, exact, query));
  const std::vector<double> whole = defined_query_gradients(kSmall, exact, {query}).front();
  double missing = 0;
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(detached[i], sum[i], 1e-12);
    missing = std::max(missing, std::fabs(whole[i] - detached[i]));
  }
  EXPECT_GT(missing, 1e-3);  // the gradient through the weights
}

TEST(Options, SparsePatternIsAUnionOfLocalBlockAndSummaries) {
  // Blocks of 8, 2 summary tokens: head 0 sees 6 7, 14 15 (and not 22 23: N = 22), head 1 sees 4 5,
  // 12 13, 20 21.
  expect_equal(defined_row(kSmall, sparse_pattern(8, 2), {0, 0, 3}),
               softmax_over(kSmall, 0, 3, {0, 1, 2, 3, 4, 5, 6, 7, 14, 15}));
  expect_equal(defined_row(kSmall, sparse_pattern(8, 2), {0, 1, 17}),
               softmax_over(kSmall, 1, 17, {16, 17, 18, 19, 20, 21, 4, 5, 12, 13}));
  AttentionProblem causal = kSmall;
  causal.causal = true;
  expect_equal(defined_row(causal, sparse_pattern(8, 2), {0, 1, 17}),
               softmax_over(causal, 1, 17, {16, 17, 4, 5, 12, 13}));
}

TEST(NearestKey, IsBeforeTheQueryElseAfterItElseItsOwn) {
  AttentionProblem p = kSmall;
  const DilatedPattern pattern{.branches = {{8, 3}, {8, 1, 2}}};  // head 2: 2 5 | 10 13 | 18 21
  const auto nearest = [&](size_t branch, int64_t head, int64_t token) {
    return nearest_key(p, pattern, branch, {0, head, token}).value_or(-1);
  };
  EXPECT_EQ(nearest(0, 2, 13), 10);
  EXPECT_EQ(nearest(0, 2, 10), 13);
  EXPECT_EQ(nearest(0, 2, 11), -1);
  EXPECT_EQ(nearest(1, 0, 3), 14);  // the last two of other segments: 6 7 | 14 15 | 22 23
  EXPECT_EQ(nearest(1, 0, 20), 15);
  EXPECT_EQ(nearest(1, 1, 20), 13);  // the next head takes the two before
  p.causal = true;
  EXPECT_EQ(nearest(0, 2, 10), 10);
  EXPECT_EQ(nearest(1, 0, 3), -1);
}

}  // namespace
}  // namespace longnet
