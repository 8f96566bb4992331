// Real runs on ranks as threads: every algorithm, odd shapes, all options, 1..9 ranks, against the
// definition in double; and what each run counted against what was predicted.
#include "execute/program_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "comm/threads/thread_world.h"
#include "core/testing/test_support.h"
#include "execute/testing/allocation_counter.h"
#include "execute/testing/executor_case.h"

namespace longnet {
namespace {

const std::vector<int> kOneToNine{1, 2, 3, 4, 5, 6, 7, 8, 9};

TEST(Executor, EveryShapeOnOneToNineRanks) {
  CasesRun ran;
  for (const auto& [problem, pattern] : shapes())
    for (const AlgorithmInfo& algorithm : algorithms())
      for (const int ranks : some_of(kOneToNine))
        for (const bool causal : {false, true}) {
          Case c{std::string(algorithm.name), problem, pattern, ranks};
          c.problem.causal = causal;
          ran.add(c.algorithm, expect_right_if_supported(c));
        }
  ran.expect_some_of_each();
}

TEST(Executor, EveryLayout) {
  CasesRun ran;
  for (const auto& [problem, pattern] : shapes())
    for (const AlgorithmInfo& algorithm : algorithms())
      for (const LayoutKind layout : {LayoutKind::kZigzag, LayoutKind::kStriped})
        for (const int ranks : some_of<int>({2, 3, 5, 8})) {
          Case c{std::string(algorithm.name), problem, pattern, ranks};
          c.problem.causal = true;
          c.layout = layout;
          const bool right = expect_right_if_supported(c);
          // The others take no such layout at all, or one rank.
          const bool exchanges = algorithm.collectives == CollectiveUse::kAllToAll;
          if (algorithm.pattern == PatternKind::kDense && !algorithm.one_rank_only &&
              !(exchanges && layout == LayoutKind::kStriped))
            ran.add(concat(c.algorithm, " ", to_string(layout)), right);
        }
  ran.expect_some_of_each();
}

// Every lowering that changes the algorithm's programs, and the native collectives.
TEST(Executor, EveryCollective) {
  CasesRun ran;
  for (const auto& [problem, pattern] : shapes())
    for (const AlgorithmInfo& algorithm : algorithms())
      for (const std::string& collective : collectives_of(algorithm))
        for (const int ranks : some_of<int>({3, 4, 6}))
          for (const bool causal : {false, true}) {  // with the layout that balances a mask
            if (algorithm.collectives == CollectiveUse::kNone) continue;
            Case c{std::string(algorithm.name), problem, pattern, ranks};
            c.collective = collective;
            c.problem.causal = causal;
            const bool dense = algorithm.pattern == PatternKind::kDense;
            c.layout = causal && dense ? LayoutKind::kZigzag : LayoutKind::kContiguous;
            ran.add(concat(algorithm.name, " ", collective, causal ? " causal" : ""),
                    expect_right_if_supported(c));
          }
  ran.expect_some_of_each();
}

TEST(Executor, EveryDegree) {
  CasesRun ran;
  for (const int ranks : {4, 6, 8})
    for (const int degree : {1, 2, 3, 4, 6, 8})
      for (const LayoutKind layout : {LayoutKind::kContiguous, LayoutKind::kZigzag})
        for (const AlgorithmInfo& algorithm : algorithms())
          for (const int64_t n : {150, 5})  // 5: ranks without tokens
            for (const int64_t kv_heads : {3, 1}) {
              const bool dense = algorithm.pattern == PatternKind::kDense;
              if (!dense || !algorithm.effective_options) continue;
              Case c{std::string(algorithm.name),
                     {.seq_len = n,
                      .num_heads = 6,
                      .num_kv_heads = kv_heads,
                      .head_dim = 16,
                      .causal = true},
                     {},
                     ranks};
              c.layout = layout;
              c.options = {.ulysses_degree = degree, .ring_inner = degree, .head_slice = degree};
              const bool right = expect_right_if_supported(c);
              if (ranks % degree == 0 && degree <= c.problem.num_heads)
                ran.add(concat(describe(c), " degree ", degree), right);
            }
  ran.expect_some_of_each();
}

TEST(Executor, EveryOptionOfTheMixture) {
  for (const auto& [problem, pattern] : shapes())
    for (const int ranks : some_of(kOneToNine))
      for (const MixRule mix : some_of<MixRule>({MixRule::kLse, MixRule::kMean, MixRule::kSum}))
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

void expect_bf16_right(const std::string& kernel) {
  CasesRun ran;
  for (const auto& [problem, pattern] : shapes())
    for (const AlgorithmInfo& algorithm : algorithms())
      for (const int ranks : {1, 3}) {
        Case c{std::string(algorithm.name), problem, pattern, ranks,
               GatherScope::kSegmentGroup,  kernel};
        c.problem.dtype = DType::kBFloat16;
        ran.add(c.algorithm, expect_right_if_supported(c));
      }
  ran.expect_some_of_each();
}

TEST(Executor, Bf16Storage) { expect_bf16_right("cpu"); }
TEST(Executor, Bf16StorageAndTheReferenceKernel) { expect_bf16_right("reference"); }

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
  CasesRun ran;
  for (const AlgorithmInfo& algorithm : algorithms()) {
    std::vector<float> one;
    for (int ranks = 1; ranks <= 9; ++ranks) {
      std::vector<float> out(301 * 3 * 32);
      const Case c{std::string(algorithm.name), problem, pattern, ranks};
      const bool runs = algorithm.why_no_program(sharded(c)).empty();
      if (!algorithm.one_rank_only || ranks == 1)  // on one rank: nothing to compare
        ran.add(concat(algorithm.name, ranks == 1 ? " alone" : " on several"), runs);
      if (!runs) continue;
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
              const auto row = output_row(executor.bound(), 0, h, range[i]);
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
  ran.expect_some_of_each();
}

void expect_no_allocation_once_warm(const Schedule& schedule, int ranks, int threads,
                                    const std::string& what) {
  const auto kernel = make_kernel("cpu");
  run_on_threads(ranks, [&](Communicator& comm) {
    MemoryLedger ledger;
    ProgramExecutor executor(schedule, *kernel, threads, comm, ledger);
    EXPECT_EQ(allocations_once_warm(executor, comm), 0) << what << " threads " << threads;
  });
}

TEST(Executor, AllocatesNothingOnceWarm) {
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kForwardBackward}) {
      Case c{std::string(algorithm.name),
             {.seq_len = 600, .num_heads = 4, .num_kv_heads = 4, .head_dim = 16},
             {.branches = {{100, 2}, {600, 4}}},
             algorithm.one_rank_only ? 1 : 4};
      c.options.keep_gathered = pass == Pass::kBackward;
      ASSERT_EQ(why_no_program(algorithm, sharded(c), pass), "");
      const Schedule schedule = lower_collectives(make_schedule(algorithm, sharded(c), pass),
                                                  parse_collective(c.collective));
      for (const int threads : {1, 2})
        expect_no_allocation_once_warm(schedule, c.ranks, threads,
                                       concat(c.algorithm, ' ', to_string(pass)));
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

TEST(Executor, OneBigAttendOfACausalProgramHasItsPairs) {  // not the masked ones too
  Case c;
  c.algorithm = "local";
  c.problem = {.seq_len = 4096, .causal = true};
  const Schedule schedule = schedule_of(c);
  const auto kernel = make_kernel("cpu");
  run_on_threads(1, [&](Communicator& comm) {
    MemoryLedger ledger;
    ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
    executor.fill_inputs();
    const SingleAttend single = *executor.single_attend();
    EXPECT_GE(single.listed_pairs, single.pairs);
    EXPECT_LE(single.listed_pairs, single.pairs * 1.01);
  });
}

// Not only between attends: one attend of a long sequence takes seconds.
TEST(Executor, MessagesMoveWhileAnAttendGoesOn) {
  const Case c{"ring", {.seq_len = 4096, .num_heads = 1, .num_kv_heads = 1}, {}, 2};
  const Schedule schedule = schedule_of(c);
  const auto kernel = make_kernel("cpu");
  bool moved = false;
  for (int tries = 0; tries < 20 && !moved; ++tries)  // the other rank may be late
    run_on_threads(2, [&](Communicator& comm) {
      MemoryLedger ledger;
      ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
      executor.fill_inputs();
      comm.barrier();
      executor.run();
      const auto& ops = executor.program().ops;
      const auto times = executor.op_times();
      const auto first = [&](auto wanted) {
        size_t i = 0;
        while (!wanted(ops[i].what)) ++i;
        return times[i].end_s;
      };
      const double received = first([](const auto& o) { return std::holds_alternative<Recv>(o); });
      const double attended =
          first([](const auto& o) { return std::holds_alternative<Attend>(o); });
      if (comm.rank() == 0) moved = received < attended;
    });
  EXPECT_TRUE(moved);
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
    executor.run(RunMode::kSerialised);  // no transfer is under way while anything computes
    const auto& ops = executor.program().ops;
    const auto times = executor.op_times();
    for (size_t i = 0; i < ops.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (!is_communication(ops[i].what) && is_communication(ops[j].what)) {
          EXPECT_LE(times[j].end_s, times[i].begin_s) << j << " " << i;
        }
    executor.run();
    EXPECT_GT(executor.phases().merge_s, 0);
  });
}

}  // namespace
}  // namespace longnet
