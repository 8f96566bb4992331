#include "execute/cuda/testing/device_case.h"

#include <gtest/gtest.h>

#include "comm/cuda/device_transport.h"
#include "comm/threads/thread_world.h"
#include "emulation/emulated_device.h"
#include "execute/cuda/device_executor.h"
#include "execute/gradient_check.h"
#include "execute/testing/executor_case.h"
#include "kernels/cuda/device_kernel.h"
#include "schedule/accounting.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"

namespace longnet {

ShardedProblem device_problem(const DeviceCase& c) {
  const AttentionProblem p{.seq_len = 211,
                           .num_heads = 4,
                           .num_kv_heads = 2,
                           .head_dim = 8,
                           .batch = 2,
                           .dtype = DType::kBFloat16,
                           .output_dtype = c.output_dtype,
                           .causal = c.causal};
  DilatedPattern pattern = dense_pattern(p.seq_len);
  const AlgorithmInfo& algorithm = find_algorithm(c.algorithm);
  if (algorithm.pattern == PatternKind::kDilated)
    pattern = {.branches = {{40, 1}, {100, 3}, {211, 7}}, .mix = c.mix};
  if (algorithm.pattern == PatternKind::kSparse) pattern = sparse_pattern(24, 5);
  return {.problem = p,
          .pattern = pattern,
          .layout = {p.seq_len, c.ranks, c.layout},
          .options = {.keep_gathered = c.keep_gathered}};
}

namespace {

// The CPU's kernels: as exact as on the host, but for an output that came in bf16.
void expect_gradients(const DeviceExecutor& executor, Communicator& comm) {
  const GradientCheck check(executor, choose_samples(executor.sharded(), 60), comm);
  const double tolerance = executor.program().output_is_partial() ? 2e-5 : 1e-2;
  for (const CheckOutcome& outcome : check.judge_together(check.compare(), comm, tolerance))
    EXPECT_TRUE(outcome.pass) << "gradients: rel_l2 " << outcome.rel_l2_error << " worst "
                              << outcome.max_rel_error;
  const Conservation laws = conservation(executor, comm);
  EXPECT_LE(std::max(laws.keys, laws.scores), 1e-6);
  EXPECT_LE(laws.values, executor.program().output_is_partial() ? 1e-6 : laws.values_tolerance);
  EXPECT_EQ(executor.count_nan(), 0);
}

}  // namespace

bool run_device_case(const DeviceCase& c) {
  const ShardedProblem s = device_problem(c);
  const AlgorithmInfo& algorithm = find_algorithm(c.algorithm);
  if (!why_no_program(algorithm, s, c.pass).empty()) return false;
  SCOPED_TRACE(testing::Message() << c.algorithm << " " << c.collective << " " << c.transport
                                  << " on " << c.ranks << " causal " << c.causal << " merges "
                                  << c.merges << " gather " << c.gather << " "
                                  << to_string(c.pass));
  const Schedule schedule =
      lower_collectives(make_schedule(algorithm, s, c.pass), parse_collective(c.collective));
  emulate_devices(c.devices);
  run_on_threads(c.ranks, [&](Communicator& comm) {
    use_device(device_of_rank(comm));
    auto kernel = make_emulated_kernel(c.merges);
    if (c.gather) kernel = make_gather_kernel(std::move(kernel));
    const auto transport = make_device_transport(c.transport, comm);
    MemoryLedger ledger;
    DeviceExecutor executor(schedule, comm.rank(), *kernel, transport.get(), {}, ledger);
    executor.fill_inputs();
    comm.barrier();
    executor.run();
    executor.run(RunMode::kSerialised);
    executor.run();
    EXPECT_EQ(executor.can_replay(), c.ranks == 1);
    if (executor.can_replay())  // nothing but the graphs wrote the output that is checked
      for (int i = 0; i < 2; ++i) {
        executor.fill_inputs();
        executor.replay();
      }
    const CheckOutcome outcome = check_samples(
        executor, choose_samples(executor.sharded(), kAllRows), comm, 1e-5 + 1.0 / 256, known_rows);
    EXPECT_TRUE(outcome.pass) << "rel_l2 " << outcome.rel_l2_error << " worst "
                              << outcome.max_rel_error << " lse " << outcome.max_lse_error
                              << " NaN " << outcome.nan_values;
    if (has_backward(c.pass)) expect_gradients(executor, comm);
    const bool rounded =
        !executor.program().output_is_partial() || c.output_dtype == DType::kBFloat16;
    EXPECT_LE(outcome.rel_l2_error, rounded ? 4e-3 : 1e-5);
    const RankAccount expected = account(executor.sharded(), executor.program(), comm.rank());
    EXPECT_EQ(transport->counters().bytes_sent, 3 * expected.bytes_sent);
    EXPECT_EQ(transport->counters().bytes_received, 3 * expected.bytes_received);
    EXPECT_EQ(transport->counters().messages_sent, 3 * expected.messages_sent);
    EXPECT_EQ(transport->counters().messages_received,
              3 * received_messages(executor.sharded(), executor.program(), comm.rank()));
    transport->close();
    comm.barrier();
  });
  emulate_devices(1);
  return true;
}

}  // namespace longnet
