// Run under mpirun by the tests labelled mpi: checks the contract of the communicator, then real
// forward passes of every algorithm on odd shapes, with bytes and messages as predicted.
// `--break-rank-1` fails on purpose; `--resident-memory ring` compares the process's resident
// memory with the prediction.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "comm/host_transport.h"
#include "comm/testing/communicator_checks.h"
#include "comm/testing/late_communicator.h"
#include "core/check.h"
#include "execute/program_executor.h"
#include "execute/sample_check.h"
#include "execute/testing/allocation_counter.h"
#include "measure/resident_memory.h"
#include "run/measure_point.h"
#include "run/testing/points.h"
#include "schedule/accounting.h"
#include "schedule/check_schedule.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

std::vector<ShardedProblem> shapes(int ranks) {
  using P = AttentionProblem;
  std::vector<ShardedProblem> all;
  const auto add = [&](P problem, DilatedPattern pattern,
                       GatherScope scope = GatherScope::kSegmentGroup) {
    for (const bool causal : {false, true}) {
      problem.causal = causal;
      all.push_back({problem, pattern, {problem.seq_len, ranks}, scope});
    }
  };
  // Shards of 128 KiB and more: beyond what MPI sends before its receiver is ready.
  add(P{.seq_len = 1024, .num_heads = 4, .num_kv_heads = 4, .head_dim = 64},
      {.branches = {{128, 1}, {512, 4}, {1024, 8}}});
  add(P{.seq_len = 1003, .num_heads = 6, .num_kv_heads = 2, .head_dim = 48},
      {.branches = {{100, 1}, {333, 6}, {1003, 5}}});
  add(P{.seq_len = 1003,
        .num_heads = 3,
        .num_kv_heads = 3,
        .head_dim = 24,
        .dtype = DType::kBFloat16},
      {.branches = {{64, 3}, {1003, 40}}}, GatherScope::kWholeWorld);
  add(P{.seq_len = 3, .num_heads = 2, .num_kv_heads = 1, .head_dim = 8},
      {.branches = {{2, 1}, {3, 2}}});  // P > N
  add(P{.seq_len = 777, .num_heads = 2, .num_kv_heads = 2, .head_dim = 32, .batch = 3},
      {.branches = {{50, 1}, {777, 9}}, .mix = MixRule::kMean, .phase_parts = ranks});
  return all;
}

int check_forward(const AlgorithmInfo& algorithm, ShardedProblem s, const std::string& collective,
                  Communicator& comm) {
  if (algorithm.pattern == PatternKind::kDense) s.pattern = dense_pattern(s.problem.seq_len);
  if (algorithm.pattern == PatternKind::kSparse) s.pattern = sparse_pattern(30, 4);
  if (!algorithm.why_no_program(s).empty()) return 0;
  const Schedule schedule = lower_collectives(algorithm.make(s), parse_collective(collective));
  require_correct(schedule);
  const auto kernel = make_kernel("cpu");
  MemoryLedger ledger;
  ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
  executor.fill_inputs();
  comm.reset_counters();
  executor.run();
  const RankCounts expected = program_counts(executor.sharded(), executor.program(), comm.rank());
  const CommCounters& c = comm.counters();
  const RankCounts counted{c.bytes_sent, c.messages_sent, c.bytes_received, c.messages_received,
                           expected.memory_bytes};
  check(counted == expected, "counted and predicted differ: ", algorithm.name, ": ",
        to_text(counted), ", ", to_text(expected));
  executor.run();
  comm.barrier();
  const int64_t before = allocations_so_far();
  executor.run();
  check(allocations_so_far() == before, "a warm run allocates: ", algorithm.name, ' ', collective);
  const CheckOutcome outcome = check_samples(executor, choose_samples(s, 200), comm);
  check(outcome.pass, "wrong output: ", algorithm.name, " N=", s.problem.seq_len, " ", collective,
        ": relative error ", outcome.rel_l2_error, ", NaN ", outcome.nan_values);
  return 1;
}

// MPI itself takes a message that is shorter than its receive.
void check_short_message(Communicator& comm) {
  if (comm.rank() > 1) return;
  std::vector<std::byte> data(comm.rank() == 0 ? 8 : 16);
  const auto request = comm.rank() == 0 ? comm.isend(1, data) : comm.irecv(0, data);
  bool refused = false;
  try {
    comm.wait(request);
  } catch (const Error&) {
    refused = true;
  }
  check(refused == (comm.rank() == 1), "8 bytes were taken for 16");
}

// Checks one message and one gather of more bytes than an int counts.
void check_large_messages(Communicator& comm) {
  constexpr size_t kBytes = (size_t{1} << 31) + 12;
  constexpr size_t kSpots[] = {0, (size_t{1} << 30) - 1, size_t{1} << 30, size_t{1} << 31,
                               kBytes - 1};
  std::vector<std::byte> data(kBytes);
  if (comm.rank() == 0)
    for (const size_t spot : kSpots) data[spot] = std::byte(spot % 251 + 1);
  comm.wait(comm.rank() == 0 ? comm.isend(1, data) : comm.irecv(0, data));
  for (const size_t spot : kSpots)
    check(data[spot] == std::byte(spot % 251 + 1), "byte ", spot, " of a large message is wrong");
  const RankGroup both{.first = 0, .stride = 1, .count = 2};
  comm.open_group(both);
  const std::vector<int64_t> counts{int64_t(kBytes) - 8, 8};
  if (comm.rank() == 1) std::fill(data.begin(), data.end() - 8, std::byte{0});
  comm.wait(comm.iall_gather(both, data, counts));
  for (const size_t spot : {kSpots[1], kSpots[2], kSpots[3]})
    check(data[spot] == std::byte(spot % 251 + 1), "byte ", spot, " of a large gather is wrong");
}

