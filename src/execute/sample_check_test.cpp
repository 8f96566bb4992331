// Which queries are sampled, and that the check can fail.
#include "execute/sample_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "core/random.h"
#include "execute/program_executor.h"
#include "kernels/attention_kernel.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

TEST(ChooseShardSamples, CoverTheShardsEndsBordersAndBranches) {
  ShardedProblem s{{.seq_len = 1 << 16, .num_heads = 3, .num_kv_heads = 3, .batch = 4},
                   {.branches = {{256, 1}, {4096, 16}, {1 << 16, 256}}},
                   SequenceLayout(1 << 16, 8)};
  const QuerySample given{2, 1, 3 * 8192 + 5};
  const auto samples = choose_shard_samples(s, 3, 1, 2, {given, {0, 0, 3 * 8192}, {2, 0, 0}}, 60);
  EXPECT_EQ(samples.size(), 60u);
  const auto has = [&](const QuerySample& q) {
    return std::find(samples.begin(), samples.end(), q) != samples.end();
  };
  EXPECT_TRUE(has(given));
  EXPECT_TRUE(has({1, 0, 3 * 8192}));
  EXPECT_TRUE(has({2, 2, 4 * 8192 - 1}));
  int64_t borders = 0, selected[3] = {};
  for (const auto& [batch, head, token, spread] : samples) {
    EXPECT_TRUE(batch == 1 || batch == 2);
    EXPECT_TRUE(token >= 3 * 8192 && token < 4 * 8192) << token;
    borders += token % 256 == 0 || token % 256 == 255;
    for (int b = 0; b < 3; ++b)
      selected[b] += token % s.pattern.branches[size_t(b)].dilation_rate == head;
  }
  EXPECT_GE(borders, 10);
  EXPECT_GE(selected[2], 4);  // chance would give none
  EXPECT_EQ(samples, choose_shard_samples(s, 3, 1, 2, {given, {0, 0, 3 * 8192}, {2, 0, 0}}, 60));
  // Small shards give all that they have.
  ShardedProblem small{{.seq_len = 6, .num_heads = 2, .num_kv_heads = 2},
                       {.branches = {{6, 1}}},
                       SequenceLayout(6, 3)};
  EXPECT_EQ(choose_shard_samples(small, 1, 0, 1, {}, 100).size(), 4u);
}

TEST(ChooseSamples, HasTheEndsTheBordersAndSelectedRows) {
  const ShardedProblem s{{.seq_len = 100000, .num_heads = 3, .num_kv_heads = 3},
                         {.branches = {{2048, 1}, {100000, 48}}},
                         {100000, 4}};
  const auto samples = choose_samples(s, 64);
  EXPECT_EQ(samples.size(), 64u);
  std::set<int64_t> tokens, heads;
  int selected = 0;
  for (const auto& q : samples) {
    tokens.insert(q.token), heads.insert(q.head);
    selected += q.token % 48 == q.head;
  }
  for (int64_t t :
       {int64_t{0}, int64_t{99999}, int64_t{25000}, int64_t{24999}, int64_t{49152}, int64_t{49151}})
    EXPECT_TRUE(tokens.contains(t)) << t;
  EXPECT_EQ(heads.size(), 3u);
  EXPECT_GE(selected, 16);
  EXPECT_EQ(
      choose_samples(
          {{.seq_len = 22, .num_heads = 4, .num_kv_heads = 4}, dense_pattern(22), {22, 1}}, 1000)
          .size(),
      88u);  // few queries: all of them
}

TEST(ChooseSamples, TheSpreadOnesDependOnNoRanks) {
  const auto spread_of = [](int ranks, LayoutKind layout, int64_t count) {
    const ShardedProblem s{
        {.seq_len = 100000, .num_heads = 3, .num_kv_heads = 3, .batch = 2, .causal = true},
        dense_pattern(100000),
        {100000, ranks, layout}};
    std::vector<QuerySample> out;
    for (const QuerySample& q : choose_samples(s, count))
      if (q.spread) out.push_back(q);
    return out;
  };
  const auto one = spread_of(1, LayoutKind::kContiguous, 64);
  EXPECT_EQ(one.size(), 32u);
  for (const int ranks : {2, 3, 7, 8})
    for (const LayoutKind layout :
         {LayoutKind::kContiguous, LayoutKind::kZigzag, LayoutKind::kStriped})
      EXPECT_EQ(spread_of(ranks, layout, 64), one) << ranks;
  EXPECT_EQ(spread_of(1, LayoutKind::kContiguous, 32).size(), 16u);
}

TEST(CompareRows, TheSpreadErrorIsThatOfSpreadRows) {
  const AttentionProblem problem{.seq_len = 8, .num_heads = 1, .num_kv_heads = 1, .head_dim = 8};
  const ShardedProblem s{problem, dense_pattern(8), {8, 1}};
  const std::vector<QuerySample> samples = {{0, 0, 1, true}, {0, 0, 5, false}};
  std::vector<std::vector<float>> rows;
  for (const QuerySample& q : samples) {
    const auto exact = reference_row(problem, s.pattern, q).o;
    rows.emplace_back(exact.begin(), exact.end());
  }
  const auto outcome = [&] {
    return judge(compare_rows(expected_rows(problem, s.pattern, samples, false),
                              [&](size_t i) {
                                return OutputRow{rows[i], {}};
                              }),
                 0, s);
  };
  EXPECT_LT(outcome().spread_rel_l2_error, 1e-7);
  rows[1][0] += 1;  // wrong, but not spread
  EXPECT_LT(outcome().spread_rel_l2_error, 1e-7);
  EXPECT_GT(outcome().rel_l2_error, 0.1);
  rows[0][0] += 1;
  EXPECT_GT(outcome().spread_rel_l2_error, 0.1);
}

TEST(CheckSamples, FailsOnAWrongOutput) {
  const ShardedProblem s{{.seq_len = 64, .num_heads = 2, .num_kv_heads = 2, .head_dim = 16},
                         dense_pattern(64),
                         {64, 1}};
  const Schedule schedule = local_attention(s);
  const auto kernel = make_kernel("cpu");
  run_on_threads(1, [&](Communicator& comm) {
    MemoryLedger ledger;
    ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
    executor.fill_inputs();
    const auto samples = choose_samples(s, 16);
    const CheckOutcome unwritten = check_samples(executor, samples, comm);
    EXPECT_FALSE(unwritten.pass);
    EXPECT_EQ(unwritten.nan_values, 64 * 2 * 17);
    executor.run();
    EXPECT_TRUE(check_samples(executor, samples, comm).pass);
    EXPECT_FALSE(check_samples(executor, samples, comm, 1e-12).pass);  // fp32 is not double
    auto* const row = const_cast<float*>(output_row(executor.bound(), 0, 0, 0).data());
    row[3] += 1e-4f;
    const CheckOutcome changed = check_samples(executor, samples, comm);
    EXPECT_FALSE(changed.pass);
    EXPECT_GT(changed.max_rel_error, 1e-5);
  });
}

}  // namespace
}  // namespace longnet
