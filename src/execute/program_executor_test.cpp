// Real runs on ranks as threads: every algorithm, odd shapes, all options, 1..9 ranks, against the
// definition in double; and what each run counted against what was predicted.
#include "execute/program_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "execute/sample_check.h"
#include "execute/testing/allocation_counter.h"
#include "schedule/accounting.h"
#include "schedule/check_schedule.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

struct Case {
  std::string algorithm = "dilated";
  AttentionProblem problem = {};
  DilatedPattern pattern = {};
  int ranks = 1;
  GatherScope scope = GatherScope::kSegmentGroup;
  std::string kernel = "cpu";
  int64_t samples = 1 << 20;  // all
  LayoutKind layout = LayoutKind::kContiguous;
  std::string collective = "native";
  AlgorithmOptions options = {};
};

std::string describe(const Case& c) {
  return concat(c.algorithm, " N=", c.problem.seq_len, " H=", c.problem.num_heads, "/",
                c.problem.num_kv_heads, " d=", c.problem.head_dim, " ", to_string(c.problem.dtype),
                " causal=", c.problem.causal, " batch=", c.problem.batch, " P=", c.ranks,
                " scope=", int(c.scope), " mix=", to_string(c.pattern.mix),
                " offset=", to_string(c.pattern.offset), " phase=", c.pattern.phase_parts, " ",
                c.kernel);
}

ShardedProblem sharded(const Case& c) {
  DilatedPattern pattern = dense_pattern(c.problem.seq_len);
  if (find_algorithm(c.algorithm).pattern == PatternKind::kDilated) pattern = c.pattern;
  if (find_algorithm(c.algorithm).pattern == PatternKind::kSparse) pattern = sparse_pattern(24, 5);
  return {c.problem, pattern, {c.problem.seq_len, c.ranks, c.layout}, c.scope, c.options};
}

Schedule schedule_of(const Case& c) {
  return lower_collectives(find_algorithm(c.algorithm).make(sharded(c)),
                           parse_collective(c.collective));
}

CheckOutcome run_case(const Case& c) {
  const ShardedProblem s = sharded(c);
  const Schedule schedule = schedule_of(c);
  require_correct(schedule);
  const auto kernel = make_kernel(c.kernel);
  const auto samples = choose_samples(s, c.samples);
  CheckOutcome outcome;
  run_on_threads(c.ranks, [&](Communicator& comm) {
    MemoryLedger ledger;
    ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
    executor.fill_inputs();
    executor.run();  // twice: buffers of the first run must not matter
    comm.reset_counters();
    executor.run();
    // Some schedules refine the layout, so the executor's problem is the one to account for.
    const RankAccount expected = account(executor.sharded(), executor.program(), comm.rank());
    check(comm.counters().bytes_sent == expected.bytes_sent, "sent ", comm.counters().bytes_sent,
          " bytes, predicted ", expected.bytes_sent);
    check(comm.counters().bytes_received == expected.bytes_received, "received ",
          comm.counters().bytes_received, " bytes, predicted ", expected.bytes_received);
    check(comm.counters().messages_sent == expected.messages_sent, "sent ",
          comm.counters().messages_sent, " messages, predicted ", expected.messages_sent);
    const AttendOptions options{
        .head_dim = c.problem.head_dim, .dtype = c.problem.dtype, .causal = c.problem.causal};
    check(ledger.peak_bytes() == expected.memory_bytes() + kernel->workspace_bytes(options, 1),
          "holds ", ledger.peak_bytes(), " bytes, predicted ", expected.memory_bytes());
    const CheckOutcome mine = check_samples(executor, samples, comm);
    if (comm.rank() == 0) outcome = mine;
  });
  return outcome;
}

void expect_right(const Case& c) {
  const CheckOutcome o = run_case(c);
  EXPECT_TRUE(o.pass) << describe(c) << ": rel_l2 " << o.rel_l2_error << ", worst row "
                      << o.max_rel_error << ", LSE " << o.max_lse_error << ", NaN " << o.nan_values;
}

