// A share of a walk stands for the whole, and keeps all threads at work.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "execute/testing/walk_case.h"
#include "execute/virtual_walk.h"
#include "schedule/accounting.h"

namespace longnet {
namespace {

// A share runs about so many pairs, spread over ring steps and query blocks, receives only what
// these need, and scales to the whole.
TEST(VirtualWalk, AShareStandsForTheWhole) {
  WalkCase c{.algorithm = "ring",
             .problem = {.seq_len = 8192, .num_heads = 4, .num_kv_heads = 4, .head_dim = 8}};
  for (const auto& [causal, pass, algorithm, ranks] : {std::tuple{false, Pass::kForward, "ring", 8},
                                                       {true, Pass::kForward, "ring", 8},
                                                       {true, Pass::kForward, "all_gather", 2},
                                                       {false, Pass::kBackward, "ring", 8},
                                                       {true, Pass::kForwardBackward, "ring", 8},
                                                       {false, Pass::kForwardBackward, "ring", 8},
                                                       {false, Pass::kBackward, "all_gather", 2}}) {
    c.algorithm = algorithm;
    c.problem.causal = causal;
    MemoryLedger ledger;
    const auto make = [&](int64_t batches) { return backward_schedule(c, ranks, batches, pass); };
    const auto kernel = std::make_shared<WatchedKernel>();
    const auto walk = make_virtual_walk(c.problem, make, kernel, 1, ledger);
    const Rank last = ranks - 1;
    const Schedule schedule = make(1);
    const RankProgram program = schedule.program(last);
    const RankAccount all = account(schedule.sharded, program, last);
    const auto merges = std::ranges::count_if(
        program.ops, [](const Op& op) { return std::holds_alternative<Merge>(op.what); });
    for (const double share : {0.25, 0.5, 1.0}) {
      kernel->pairs = kernel->backward_pairs = 0;
      const UnitOutcome out = walk->run_share({last, 0, 1}, share);
      EXPECT_TRUE(causal || (kernel->pairs == out.share.pairs.run &&
                             kernel->backward_pairs == out.share.backward_pairs.run));
      const auto& [forward, backward, of_merges] = out.share;
      EXPECT_EQ(forward.all, has_forward(pass) ? all.pairs : 0) << algorithm;
      EXPECT_EQ(backward.all, has_backward(pass) ? all.pairs : 0) << algorithm;
      for (const WalkShare::Part& part : {forward, backward})
        EXPECT_NEAR(part.run, share * part.all, (causal ? 0.15 : 0.02) * all.pairs)
            << algorithm << " share " << share << " causal " << causal;
      EXPECT_NEAR(out.share.flops_share(), share, causal ? 0.15 : 0.02);
      EXPECT_EQ(of_merges.all, merges);
      EXPECT_TRUE(out.heads.empty() && !out.gradients);
      EXPECT_EQ(out.times.attend_backward_s > 0, has_backward(pass));
      EXPECT_EQ(out.times.output_s, 0);
      if (share == 1.0 && pass == Pass::kForward) {  // no attend reads the last sums of gradients
        EXPECT_EQ(out.received_bytes, all.bytes_received);
      } else if (ranks == 8 && share < 1) {
        EXPECT_LT(out.received_bytes, 0.7 * double(all.bytes_received));
        EXPECT_GT(out.received_bytes, 0);
      }
    }
    auto predicted = walk_memory(schedule, {last}, /*in_part=*/true);
    predicted[kWorkspaceTag] = make_kernel("cpu")->workspace_bytes(
        {.head_dim = 8}, 1, has_backward(pass) ? Pass::kForwardBackward : pass);
    EXPECT_EQ(ledger.peak_by_tag(), predicted) << algorithm;
  }
  const WalkShare share{.pairs = {25, 100}, .backward_pairs = {10, 100}, .merges = {1, 3}};
  WalkTimes times;
  times.attend_s = 2, times.attend_backward_s = 3, times.merge_s = 0.5, times.pack_s = 0.25;
  EXPECT_DOUBLE_EQ(times.pass_s(share), 8 + 30 + 1.5 + 0.25);
  EXPECT_DOUBLE_EQ(share.flops_share(), (25 + 2.5 * 10) / 350);
  EXPECT_DOUBLE_EQ(times.pass_s({}), 5.75);
}

TEST(VirtualWalk, AShareKeepsAllThreadsBusy) {  // idle threads would count as slow tasks
  const WalkCase c{.problem = {.seq_len = 12 * 64, .head_dim = 8},
                   .pattern = {.branches = {{64, 1}}}};  // 12 tasks
  for (const int threads : {1, 2, 3}) {
    MemoryLedger ledger;
    const auto walk = make_virtual_walk(
        c.problem, [&](int64_t batches) { return schedule_of(c, 1, batches); }, make_kernel("cpu"),
        threads, ledger);
    for (const double share : {1.0 / 12, 3.0 / 12, 0.5}) {
      const UnitOutcome out = walk->run_share({0, 0, 1}, share);
      const double tasks = 12 * c.problem.num_heads * out.share.pairs.run / out.share.pairs.all;
      EXPECT_EQ(std::fmod(tasks, threads), 0) << threads << " threads, share " << share;
      EXPECT_GE(tasks, 1);
    }
  }
}

// Grids of a backward pass run one after another: a piece has rows of all heads, and more of them
// for more threads.
TEST(VirtualWalk, AShareOfABackwardPassKeepsAllThreadsBusy) {
  const WalkCase c{.algorithm = "ring",
                   .problem = {.seq_len = 4096, .num_heads = 2, .head_dim = 8}};
  for (const auto& [threads, expected] : {std::pair{2, 0.25}, {3, 0.5}}) {
    MemoryLedger ledger;
    const auto kernel = std::make_shared<WatchedKernel>();
    const auto walk = make_virtual_walk(
        c.problem,
        [&](int64_t batches) { return backward_schedule(c, 1, batches, Pass::kBackward); }, kernel,
        threads, ledger);
    const WalkShare::Part pairs = walk->run_share({0, 0, 1}, 0.25).share.backward_pairs;
    EXPECT_EQ(pairs.run, expected * pairs.all) << threads;
    EXPECT_EQ(kernel->backward_pairs, pairs.run) << threads;
  }
}

}  // namespace
}  // namespace longnet
