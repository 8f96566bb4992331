// gpu_check: whole programs, ranks as threads; virtual ranks; refusals.
#include <algorithm>
#include <new>

#include "comm/cuda/device_transport.h"
#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "execute/cuda/device_executor.h"
#include "execute/gradient_check.h"
#include "execute/tolerances.h"
#include "gpu/check.h"
#include "gpu/support.h"
#include "kernels/cuda/device_kernel.h"
#include "schedule/accounting.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"

namespace longnet::gpu {
namespace {

// Compared with the reference per program, which costs a second for ten thousand; NaN is looked for
// in every row.
constexpr int64_t kQueries = 2000, kGradients = 60;

struct ProgramCase {
  std::string algorithm, kernel, transport, collective = "native";
  AttentionProblem problem;
  DilatedPattern pattern;
  int ranks = 1;
  LayoutKind layout = LayoutKind::kContiguous;
  Pass pass = Pass::kForward;
};

std::string to_string(const ProgramCase& c) {
  return concat(c.algorithm, " ", c.collective, " ", c.kernel, " ", c.transport, " on ", c.ranks,
                " ranks, N ", c.problem.seq_len, " causal ", c.problem.causal, " ",
                longnet::to_string(c.layout), " ", longnet::to_string(c.pass));
}

// Empty when the gradients of the last run are right.
std::string why_gradients_wrong(const Executor& executor, Communicator& comm, double& error) {
  const GradientCheck check(executor, choose_samples(executor.sharded(), kGradients), comm);
  const auto outcomes = check.judge_together(check.compare(), comm, 0);
  const Conservation laws = conservation(executor, comm);
  std::string why;
  for (const CheckOutcome& one : outcomes) {
    error = std::max(error, one.rel_l2_error);
    if (!one.pass)
      why += concat(" gradients: rel_l2 ", one.rel_l2_error, ", worst row ", one.max_rel_error);
  }
  if (!laws.hold()) why += concat(" laws: ", laws.keys, " ", laws.scores, " ", laws.values);
  return why;
}

void run_program_case(const ProgramCase& c, Outcome& out) {
  const ShardedProblem s{c.problem, c.pattern, {c.problem.seq_len, c.ranks, c.layout}};
  const AlgorithmInfo& algorithm = find_algorithm(c.algorithm);
  if (!why_no_program(algorithm, s, c.pass).empty()) return;
  const Schedule schedule =
      lower_collectives(make_schedule(algorithm, s, c.pass), parse_collective(c.collective));
  note_work(to_string(c));
  std::string failure;
  double error = 0;
  try {
    run_on_threads(c.ranks, [&](Communicator& comm) {
      use_device(device_of_rank(comm));
      const auto kernel = make_device_kernel(c.kernel);
      const auto transport = make_device_transport(c.transport, comm);
      MemoryLedger ledger;
      DeviceExecutor executor(schedule, comm.rank(), *kernel, transport.get(), {}, ledger);
      executor.fill_inputs();
      comm.barrier();
      for (int i = 0; i < 2; ++i) executor.run();
      const CheckOutcome result = check_samples(executor, choose_samples(s, kQueries), comm);
      // ulysses and usp may lay the tokens out in another way than they were asked to.
      const ShardedProblem& laid_out = schedule.sharded;
      const RankAccount expected = account(laid_out, executor.program(), comm.rank());
      const CommCounters& counted = transport->counters();
      const bool bytes = counted.bytes_sent == 2 * expected.bytes_sent &&
                         counted.bytes_received == 2 * expected.bytes_received &&
                         counted.messages_sent == 2 * expected.messages_sent &&
                         counted.messages_received ==
                             2 * received_messages(laid_out, executor.program(), comm.rank());
      const double wrong_bytes = comm.sum_of(bytes ? 0.0 : 1.0);
      double gradient_error = 0;
      const std::string gradients =
          has_backward(c.pass) ? why_gradients_wrong(executor, comm, gradient_error) : "";
      if (comm.rank() != 0) return;
      error = std::max(result.rel_l2_error, gradient_error);
      if (!result.pass)
        failure = concat("rel_l2 ", result.rel_l2_error, ", worst row ", result.max_rel_error,
                         ", lse ", result.max_lse_error, ", NaN ", result.nan_values);
      if (wrong_bytes > 0) failure += " counted bytes differ from the predicted";
      failure += gradients;
    });
  } catch (const std::exception& e) {
    failure = e.what();
  }
  out.worst = std::max(out.worst, error);
  out.expect(failure.empty(), to_string(c) + ": " + failure);
}

// An algorithm by `kernel` on ranks that share devices.
ProgramCase case_of(const AlgorithmInfo& algorithm, bool small, const char* kernel, int ranks) {
  // Small: two tiles of rows a rank, the second in part, and fewer heads; attend has more of both.
  const int64_t n = small ? 180 : 1000, kv_heads = small ? 2 : 3;
  return {.algorithm = std::string(algorithm.name),
          .kernel = kernel,
          .transport = "cuda_ipc",
          .problem = {.seq_len = n,
                      .num_heads = 2 * kv_heads,
                      .num_kv_heads = kv_heads,
                      .head_dim = 64,
                      .batch = small ? 1 : 2,  // device_tests have batches, too
                      .dtype = DType::kBFloat16},
          .pattern = algorithm.pattern == PatternKind::kDense ? dense_pattern(n)
                     : algorithm.pattern == PatternKind::kSparse
                         ? sparse_pattern(n / 9, 5)
                         : DilatedPattern{.branches = {{n / 5, 1}, {n / 2, 3}, {n, 7}}},
          .ranks = ranks};
}
ProgramCase dilated_case(bool small, const char* kernel, int ranks) {
  return case_of(find_algorithm("dilated"), small, kernel, ranks);
}

void check_registered_buffer(Outcome& out) {
  std::string failure;
  try {
    run_on_threads(1, [](Communicator& comm) {
      use_device(device_of_rank(comm));
      const auto transport = make_device_transport("nccl_registered", comm);
      MemoryLedger ledger;
      const DeviceBuffer buffer(ledger, "kv", 4 << 20);
      const std::span<std::byte> bytes(buffer.data(), size_t(buffer.size()));
      transport->open({&bytes, 1});
      transport->close();
    });
  } catch (const std::exception& e) {
    failure = e.what();
  }
  out.expect(failure.empty(), "registering a buffer: " + failure);
}

}  // namespace

void check_programs(Outcome& out, bool small) {
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const bool causal : {false, true})
      for (const int ranks : {1, 2, 3, 4}) {
        if (small && ranks > 2) continue;
        ProgramCase c = case_of(algorithm, small, "cuda", ranks);
        c.problem.causal = causal;
        run_program_case(c, out);
        if (ranks != 2 && ranks != 3) continue;
        if (!small) {  // how a transport slows kernels shows at their real speed alone
          c.transport = "mpi_host";
          run_program_case(c, out);
          c.transport = "cuda_ipc";
        }
        c.layout = LayoutKind::kZigzag;
        if (!small || causal) run_program_case(c, out);
      }
  for (const char* kernel : {"cudnn", "gather"})
    for (const int ranks : {1, 3})
      if (why_device_kernel_absent(kernel).empty())
        run_program_case(dilated_case(small, kernel, ranks), out);
  ProgramCase mean = dilated_case(small, "cuda", 2);
  mean.pattern.mix = MixRule::kMean;
  run_program_case(mean, out);
  mean.problem.output_dtype = DType::kBFloat16;  // merges of their own
  run_program_case(mean, out);
  mean.pattern.mix = MixRule::kLse;
  run_program_case(mean, out);
  if (!why_nccl_absent().empty()) return;
  ProgramCase nccl = dilated_case(small, "cuda", 1);
  nccl.transport = "nccl";
  run_program_case(nccl, out);
  check_registered_buffer(out);
}