std::vector<std::pair<AttentionProblem, DilatedPattern>> shapes() {
  using P = AttentionProblem;
  return {
      // plain; N not divisible by w, P, r; an odd number of tokens
      {P{.seq_len = 128, .num_heads = 4, .num_kv_heads = 4, .head_dim = 16},
       {.branches = {{32, 1}, {64, 2}, {128, 4}}}},
      {P{.seq_len = 203, .num_heads = 3, .num_kv_heads = 3, .head_dim = 24},
       {.branches = {{40, 1}, {100, 3}, {203, 7}}}},
      // w not divisible by r, grouped queries, segments over a non-integer number of ranks
      {P{.seq_len = 190, .num_heads = 6, .num_kv_heads = 2, .head_dim = 48},
       {.branches = {{31, 1}, {77, 6}, {190, 5}}}},
      // r > w, r > H, r > tokens per rank; no branch covers every row
      {P{.seq_len = 80, .num_heads = 2, .num_kv_heads = 1, .head_dim = 8},
       {.branches = {{8, 16}, {80, 64}, {80, 3}}}},
      // P > N, a single token, w > N
      {P{.seq_len = 5, .num_heads = 5, .num_kv_heads = 1, .head_dim = 80},
       {.branches = {{2, 1}, {900, 2}}}},
      {P{.seq_len = 1, .num_heads = 2, .num_kv_heads = 2, .head_dim = 128},
       {.branches = {{1, 1}, {1, 2}}}},
      // the branch of rate 1 is the longest one; a batch
      {P{.seq_len = 96, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .batch = 2},
       {.branches = {{24, 2}, {96, 1}, {96, 3}}}},
      {P{.seq_len = 70, .num_heads = 2, .num_kv_heads = 2, .head_dim = 256},
       {.branches = {{16, 1}, {70, 4}}}},
  };
}

// ThreadSanitizer makes runs thirty times slower, and races do not need every number of ranks.
std::vector<int> some_of(const std::vector<int>& rank_counts) {
#if defined(__SANITIZE_THREAD__)
  return {rank_counts.front(), rank_counts[rank_counts.size() / 2]};
#else
  return rank_counts;
#endif
}
const std::vector<int> kOneToNine{1, 2, 3, 4, 5, 6, 7, 8, 9};

void expect_right_if_supported(const Case& c) {
  if (find_algorithm(c.algorithm).why_unsupported(sharded(c)).empty()) expect_right(c);
}

TEST(Executor, EveryShapeOnOneToNineRanks) {
  for (const auto& [problem, pattern] : shapes())
    for (const AlgorithmInfo& algorithm : algorithms())
      for (const int ranks : some_of(kOneToNine))
        for (const bool causal : {false, true}) {
          Case c{std::string(algorithm.name), problem, pattern, ranks};
          c.problem.causal = causal;
          expect_right_if_supported(c);
        }
}

TEST(Executor, EveryLayout) {
  for (const auto& [problem, pattern] : shapes())
    for (const AlgorithmInfo& algorithm : algorithms())
      for (const LayoutKind layout : {LayoutKind::kZigzag, LayoutKind::kStriped})
        for (const int ranks : some_of({2, 3, 5, 8})) {
          Case c{std::string(algorithm.name), problem, pattern, ranks};
          c.problem.causal = true;
          c.layout = layout;
          expect_right_if_supported(c);
        }
}

TEST(Executor, EveryCollective) {
  for (const auto& [problem, pattern] : shapes())
    for (const char* algorithm :
         {"dilated", "sparse", "all_gather", "ulysses", "usp", "query_gather"})
      for (const std::string& collective : collective_names())
        for (const int ranks : some_of({3, 4, 6})) {
          Case c{algorithm, problem, pattern, ranks};
          c.collective = collective;
          expect_right_if_supported(c);
        }
}

