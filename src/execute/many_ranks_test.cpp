// Every algorithm on 16, 32 and 64 ranks: bytes, messages and memory are those of closed forms. An
// executor's own lists stay small, and the ledger counts them: of all that operator new gives,
// little is left.
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

// What `runs` runs have moved, and what a rank's slots hold.
void expect_counts(const Case& c, const Communicator& comm, const MemoryLedger& ledger, int runs) {
  const auto form =
      closed_form_counts(c.algorithm, sharded(c), parse_collective(c.collective), comm.rank());
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

void run_bounded(const Case& c) {
  SCOPED_TRACE(describe(c));
  const Schedule schedule = schedule_of(c);
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
    expect_counts(c, comm, ledgers[size_t(comm.rank())], /*runs=*/3);
    const CheckOutcome outcome = check_samples(executor, choose_samples(sharded(c), 64), comm);
    EXPECT_TRUE(outcome.pass) << outcome.rel_l2_error;
  });
  limit_allocated_bytes(0);
  int64_t counted = 0;
  for (const MemoryLedger& ledger : ledgers) counted += ledger.peak_bytes(kProgramLists);
  EXPECT_LT(counted, c.ranks * kBytesPerRank);
  EXPECT_LT(bound_bytes - counted, c.ranks * kUncountedPerRank);
}

TEST(ManyRanks, EveryAlgorithmHoldsLittleBesideItsSlotsAndCountsIt) {
  int ran = 0;
  const std::vector<int> rank_counts = some_of<int>({16, 32, 64});
  for (const int ranks : rank_counts)
    for (const AlgorithmInfo& algorithm : algorithms()) {
      const Case c = case_of(algorithm, ranks);
      if (!algorithm.why_no_program(sharded(c)).empty()) continue;
      ++ran;
      run_bounded(c);
    }
  EXPECT_GE(ran, int(rank_counts.size()) * 8);
}

}  // namespace
}  // namespace longnet