// Both passes as one program.
void check_programs_backward(Outcome& out, bool small) {
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const int ranks : {1, 2, 3}) {
      const bool ring = algorithm.name == "ring", dilated = algorithm.name == "dilated";
      if (small && (ranks != 2 || !(ring || dilated))) continue;
      ProgramCase c = case_of(algorithm, small, "cuda", ranks);
      c.pass = Pass::kForwardBackward;
      c.problem.causal = ranks != 1;
      if (ring) c.layout = LayoutKind::kZigzag;
      if (dilated && ranks == 1) c.pattern.mix = MixRule::kMean;
      run_program_case(c, out);
    }
}

void check_programs_sm90a(Outcome& out, bool small) {
  for (const bool causal : {false, true})
    for (const int ranks : {1, 2, 3}) {
      if (small && (ranks == 3 || causal != (ranks == 2))) continue;
      ProgramCase c = dilated_case(small, "cuda_sm90a", ranks);
      c.problem.causal = causal;
      if (ranks == 2) c.pass = Pass::kForwardBackward;
      run_program_case(c, out);
      c.pass = Pass::kForward;  // outputs of 16 bits have no other
      c.problem.output_dtype = DType::kBFloat16;
      if (!small || causal) run_program_case(c, out);
    }
}

// One device in the place of four ranks: the same rows as four real ones.
void check_virtual(Outcome& out, bool small) {
  const int64_t n = small ? 300 : 4000;
  const AttentionProblem p{.seq_len = n,
                           .num_heads = 6,
                           .num_kv_heads = 6,
                           .head_dim = 64,
                           .batch = 1,
                           .dtype = DType::kBFloat16};
  for (const char* name : {"dilated", "ring", "all_gather"}) {
    ShardedProblem s{p, dense_pattern(n), {n, 4}};
    if (std::string_view(name) == "dilated")
      s.pattern = {.branches = {{200, 1}, {1000, 4}, {n, 8}}};
    const Schedule schedule = find_algorithm(name).make(s);
    SampleErrors errors;
    int64_t nan = 0;
    for (Rank r = 0; r < 4; ++r) {
      MemoryLedger ledger;
      const auto kernel = make_cuda_kernel();
      DeviceExecutor executor(schedule, r, *kernel, nullptr, {.virtual_ranks = true}, ledger);
      executor.fill_inputs();
      executor.run();
      errors.add(executor.compare(expected_rows(executor.bound(), p, choose_samples(s, 2000))));
      nan += executor.count_nan();
    }
    const CheckOutcome result =
        judge(errors, nan, s, {kRoundedPowersTolerance, kRoundedPowersLseTolerance});
    out.worst = std::max(out.worst, result.rel_l2_error);
    out.expect(result.pass && errors.queries > 0,
               concat(name, " on 4 virtual ranks: rel_l2 ", result.rel_l2_error, ", NaN ", nan));
  }
}

// Checks that invalid requests are refused with a reason and leave the device usable.
void check_refusals(Outcome& out, bool) {
  MemoryLedger ledger;
  try {
    const DeviceBuffer much(ledger, "kv", int64_t{1} << 45);
    out.expect(false, "an allocation of 32 TiB succeeded");
  } catch (const std::bad_alloc& e) {
    out.expect(std::string(e.what()).find("are free") != std::string::npos, e.what());
  }
  out.expect(ledger.peak_bytes() == 0, "a refused allocation was booked");
  const DeviceBuffer little(ledger, "kv", 1 << 20);
  out.expect(ledger.peak_bytes() == 1 << 20, "an allocation after it was not booked");
  if (why_nccl_absent().empty() && describe_devices().devices.size() == 1) {
    std::string reason;
    try {
      run_on_threads(2, [](Communicator& comm) {
        use_device(device_of_rank(comm));
        make_device_transport("nccl", comm);
      });
    } catch (const std::exception& e) {
      reason = e.what();
    }
    out.expect(reason.find("share a GPU") != std::string::npos, "nccl with 2 ranks: " + reason);
  }
}

}  // namespace longnet::gpu