TEST(Executor, EveryDegree) {
  for (const int ranks : {4, 6, 8})
    for (const int degree : {1, 2, 3, 4, 6, 8})
      for (const LayoutKind layout : {LayoutKind::kContiguous, LayoutKind::kZigzag})
        for (const char* algorithm : {"usp", "double_ring", "all_gather"}) {
          Case c{
              algorithm,
              {.seq_len = 150, .num_heads = 6, .num_kv_heads = 3, .head_dim = 16, .causal = true},
              {},
              ranks};
          c.layout = layout;
          c.options = {.ulysses_degree = degree, .ring_inner = degree, .head_slice = degree};
          expect_right_if_supported(c);
        }
}

TEST(Executor, EveryOptionOfTheMixture) {
  for (const auto& [problem, pattern] : shapes())
    for (const int ranks : some_of(kOneToNine))
      for (const MixRule mix : {MixRule::kLse, MixRule::kMean, MixRule::kSum})
        for (const OffsetRule offset : {OffsetRule::kPaper, OffsetRule::kBlock, OffsetRule::kNone})
          for (const bool shard_phase : {false, true})
            for (const GatherScope scope : {GatherScope::kSegmentGroup, GatherScope::kWholeWorld}) {
              Case c{"dilated", problem, pattern, ranks, scope};
              c.pattern.mix = mix;
              c.pattern.offset = offset;
              c.pattern.phase_parts = shard_phase ? ranks : 1;
              c.problem.causal = (ranks + int(mix)) % 2 == 0;
              expect_right(c);
            }
}

TEST(Executor, Bf16StorageAndTheReferenceKernel) {
  for (const auto& [problem, pattern] : shapes())
    for (const char* kernel : {"cpu", "reference"})
      for (const AlgorithmInfo& algorithm : algorithms())
        for (const int ranks : {1, 3}) {
          Case c{std::string(algorithm.name), problem, pattern, ranks,
                 GatherScope::kSegmentGroup,  kernel};
          c.problem.dtype = DType::kBFloat16;
          expect_right_if_supported(c);
        }
}

// The traps of other implementations, on the fast path; sample_check_test has them on the
// definition.
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

TEST(Executor, LongQueriesAreCutIntoTasks) {
  expect_right({"ring", {.seq_len = 5000, .num_heads = 1, .causal = true}, {}, 1, {}, "cpu", 40});
  expect_right(
      {"dilated", {.seq_len = 9000}, {.branches = {{2048, 1}, {9000, 3}}}, 2, {}, "cpu", 40});
}

TEST(Executor,
     PresetLm32kAtReducedLength) {  // 16384 / 6 rows: a segment that the rate does not divide
  expect_right(
      {"dilated",
       {.seq_len = 20000, .num_heads = 12, .num_kv_heads = 12, .head_dim = 16, .causal = true},
       {.branches = {{2048, 1}, {4096, 2}, {8192, 4}, {16384, 6}, {20000, 12}}},
       3,
       {},
       "cpu",
       30});
}

TEST(Executor, ResultsDoNotDependOnTheNumberOfRanks) {
  const AttentionProblem problem{
      .seq_len = 301, .num_heads = 3, .num_kv_heads = 3, .head_dim = 32, .causal = true};
  const DilatedPattern pattern{.branches = {{50, 1}, {301, 4}}};
  for (const AlgorithmInfo& algorithm : algorithms()) {
    std::vector<float> one;
    for (int ranks = 1; ranks <= 9; ++ranks) {
      std::vector<float> out(301 * 3 * 32);
      const Case c{std::string(algorithm.name), problem, pattern, ranks};
      if (!algorithm.why_unsupported(sharded(c)).empty()) continue;
      const Schedule schedule = schedule_of(c);
      const auto kernel = make_kernel("cpu");
      run_on_threads(ranks, [&](Communicator& comm) {
        MemoryLedger ledger;
        ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
        executor.fill_inputs();
        executor.run();
        for (const TokenRange& range : executor.shard())
          for (int64_t i = 0; i < range.count; ++i)
            for (int64_t h = 0; h < 3; ++h) {
              const auto row = executor.bound().output_row(0, h, range[i]);
              std::copy(row.begin(), row.end(), out.begin() + (range[i] * 3 + h) * 32);
            }
      });
      if (one.empty()) one = out;
      double difference = 0, norm = 0;
      for (size_t i = 0; i < out.size(); ++i)
        difference += std::pow(double(out[i]) - one[i], 2), norm += std::pow(double(one[i]), 2);
      EXPECT_LE(std::sqrt(difference / norm), 1e-6) << algorithm.name << " P=" << ranks;
    }
  }
}

