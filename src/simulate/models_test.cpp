// Closed forms and costs of kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/check.h"
#include "schedule/registry.h"
#include "simulate/closed_form_times.h"
#include "simulate/compact_program.h"
#include "simulate/cost_model.h"

namespace longnet {
namespace {

TEST(ClosedForms, AreReproduced) {
  for (const ClosedFormTime& c : closed_form_times())
    EXPECT_LT(c.rel_error(), 1e-9) << c.name << ": " << c.simulated_s << " for " << c.expected_s;
}

ShardedProblem dense(int64_t n, int ranks, int64_t head_dim, bool causal = false) {
  return {{.seq_len = n,
           .num_heads = 4,
           .num_kv_heads = 4,
           .head_dim = head_dim,
           .dtype = DType::kBFloat16,
           .causal = causal},
          dense_pattern(n),
          {n, ranks}};
}

Attend whole(const ShardedProblem& s) {
  const Slice all{kEveryRow, {.first = 0}, s.all_tokens(), s.all_heads()};
  return {0, s.all_tokens(), s.all_heads(), {kQuerySlot, all}, {kKvSlot, all}, {kOutputSlot, all}};
}

TEST(CostModel, ReadsTheTableAsLinesInOneOverRowsAndInHeadDim) {
  ClusterSpec c = plain_cluster();
  c.device.attend.clear();
  for (const auto& [rows, d, speed] : {std::tuple{1024.0, 64.0, 1e14},
                                       {4096.0, 64.0, 3e14},
                                       {1024.0, 128.0, 2e14},
                                       {4096.0, 128.0, 6e14}})
    c.device.attend.push_back(
        {.rows = rows, .head_dim = d, .causal = false, .flops_per_s = speed, .source = "test"});
  const auto speed = [&](int64_t head_dim, int64_t keys) {
    const ShardedProblem s = dense(keys, 1, head_dim);
    return 4.0 * double(head_dim * keys * keys) * 4 / CostModel(c, s).attend(whole(s)).seconds;
  };
  EXPECT_NEAR(speed(64, 1024), 1e14, 1e4);
  EXPECT_NEAR(speed(64, 2048), 1.8e14, 1e4);  // 1/3 of the way: (2/3) / 3e14 + (1/3) / 1e14
  EXPECT_NEAR(speed(128, 2048), 3.6e14, 1e4);
  EXPECT_NEAR(speed(64, 16384), 6e14, 1e4);  // the same line: 1 / 6e14
  // 64 and 128 take equally long per pair, so 96 and 32 do too.
  EXPECT_NEAR(speed(96, 4096), 4.5e14, 1e4);
  EXPECT_NEAR(speed(32, 4096), 1.5e14, 1e4);
  EXPECT_NEAR(speed(256, 4096), 6e14, 1e4);
  const auto guess = [&](int64_t head_dim, int64_t keys) {
    const ShardedProblem s = dense(keys, 1, head_dim);
    return CostModel(c, s).attend(whole(s)).guess;
  };
  EXPECT_EQ(guess(96, 1024), Guess::kNone);
  EXPECT_EQ(guess(96, 1000), Guess::kOtherSize);
  EXPECT_EQ(guess(96, 4100), Guess::kLongerRows);
  EXPECT_EQ(guess(32, 4100), Guess::kOtherSize);
}

TEST(CostModel, WhatAMaskDoesNotCutTakesTheUnmaskedSpeed) {
  ClusterSpec c = plain_cluster();
  c.device.attend = {
      {.rows = 1024, .head_dim = 64, .flops_per_s = 4e14, .source = "test"},
      {.rows = 1024, .head_dim = 64, .causal = true, .flops_per_s = 1e14, .source = "test"}};
  const ShardedProblem s = dense(8192, 2, 64, true);
  const CostModel cost(c, s);
  std::vector<double> seconds;
  for (const Op& op : ring_attention(s).program(1).ops)
    if (const auto* a = std::get_if<Attend>(&op.what)) seconds.push_back(cost.attend(*a).seconds);
  const double block = 4.0 * 64 * 4096 * 4096 * 4;
  ASSERT_EQ(seconds.size(), 2u);
  EXPECT_NEAR(seconds[0], block / 2 / 1e14, 1e-3 * seconds[0]);  // its own shard: a triangle
  EXPECT_NEAR(seconds[1], block / 4e14, 1e-12);
}

TEST(CostModel, AMergeIsAKernelPartOfTheAttendOrOperators) {
  ClusterSpec c = plain_cluster();
  c.device.launch_s = {1e-6, "test"};
  const ShardedProblem s = dense(64, 1, 64);
  const auto seconds = [&](MergeKind kind) {
    c.merge = kind;
    return CostModel(c, s).merge_s(4000);
  };
  EXPECT_DOUBLE_EQ(seconds(MergeKind::kKernel), 1e-6 + 12000 / 1e12);
  EXPECT_NEAR(seconds(MergeKind::kFused), 8000 / 1e12, 1e-18);
  EXPECT_DOUBLE_EQ(seconds(MergeKind::kEager), 4e-6 + 38000 / 1e12);
  EXPECT_DOUBLE_EQ(CostModel(c, s).merge_s(4000, true), 4e-6 + 46000 / 1e12);
}

// A ring of 4 ranks in a node: three attends run beside a hop that takes a quarter of the device.
TEST(CostModel, MessagesInANodeTakeTheirShareFromTheAttendsBesideThem) {
  const AttentionProblem problem{
      .seq_len = 8192, .num_heads = 1, .num_kv_heads = 1, .dtype = DType::kBFloat16};
  const auto attend_s = [&](const char* algorithm, int gpus_per_node, double share,
                            double bandwidth) {
    ClusterSpec c = plain_cluster({.gpus_per_node = gpus_per_node, .intra_bandwidth = bandwidth});
    c.intra.channels.value = 2 * gpus_per_node;  // two of the pair's
    c.intra.device_share.value = share / 2;
    const ShardedProblem s{problem, dense_pattern(8192), {8192, 4}};
    const ProgramSet set = compile(make_schedule(find_algorithm(algorithm), s, Pass::kForward),
                                   {.ranks = 4}, c, plan_collectives(c, "ring", 4));
    double sum = 0;
    for (const CompactOp& op : set.of(0).lanes[0])
      if (op.kind == OpKind::kAttend) sum += op.amount;
    return sum;
  };
  const double block = 4.0 * 64 * 2048 * 2048 / 1e14, hop = 2.0 * 2048 * 64 * 2 / 4e11;
  EXPECT_NEAR(attend_s("ring", 4, 0, 4e11), 4 * block, 1e-12);
  EXPECT_NEAR(attend_s("ring", 4, 0.25, 4e11), 4 * block + 3 * hop * 0.25, 1e-12);
  // A hop that outlasts its attend takes its share all the time.
  EXPECT_NEAR(attend_s("ring", 4, 0.25, 1e9), block + 3 * block / 0.75, 1e-12);
  // Nothing runs beside a gather, nor beside messages to another node.
  EXPECT_NEAR(attend_s("all_gather", 4, 0.25, 4e11), 4 * block, 1e-12);
  EXPECT_NEAR(attend_s("ring", 1, 0.25, 4e11), 4 * block, 1e-12);
  // An inner ring in a node has one hop a node of two ranks.
  EXPECT_NEAR(attend_s("double_ring", 2, 0.25, 4e11), 4 * block + 2 * hop * 0.25, 1e-12);
}

TEST(CostModel, AnAttendTakesItsFlopsAtTheTablesSpeed) {
  ClusterSpec c = plain_cluster();
  c.device.launch_s = {5e-6, "test"};
  const ShardedProblem s = dense(4096, 1, 64);
  const double flops = 4.0 * 64 * 4096 * 4096 * 4;
  EXPECT_DOUBLE_EQ(CostModel(c, s).attend(whole(s)).seconds, 5e-6 + flops / 1e14);
  // Half of the rows that fill the device: half its speed.
  c.device.fill_rows = {2.0 * 4096 * 4, "test"};
  EXPECT_DOUBLE_EQ(CostModel(c, s).attend(whole(s)).seconds, 5e-6 + 2 * flops / 1e14);
  // A wave of all rows but one, and one of the last.
  c.device.fill_rows = {4096.0 * 4 - 1, "test"};
  EXPECT_DOUBLE_EQ(CostModel(c, s).attend(whole(s)).seconds,
                   5e-6 + 2 * (4096.0 * 4 - 1) / (4096 * 4) * flops / 1e14);
  // Two blocks at once: half a wave. A row that was measured in such a one is as fast as it says.
  c.device.blocks_at_once[c.device.kernel] = {2, 64, "test"};
  EXPECT_DOUBLE_EQ(CostModel(c, s).attend(whole(s)).seconds,
                   5e-6 + 2 * (4096.0 * 4 - 1) / (4096 * 4) * flops / 1e14);
  for (KernelRow& row : c.device.attend) row.all_rows = 4096.0 * 4;
  EXPECT_DOUBLE_EQ(CostModel(c, s).attend(whole(s)).seconds, 5e-6 + flops / 1e14);
  c = plain_cluster();
  // A causal mask leaves half of the pairs, at the speed of as many keys as without it.
  const ShardedProblem masked = dense(4096, 1, 64, true);
  EXPECT_DOUBLE_EQ(CostModel(c, masked).attend(whole(masked)).pairs, 4096.0 * 4097 / 2 * 4);
}

TEST(CostModel, NeverFasterThanMemory) {
  ClusterSpec c = plain_cluster();
  // 8 keys: 8 x 4 rows of Q and O, and as many heads of K and V, are more work to move.
  ShardedProblem s = dense(8, 1, 64);
  c.device.attend[2].flops_per_s = c.device.attend[0].flops_per_s = 1e18;
  const double out = 8.0 * 4 * (64 * 2 + 65 * 4), kv = 8.0 * 2 * 64 * 2;
  EXPECT_DOUBLE_EQ(CostModel(c, s).attend(whole(s)).seconds, (out + 4 * kv) / 1e12);
  s.problem.num_kv_heads = 1;  // read once for all four heads
  EXPECT_DOUBLE_EQ(CostModel(c, s).attend(whole(s)).seconds, (out + kv) / 1e12);
  EXPECT_DOUBLE_EQ(CostModel(c, s).pack_s(1000), 2000 / 1e12);
  EXPECT_DOUBLE_EQ(CostModel(c, s).merge_s(1000), 3000 / 1e12);
}

TEST(CostModel, AProductTakesItsFlopsItsTilesOrItsMemory) {
  ClusterSpec c = plain_cluster();
  const ShardedProblem s = dense(4096, 1, 64);
  EXPECT_NE(CostModel::why_no_speed(c, s.problem, Pass::kStep, Scope::kModel), "");
  c.device.gemm_flops[DType::kBFloat16] = {2e14, "test"};
  c.device.fill_rows = {128 * 100, "test"};
  EXPECT_EQ(CostModel::why_no_speed(c, s.problem, Pass::kStep, Scope::kModel), "");
  const auto product = [](int64_t m, int64_t k, int64_t n) {
    return Gemm{{{{{}, 0, m, k}, {{}, 0, k, n}}, {{{}, 0, m, n}}}};
  };
  const CostModel cost(c, s);
  EXPECT_DOUBLE_EQ(cost.gemm(product(2048, 4096, 1024), 0).seconds,
                   2.0 * 2048 * 4096 * 1024 / 2e14);
  EXPECT_DOUBLE_EQ(cost.gemm(product(128 * 25, 4096, 128), 0).seconds,
                   4 * 2.0 * 128 * 25 * 4096 * 128 / 2e14);  // a quarter of the device
  EXPECT_DOUBLE_EQ(cost.gemm(product(2048, 1, 2048), 1000000000).seconds, 1e9 / 1e12);
  EXPECT_EQ(cost.gemm(product(2048, 4096, 1024), 0).guess, Guess::kNone);
  EXPECT_EQ(cost.gemm(product(128 * 25, 4096, 128), 0).guess, Guess::kOtherSize);
  const auto gelu = [&] { return CostModel(c, s).row_wise(RowFunction::kGelu, 3000); };
  EXPECT_DOUBLE_EQ(gelu().seconds, 3000 / 1e12);
  EXPECT_EQ(gelu().guess, Guess::kNoFigure);
  EXPECT_EQ(cost.cross_entropy(3000).guess, Guess::kNoFigure);
  EXPECT_EQ(cost.update(3000).guess, Guess::kNoFigure);
  // A device that copies matrices first, and whose functions have speeds of their own.
  c.device.gemm_bytes_per_s = {1e11, "test"};
  c.device.row_wise_bytes_per_s[RowFunction::kGelu] = {3e9, "test"};
  c.device.cross_entropy_bytes_per_s = {1e9, "test"}, c.device.update_bytes_per_s = {2e9, "test"};
  EXPECT_DOUBLE_EQ(CostModel(c, s).gemm(product(2048, 4096, 1024), 1000000).seconds,
                   2.0 * 2048 * 4096 * 1024 / 2e14 + 1e-5);
  EXPECT_DOUBLE_EQ(gelu().seconds, 1e-6);
  EXPECT_EQ(gelu().guess, Guess::kNone);
  EXPECT_DOUBLE_EQ(CostModel(c, s).row_wise(RowFunction::kAdd, 3000).seconds, 3000 / 1e12);
  EXPECT_DOUBLE_EQ(CostModel(c, s).cross_entropy(3000).seconds, 3e-6);
  EXPECT_DOUBLE_EQ(CostModel(c, s).update(3000).seconds, 1.5e-6);
}

TEST(CostModel, UnsupportedProblemsHaveAReason) {
  ClusterSpec c = plain_cluster();
  std::erase_if(c.device.attend, [](const KernelRow& r) { return r.causal; });
  const AttentionProblem problem = dense(8, 1, 64).problem;
  EXPECT_EQ(CostModel::why_no_speed(c, problem), "");
  EXPECT_EQ(CostModel::why_no_speed(c, problem, Pass::kForwardBackward), "");
  EXPECT_NE(CostModel::why_no_speed(c, dense(8, 1, 64, true).problem), "");
  ClusterSpec no_backward = c;
  std::erase_if(no_backward.device.attend, [](const KernelRow& r) { return r.backward; });
  EXPECT_EQ(CostModel::why_no_speed(no_backward, problem), "");
  const std::string why = CostModel::why_no_speed(no_backward, problem, Pass::kBackward);
  EXPECT_NE(why.find("backward pass of attention in bf16"), std::string::npos) << why;
  EXPECT_NE(why.find("--set sweep.pass=forward"), std::string::npos) << why;
  const ShardedProblem s = dense(8, 1, 64);
  EXPECT_THROW(CostModel(no_backward, s).attend(whole(s), {.backward = true}), UsageError);
  std::erase_if(c.device.attend, [](const KernelRow& r) { return !r.backward; });
  EXPECT_NE(CostModel::why_no_speed(c, problem), "");  // prices no forward
}

TEST(CostModel, ABackwardPassHasRowsOfItsOwn) {
  ClusterSpec c = plain_cluster();
  c.device.launch_s = {5e-6, "test"};
  for (KernelRow& row : c.device.attend)
    if (row.backward) row.flops_per_s = row.causal ? 8e13 : 5e13;
  const ShardedProblem s = dense(4096, 1, 64), masked = dense(4096, 1, 64, true);
  const double flops = 10.0 * 64 * 4096 * 4096 * 4;
  const CostModel cost(c, s);
  EXPECT_DOUBLE_EQ(cost.attend(whole(s), {.backward = true}).seconds, 5e-6 + flops / 5e13);
  EXPECT_DOUBLE_EQ(cost.attend(whole(s)).seconds, 5e-6 + 0.4 * flops / 1e14);
  EXPECT_EQ(cost.attend(whole(s), {.backward = true}).pairs, cost.attend(whole(s)).pairs);
  // A pair under a mask costs at least what it costs without one.
  EXPECT_NEAR(CostModel(c, masked).attend(whole(masked), {.backward = true}).seconds,
              5e-6 + flops * 4097 / 8192 / 5e13, 1e-15);
  // dK and dV of as many rows as K and V: read and written in fp32.
  const ShardedProblem small = dense(8, 1, 64);
  for (KernelRow& row : c.device.attend) row.flops_per_s = 1e18;
  const double rows = 8.0 * 4, queries = rows * (2 * 64 * 2 + 8 + 8 * 64);
  const double keys = rows * 2 * 64 * (2 + 8);
  EXPECT_DOUBLE_EQ(CostModel(c, small).attend(whole(small), {.backward = true}).seconds,
                   5e-6 + (queries + keys) / 1e12);
  EXPECT_DOUBLE_EQ(cost.sum_s(1000), 5e-6 + 3000 / 1e12);
  EXPECT_DOUBLE_EQ(cost.sum_s(7000, 7), 5e-6 + 9000 / 1e12);
  EXPECT_DOUBLE_EQ(cost.delta_s(1000), 5e-6 + 1000 / 1e12);
  c.device.sum_bytes_per_s = c.device.delta_bytes_per_s = {1e9, "test"};
  EXPECT_DOUBLE_EQ(CostModel(c, s).sum_s(1000), 6e-6);
  EXPECT_DOUBLE_EQ(CostModel(c, s).delta_s(1000), 6e-6);
}

// 4096 keys of 4 heads, half as many queries.
TEST(CostModel, BackwardWavesCountWhatTheKernelSplits) {
  ClusterSpec c = plain_cluster();
  const ShardedProblem s = dense(4096, 2, 64);
  Attend op = whole(s);
  op.kv.rows.owners.count = 2;
  const double rows = 4096.0 * 4, plain = CostModel(c, s).attend(op, {.backward = true}).seconds;
  c.device.fill_rows = {rows, "test"};  // one wave of keys, half a wave of queries
  const auto times = [&] { return CostModel(c, s).attend(op, {.backward = true}).seconds / plain; };
  EXPECT_DOUBLE_EQ(times(), 2);
  c.device.backward_splits[c.device.kernel] = {KernelSplit::kQueries, "test"};
  EXPECT_DOUBLE_EQ(times(), 2);
  c.device.backward_splits[c.device.kernel].value = KernelSplit::kKeys;
  EXPECT_DOUBLE_EQ(times(), 1);
  EXPECT_DOUBLE_EQ(CostModel(c, s).attend(op).seconds / (0.4 * plain), 2);  // forward
  c.device.backward_splits[c.device.kernel].value = KernelSplit::kBoth;
  EXPECT_DOUBLE_EQ(times(), (3 * 2 + 4 * 1) / 7.0);
  c.device.backward_splits[c.device.kernel].value = KernelSplit::kKeys;
  c.device.fill_rows = {rows - 1, "test"};
  EXPECT_DOUBLE_EQ(times(), 2 * (rows - 1) / rows);
}

// 2048 queries, 4096 keys: blocks of keys loop over queries, blocks of queries over keys.
TEST(CostModel, ABackwardPassIsPricedByTheRowsThatItsBlocksLoopOver) {
  ClusterSpec c = plain_cluster();
  c.device.attend = {
      {.rows = 4096, .head_dim = 64, .flops_per_s = 2e14, .source = "test"},
      {.rows = 2048, .head_dim = 64, .backward = true, .flops_per_s = 1e14, .source = "test"},
      {.rows = 4096, .head_dim = 64, .backward = true, .flops_per_s = 2e14, .source = "test"}};
  const ShardedProblem s = dense(4096, 2, 64);
  Attend op = whole(s);
  op.kv.rows.owners.count = 2;
  const auto speed = [&](KernelSplit split) {
    c.device.backward_splits[c.device.kernel] = {split, "test"};
    const double seconds =
        CostModel(c, s).attend(op, {.backward = true}).seconds - c.device.launch_s.value;
    return 10.0 * 64 * 2048 * 4096 * 4 / seconds;
  };
  EXPECT_NEAR(speed(KernelSplit::kQueries), 2e14, 1e4);
  EXPECT_NEAR(speed(KernelSplit::kKeys), 1e14, 1e4);
  EXPECT_NEAR(speed(KernelSplit::kBoth), 7e14 / (3 / 2.0 + 4 / 1.0), 1e4);
}

// 2 ranks of 32 tokens, 4 heads, bf16: with each branch alone there are deltas of its 32 and 8 rows
// of a head.
TEST(CostModel, ADeltaOfABranchReadsTheRowsOfTheBranch) {
  const ClusterSpec c = plain_cluster();
  ShardedProblem s = dense(64, 2, 64);
  s.pattern = {.branches = {{16, 1}, {64, 4}}, .mix = MixRule::kMean};
  const ProgramSet programs =
      compile(dilated_attention(s, Pass::kBackward), {2, 1}, c, plan_collectives(c, "ring", 2));
  std::vector<double> deltas;
  for (const auto& lane : programs.of(0).lanes)
    for (const CompactOp& op : lane)
      if (op.kind == OpKind::kDelta) deltas.push_back(op.amount);
  constexpr double kRow = 4 * (64 + 1) + 2 * 64;  // O and L in fp32, dO
  const double launch = c.device.launch_s.value;
  EXPECT_THAT(deltas, testing::UnorderedElementsAre(
                          testing::DoubleNear(launch + 4 * 32 * kRow / 1e12, 1e-15),
                          testing::DoubleNear(launch + 4 * 8 * kRow / 1e12, 1e-15)));
}

}  // namespace
}  // namespace longnet
