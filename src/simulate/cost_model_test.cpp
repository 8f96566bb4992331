// Blocks and key rows of an attend: small cases counted by hand; the model's price of them.
#include "simulate/cost_model.h"

#include <gmock/gmock.h>

#include <array>

#include "core/check.h"
#include "schedule/registry.h"
#include "simulate/closed_form_times.h"

namespace longnet {
namespace {

ShardedProblem problem(int64_t n, int ranks, bool causal, DilatedPattern pattern) {
  const AttentionProblem p{.seq_len = n, .num_heads = 2, .num_kv_heads = 2, .causal = causal};
  return {p, std::move(pattern), {n, ranks}};
}

std::vector<Attend> attends(const Schedule& schedule, Rank rank) {
  std::vector<Attend> out;
  for (const Op& op : schedule.program(rank).ops)
    if (const auto* a = std::get_if<Attend>(&op.what)) out.push_back(*a);
  return out;
}

void expect_counts(const AttendCounts& c, const AttendCounts& wanted) {
  EXPECT_EQ(c.blocks, wanted.blocks);
  EXPECT_EQ(c.queries, wanted.queries);
  EXPECT_EQ(c.key_rows, wanted.key_rows);
  EXPECT_EQ(c.pairs, wanted.pairs);
  EXPECT_EQ(c.masked, wanted.masked);
}

TEST(AttendCounts, EachHeadsQueriesAreCutIntoBlocksThatPackTheirKeys) {
  const ShardedProblem dense = problem(4096, 1, false, dense_pattern(4096));
  expect_counts(count_attend(dense, attends(ring_attention(dense), 0).front(), 2048),
                {4, 8192, 4 * 4096, 2.0 * 4096 * 4096, false});
  // The first block of each head packs 2048 keys, the second one 4096.
  const ShardedProblem causal = problem(4096, 1, true, dense_pattern(4096));
  expect_counts(count_attend(causal, attends(ring_attention(causal), 0).front(), 2048),
                {4, 8192, 2 * (2048 + 4096), 4096.0 * 4097, true});
}

TEST(AttendCounts, AShardThatLiesBeforeTheQueriesIsNotMasked) {
  const ShardedProblem s = problem(1024, 2, true, dense_pattern(1024));
  const auto ops = attends(ring_attention(s), 1);  // its own shard, then rank 0's
  ASSERT_EQ(ops.size(), 2u);
  expect_counts(count_attend(s, ops[0], 2048), {2, 1024, 1024, 512.0 * 513, true});
  expect_counts(count_attend(s, ops[1], 2048), {2, 1024, 1024, 2.0 * 512 * 512, false});
}

TEST(AttendCounts, EverySegmentIsARunOfItsOwn) {
  DilatedPattern pattern;
  pattern.branches = {{64, 1}, {256, 4}};
  const ShardedProblem s = problem(256, 1, false, pattern);
  const auto ops = attends(dilated_attention(s), 0);
  ASSERT_EQ(ops.size(), 2u);
  expect_counts(count_attend(s, ops[0], 2048), {8, 512, 512, 2 * 4 * 64.0 * 64, false});
  expect_counts(count_attend(s, ops[1], 2048), {2, 128, 128, 2 * 64.0 * 64, false});
}

AttendModel model(double head_dim, bool causal, double pair_s) {
  return {.head_dim = head_dim,
          .causal = causal,
          .block_rows = 2048,
          .block_s = 1e-6,
          .query_s = 1e-7,
          .key_s = 2e-7,
          .pair_s = pair_s,
          .source = "test"};
}

TEST(AttendCounts, TheModelIsPreferredToTheTableAndInterpolatedInHeadDim) {
  ClusterSpec c = plain_cluster({.nodes = 1, .gpus_per_node = 2});
  c.device.attend_model = {model(32, false, 1e-9), model(96, false, 3e-9), model(32, true, 9e-9)};
  const ShardedProblem s = problem(1024, 2, true, dense_pattern(1024));
  const auto ops = attends(ring_attention(s), 1);
  const CostModel cost(c, s);
  const double own = 2e-6 + 1024 * 1e-7 + 1024 * 2e-7, pairs = 512.0 * 513;
  EXPECT_NEAR(cost.attend(ops[0]).seconds, own + pairs * 9e-9, 1e-15);  // causal: held at d = 32
  EXPECT_NEAR(cost.attend(ops[1]).seconds, own + 2 * 512.0 * 512 * 2e-9, 1e-15);  // d = 64
}

TEST(AttendCounts, ARankAloneRunsAtTheSpeedOfOne) {
  ClusterSpec c = plain_cluster({.nodes = 1, .gpus_per_node = 3});
  c.device.attend_model = {model(64, false, 1e-9)};
  c.device.alone_speed = {1.5, "test"};
  std::vector<double> seconds;
  for (const int ranks : {3, 2, 1}) {
    const ShardedProblem s = problem(1536, ranks, false, dense_pattern(1536));
    const Attend op = attends(ring_attention(s), 0).front();
    const AttendCounts counts = count_attend(s, op, 2048);
    seconds.push_back(attend_seconds(c.device.attend_model[0], counts) /
                      CostModel(c, s).attend(op).seconds);
  }
  EXPECT_THAT(seconds,
              testing::ElementsAre(testing::DoubleNear(1, 1e-9), testing::DoubleNear(1.25, 1e-9),
                                   testing::DoubleNear(1.5, 1e-9)));
}

// A ring of two ranks: rank 1 attends to its own shard under the mask, to the other's without one.
TEST(CostModel, RowsOfTheOtherMaskAreAGuess) {
  const ShardedProblem s = problem(2048, 2, true, dense_pattern(2048));
  const auto guesses = [&](bool backward, double unmasked_rows) {  // 0: there are none
    ClusterSpec c = plain_cluster();
    for (KernelRow& row : c.device.attend)
      if (!row.causal) row.rows = unmasked_rows;
    std::erase_if(c.device.attend, [](const KernelRow& row) { return row.rows == 0; });
    const CostModel cost(c, s);
    std::vector<Guess> out;
    for (const Attend& op : attends(ring_attention(s), 1))
      out.push_back(cost.attend(op, {.backward = backward}).guess);
    return out;
  };
  for (const bool backward : {false, true}) {
    using enum Guess;
    EXPECT_THAT(guesses(backward, 1024), testing::ElementsAre(kNone, kNone));
    EXPECT_THAT(guesses(backward, 512), testing::ElementsAre(kNone, kLongerRows));
    EXPECT_THAT(guesses(backward, 4096), testing::ElementsAre(kNone, kOtherSize));
    EXPECT_THAT(guesses(backward, 0), testing::ElementsAre(kNone, kEstimate));
  }
}

TEST(CostModel, AnotherDevicesRowIsAGuess) {
  const ShardedProblem s = problem(1024, 1, false, dense_pattern(1024));
  const Attend op = attends(ring_attention(s), 0).front();
  ClusterSpec c = plain_cluster();
  const double seconds = CostModel(c, s).attend(op).seconds;
  EXPECT_EQ(CostModel(c, s).attend(op).guess, Guess::kNone);
  for (KernelRow& row : c.device.attend) row.estimate = true;
  EXPECT_EQ(CostModel(c, s).attend(op).guess, Guess::kEstimate);
  EXPECT_EQ(CostModel(c, s).attend(op).seconds, seconds);
  // Beyond the rows of a device, those of another decide where they are longer, not where shorter.
  for (const auto& [keys, guess] :
       {std::pair{512.0, Guess::kEstimate}, {64.0, Guess::kLongerRows}}) {
    c.device.attend.clear();
    for (const double rows : {128.0, 256.0, keys})
      c.device.attend.push_back({.rows = rows,
                                 .head_dim = 64,
                                 .dtype = s.problem.dtype,
                                 .flops_per_s = 1e12 + rows,
                                 .estimate = rows == keys,
                                 .source = "test"});
    EXPECT_EQ(CostModel(c, s).attend(op).guess, guess) << keys;
  }
}

// Seconds a pair of a whole attention of n tokens, without a mask and under one.
std::array<Price, 2> pair_prices(const ClusterSpec& c, int64_t n, int64_t head_dim, bool backward) {
  std::array<Price, 2> out;
  for (const bool causal : {false, true}) {
    ShardedProblem s = problem(n, 1, causal, dense_pattern(n));
    s.problem.head_dim = head_dim;
    s.problem.dtype = c.device.attend[0].dtype;
    const auto cost = CostModel(c, s).attend(attends(ring_attention(s), 0).front(), {backward});
    out[causal] = {cost.seconds / cost.pairs, cost.guess};
  }
  return out;
}

TEST(CostModel, AGuessWithoutAMaskCostsAtMostWhatAPairUnderOneCosts) {
  ClusterSpec c = plain_cluster();
  c.device.memory_bandwidth_bytes_per_s.value = 1e15;
  for (KernelRow& row : c.device.attend) row.flops_per_s = row.causal ? 2e14 : 1e14;
  for (const bool backward : {false, true}) {
    const double wanted = (backward ? 10 : 4) * 64 / 2e14;
    ClusterSpec known = c, guessed = c;
    for (KernelRow& row : guessed.device.attend) row.estimate = !row.causal;
    const auto [unmasked, masked] = pair_prices(known, 1024, 64, backward);
    EXPECT_NEAR(unmasked.seconds, 2 * wanted, 1e-3 * wanted);
    EXPECT_NEAR(masked.seconds, backward ? 2 * wanted : wanted, 1e-3 * wanted);
    EXPECT_EQ(std::max(unmasked.guess, masked.guess), Guess::kNone);
    const auto [guess, beside] = pair_prices(guessed, 1024, 64, backward);
    EXPECT_NEAR(guess.seconds, wanted, 1e-3 * wanted);
    EXPECT_NEAR(beside.seconds, wanted, 1e-3 * wanted);
    EXPECT_EQ(guess.guess, Guess::kEstimate);
    EXPECT_EQ(beside.guess, Guess::kNone);
  }
  std::erase_if(c.device.attend, &KernelRow::causal);  // nothing to hold a guess to
  const ShardedProblem s = problem(1 << 20, 1, false, dense_pattern(1 << 20));
  EXPECT_GT(CostModel(c, s).attend(attends(ring_attention(s), 0).front()).seconds, 0);
}

TEST(CostModel, NoGuessWithoutAMaskOfTheShippedClustersIsSlowerThanUnderOne) {
  for (const char* name : {"h200-ndr400", "gb200-nvl72"}) {
    ClusterSpec c = load_cluster(concat(LONGNET_SOURCE_DIR "/configs/clusters/", name, ".json"));
    c.device.kernel = "cudnn";
    c.device.launch_s = {};
    c.device.fill_rows = {};
    for (const int64_t head_dim : {64, 128, 192, 256})
      for (int64_t n = 512; n <= 1 << 18; n *= 2) {
        const auto [unmasked, masked] = pair_prices(c, n, head_dim, false);
        EXPECT_TRUE(unmasked.guess == Guess::kNone || unmasked.seconds <= 1.001 * masked.seconds)
            << name << " " << head_dim << " " << n;
      }
  }
}

// Rank 1 of four holds chunks 1 and 6 of eight. Its own step is under the mask; all its queries see
// the first of rank 0's chunks 0 and 7, its second half sees both of rank 2's chunks 2 and 5.
TEST(CostModel, LaterStepsOfAZigzagRingHaveNoMask) {
  ShardedProblem s = problem(8192, 4, true, dense_pattern(8192));
  s.layout = {8192, 4, LayoutKind::kZigzag};
  ClusterSpec c = plain_cluster();
  for (KernelRow& row : c.device.attend) row.flops_per_s = row.causal ? 1e14 : 2e14;
  std::vector<double> speeds;
  for (const Attend& op : attends(ring_attention(s), 1)) {
    const CostModel::AttendCost price = CostModel(c, s).attend(op);
    speeds.push_back(256 * price.pairs / price.seconds);
  }
  const auto near = [](double value) { return testing::DoubleNear(value, 1e11); };
  EXPECT_THAT(speeds, testing::ElementsAre(near(1e14), near(2e14), near(2e14), near(2e14)));
}

TEST(CostModel, AnSmHoldsSeveralBlocksUpToAHeadDim) {
  const ShardedProblem s = problem(4096, 1, false, dense_pattern(4096));
  const Attend op = attends(ring_attention(s), 0).front();
  ClusterSpec c = plain_cluster();
  const auto waves = [&] {
    return CostModel(c, s).attend(op).seconds / (256.0 * 8192 * 4096 / 1e14);
  };
  c.device.fill_rows = {8192 / 2.4, "test"};
  EXPECT_NEAR(waves(), 3 / 2.4, 1e-9);
  c.device.blocks_at_once[c.device.kernel] = {2, 64, "test"};
  EXPECT_NEAR(waves(), 2 / 1.2, 1e-9);
  c.device.blocks_at_once[c.device.kernel] = {2, 63, "test"};
  EXPECT_NEAR(waves(), 3 / 2.4, 1e-9);
  // Nor for a row of such a head_dim: it is as fast as it says in waves like its own.
  for (KernelRow& row : c.device.attend) row.all_rows = 8192;
  EXPECT_NEAR(waves(), 1, 1e-9);
}

TEST(CostModel, AModelHeldInHeadDimOrOfTheOtherMaskIsAGuess) {
  ClusterSpec c = plain_cluster();
  const auto is_guess = [&](int64_t head_dim, bool causal) {
    ShardedProblem s = problem(1024, 1, causal, dense_pattern(1024));
    s.problem.head_dim = head_dim;
    return CostModel(c, s).attend(attends(ring_attention(s), 0).front()).guess != Guess::kNone;
  };
  c.device.attend_model = {model(32, false, 1e-9), model(96, false, 1e-9), model(64, true, 1e-9)};
  EXPECT_FALSE(is_guess(32, false));
  EXPECT_FALSE(is_guess(64, false));
  EXPECT_TRUE(is_guess(128, false));
  EXPECT_FALSE(is_guess(64, true));
  EXPECT_TRUE(is_guess(96, true));
}

}  // namespace
}  // namespace longnet