// A program that no longer waits for its messages fails its point, though all its inputs stay.
void check_late_messages(Communicator& comm) {
  RunnerOptions options;
  options.measure = {.warmup = 1, .min_samples = 2, .max_samples = 2};
  options.ablations = false;
  for (const char* algorithm : {"ring", "dilated", "ulysses"}) {
    const PointPlan plan = small_plan(algorithm, comm.size(), 60 * comm.size());
    if (plan.point.status != PointStatus::kOk) continue;
    LateCommunicator late(comm, 1);
    const PointRecord bad = measure_point(plan, options, late);
    const PointRecord good = measure_point(plan, options, comm);
    if (comm.rank() != 0) continue;
    check(good.status == PointStatus::kOk, algorithm, ": ", good.reason);
    check(bad.status == PointStatus::kCheckFailed && bad.check.status == "fail", algorithm,
          " passes without waiting for its messages");
  }
}

// Memory of MPI itself: fragments and shared segments of the first messages, and pages of code.
// Less than the smallest buffer of the problem below, 8.4 MB, so that no buffer can be missed.
constexpr int64_t kResidentSlack = int64_t{6} << 20;

// Checks that the growth of the process's peak resident memory, from before the program is bound
// until it has run twice, is the predicted one: no buffer is missing in the ledger, none is never
// used. One algorithm per process, because a peak never falls.
void check_resident_memory(const AlgorithmInfo& algorithm, Communicator& comm) {
  const int64_t n = 512 * comm.size();
  ShardedProblem s{{.seq_len = n, .num_heads = 64, .num_kv_heads = 64, .head_dim = 64},
                   dense_pattern(n),
                   {n, comm.size()}};
  if (algorithm.pattern == PatternKind::kDilated) s.pattern.branches = {{512, 1}, {n, 2}};
  const Schedule schedule = lower_collectives(algorithm.make(s), {});
  const auto kernel = make_kernel("cpu");
  comm.barrier();
  const int64_t before = *resident_bytes();
  MemoryLedger ledger;
  ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
  executor.fill_inputs();
  executor.run();
  executor.run();
  const int64_t grown = *peak_resident_bytes() - before;
  const AttendOptions options{.head_dim = s.problem.head_dim, .dtype = s.problem.dtype};
  const int64_t predicted =
      account(executor.sharded(), executor.program(), comm.rank()).memory_bytes() +
      kernel->workspace_bytes(options, 1);
  check(predicted > 8 * kResidentSlack, "only ", predicted, " bytes: too few to tell");
  check(grown <= predicted + kResidentSlack, "resident memory of ", algorithm.name, " grew by ",
        grown, " bytes, predicted ", predicted);
  check(grown >= predicted - kResidentSlack, "resident memory of ", algorithm.name,
        " grew by only ", grown, " bytes, predicted ", predicted);
  std::printf("%s, rank %d: resident memory grew by %.1f MB, predicted %.1f MB\n",
              std::string(algorithm.name).c_str(), comm.rank(), double(grown) / 1e6,
              double(predicted) / 1e6);
}

void check_everything(Communicator& comm) {
  check_communicator(comm);
  check_short_message(comm);
  if (comm.size() == 2) check_large_messages(comm);
  check_late_messages(comm);
  int forwards = 0;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const ShardedProblem& s : shapes(comm.size()))
      forwards += check_forward(algorithm, s, "native", comm);
  for (const std::string& collective : collective_names())
    for (const AlgorithmInfo& algorithm : algorithms())
      if (algorithm.collectives != CollectiveUse::kNone)
        forwards += check_forward(algorithm, shapes(comm.size())[2], collective, comm);
  for (const LayoutKind layout : {LayoutKind::kZigzag, LayoutKind::kStriped})
    for (const AlgorithmInfo& algorithm : algorithms()) {
      ShardedProblem s = shapes(comm.size())[3];
      s.layout = SequenceLayout(s.problem.seq_len, comm.size(), layout);
      forwards += check_forward(algorithm, s, "native", comm);
    }
  check(forwards >= 20, "only ", forwards, " forward passes ran");
  if (comm.rank() == 0)
    std::printf("%d ranks: communicator and %d forward passes are right\n", comm.size(), forwards);
}

int run(int argc, char** argv) {
  const std::unique_ptr<RankProcesses> processes = mpi_transport().join();
  Communicator& comm = processes->communicator();
  const std::string_view mode = argc > 1 ? argv[1] : "";
  try {
    if (mode == "--break-rank-1") {
      check(comm.rank() != 1, "broken on purpose");
      comm.barrier();  // waits for rank 1, which has failed
    }
    if (mode == "--resident-memory" && argc > 2)
      check_resident_memory(find_algorithm(argv[2]), comm);
    else
      check_everything(comm);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", comm.rank(), e.what());
    std::_Exit(1);  // the launcher ends the others
  }
}

}  // namespace
}  // namespace longnet

int main(int argc, char** argv) { return longnet::run(argc, argv); }
