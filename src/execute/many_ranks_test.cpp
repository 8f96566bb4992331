// Every algorithm on 16, 32 and 64 ranks, with its backward pass on 16: bytes, messages and memory
// are those of closed forms. An executor's own lists stay small, and the ledger counts them: of all
// that operator new gives, little is left.
#include "execute/gradient_check.h"
#include "execute/testing/allocation_counter.h"
#include "execute/testing/executor_case.h"
#include "schedule/closed_form_counts.h"

namespace longnet {
namespace {

constexpr int64_t kBytesPerRank = int64_t{2} << 20, kUncountedPerRank = int64_t{1} << 19;

// Small shards, so that slots are small beside the programs.
Case case_of(const AlgorithmInfo& algorithm, int ranks) {
  return {std::string(algorithm.name),
          {.seq_len = 8 * ranks, .num_heads = ranks, .num_kv_heads = ranks, .head_dim = 8},
          {.branches = {{32, 1}, {8 * ranks, 4}}},
          ranks};
}

// Expects the traffic of `runs` runs and the memory of a rank's slots as in the closed form.
void expect_counts(const Case& c, Pass pass, const Communicator& comm, const MemoryLedger& ledger,
                   int runs) {
  const auto form = closed_form_counts(c.algorithm, sharded(c), parse_collective(c.collective),
                                       comm.rank(), pass);
  ASSERT_TRUE(form);
  const CommCounters& counted = comm.counters();
  EXPECT_EQ(counted.bytes_sent, runs * form->bytes_sent);
  EXPECT_EQ(counted.messages_sent, runs * form->messages_sent);
  EXPECT_EQ(counted.bytes_received, runs * form->bytes_received);
  EXPECT_EQ(counted.messages_received, runs * form->messages_received);
  EXPECT_EQ(
      ledger.peak_bytes() - ledger.peak_bytes(kProgramLists) - ledger.peak_bytes(kWorkspaceTag),
      form->memory_bytes);
}

void run_bounded(const Case& c, Pass pass) {
  SCOPED_TRACE(concat(describe(c), " ", to_string(pass)));
  const Schedule schedule = lower_collectives(
      make_schedule(find_algorithm(c.algorithm), sharded(c), pass), parse_collective(c.collective));
  const auto kernel = make_kernel("cpu");
  std::vector<MemoryLedger> ledgers(size_t(c.ranks));
  std::atomic<int64_t> bound_bytes = 0;
  const int64_t before = allocated_bytes();
  limit_allocated_bytes(before + c.ranks * 4 * kBytesPerRank);
  run_on_threads(c.ranks, [&](Communicator& comm) {
    ProgramExecutor executor(schedule, *kernel, 1, comm, ledgers[size_t(comm.rank())]);
    executor.fill_inputs();
    comm.resting_barrier();
    if (comm.rank() == 0) bound_bytes = allocated_bytes() - before;
    executor.run();
    executor.run(RunMode::kCommunicationOnly);
    executor.run();
    expect_counts(c, pass, comm, ledgers[size_t(comm.rank())], /*runs=*/3);
    const std::vector<QuerySample> queries = choose_samples(sharded(c), 64);
    const CheckOutcome outcome = check_samples(executor, queries, comm);
    EXPECT_TRUE(outcome.pass) << outcome.rel_l2_error;
    if (!has_backward(pass)) return;
    const GradientCheck gradients(executor, queries, comm);
    for (const CheckOutcome& g : gradients.judge_together(gradients.compare(), comm, 0))
      EXPECT_TRUE(g.pass) << g.rel_l2_error;
  });
  limit_allocated_bytes(0);
  int64_t counted = 0;
  for (const MemoryLedger& ledger : ledgers) counted += ledger.peak_bytes(kProgramLists);
  EXPECT_LT(counted, c.ranks * kBytesPerRank);
  EXPECT_LT(bound_bytes - counted, c.ranks * kUncountedPerRank);
}

TEST(ManyRanks, EveryAlgorithmHoldsLittleBesideItsSlotsAndCountsIt) {
  for (const int ranks : some_of<int>({16, 32, 64}))
    for (const AlgorithmInfo& algorithm : algorithms()) {
      const Case c = case_of(algorithm, ranks);
      EXPECT_EQ(algorithm.why_no_program(sharded(c)).empty(), !algorithm.one_rank_only);
      if (algorithm.one_rank_only) continue;  // local: the others have ranks to talk to
      run_bounded(c, Pass::kForward);
      if (ranks == 16) run_bounded(c, Pass::kForwardBackward);
    }
}

}  // namespace
}  // namespace longnet