TEST(Executor, AllocatesNothingOnceWarm) {
  for (const AlgorithmInfo& algorithm : algorithms()) {
    const Case c{std::string(algorithm.name),
                 {.seq_len = 600, .num_heads = 4, .num_kv_heads = 4, .head_dim = 16},
                 {.branches = {{100, 2}, {600, 4}}},
                 algorithm.name == "local" ? 1 : 4};
    const Schedule schedule = schedule_of(c);
    const auto kernel = make_kernel("cpu");
    run_on_threads(c.ranks, [&](Communicator& comm) {
      MemoryLedger ledger;
      ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
      executor.fill_inputs();
      for (int i = 0; i < 3; ++i) executor.run();
      comm.barrier();
      const int64_t before = allocations_so_far();
      comm.barrier();
      executor.run();
      comm.barrier();
      const int64_t during = allocations_so_far() - before;
      comm.barrier();
      EXPECT_EQ(during, 0) << algorithm.name;
    });
  }
}

TEST(Executor, CommunicationAloneKeepsTheOrderOfItsBuffers) {
  // The reduce-scatter of query_gather receives into one scratch slot again and again, with merges
  // between.
  Case c;
  c.algorithm = "query_gather";
  c.problem = {.seq_len = 800, .num_heads = 2, .num_kv_heads = 2};
  c.ranks = 4;
  const Schedule schedule = schedule_of(c);
  const auto kernel = make_kernel("cpu");
  run_on_threads(4, [&](Communicator& comm) {
    MemoryLedger ledger;
    ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
    executor.fill_inputs();
    executor.run(RunMode::kCommunicationOnly);
    double free_at = 0;
    for (size_t i = 0; i < executor.program().ops.size(); ++i)
      if (std::holds_alternative<Recv>(executor.program().ops[i].what)) {
        EXPECT_GE(executor.op_times()[i].begin_s, free_at);
        free_at = executor.op_times()[i].end_s;
      }
  });
}

TEST(Executor, OneBigAttendOfACausalProgramTakesItsTime) {  // not that of the masked pairs too
  Case c;
  c.algorithm = "local";
  c.problem = {.seq_len = 4096, .causal = true};
  const Schedule schedule = schedule_of(c);
  const auto kernel = make_kernel("cpu");
  run_on_threads(1, [&](Communicator& comm) {
    MemoryLedger ledger;
    ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
    executor.fill_inputs();
    std::vector<double> ratios;
    for (int i = 0; i < 9; ++i) {
      executor.run();
      ratios.push_back(executor.phases().compute_s / executor.time_single_attend());
    }
    std::sort(ratios.begin(), ratios.end());
    EXPECT_GT(ratios[4], 0.6);  // 0.5 when masked pairs count
    EXPECT_LT(ratios[4], 5);
  });
}

TEST(Executor, AblationsRunOnlyTheirPart) {
  const Case c{"ring", {.seq_len = 400, .num_heads = 2, .num_kv_heads = 2}, {}, 2};
  const Schedule schedule = ring_attention(sharded(c));
  const auto kernel = make_kernel("cpu");
  run_on_threads(2, [&](Communicator& comm) {
    MemoryLedger ledger;
    ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
    executor.fill_inputs();
    executor.run(RunMode::kComputeOnly);
    EXPECT_EQ(comm.counters().bytes_sent, 0);
    EXPECT_GT(executor.phases().compute_s, 0);
    executor.run(RunMode::kCommunicationOnly);
    EXPECT_GT(comm.counters().bytes_sent, 0);
    EXPECT_EQ(executor.phases().compute_s + executor.phases().merge_s, 0);
    executor.run();
    EXPECT_GT(executor.phases().merge_s, 0);
  });
}

}  // namespace
}  // namespace longnet
