// Streams, events, transports and fused merges of the device executor on an emulated device, every
// algorithm. What a real device computes is gpu_check's business.
#include "execute/cuda/device_executor.h"

#include <gtest/gtest.h>

#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "execute/cuda/device_walk.h"
#include "execute/cuda/testing/emulated_device.h"
#include "execute/virtual_walk.h"
#include "kernels/cuda/gather_kernel.h"
#include "kernels/cuda/rows.h"
#include "schedule/accounting.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

// The CPU's kernel behind the device's interface.
class EmulatedKernel final : public DeviceKernel {
 public:
  explicit EmulatedKernel(bool merges) : merges_(merges) {}
  std::string_view name() const override { return "emulated"; }
  bool merges() const override { return merges_; }
  std::string why_unsupported(const DeviceAttendOptions&) const override { return ""; }
  std::unique_ptr<PreparedAttend> prepare(std::span<const AttendTask> tasks,
                                          const DeviceAttendOptions& options,
                                          MemoryLedger&) const override {
    return std::make_unique<Prepared>(tasks, options);
  }

 private:
  class Prepared final : public PreparedAttend {
   public:
    Prepared(std::span<const AttendTask> tasks, const DeviceAttendOptions& options)
        : tasks_(tasks.begin(), tasks.end()), options_(options) {
      for (const AttendTask& task : tasks_) lists_.emplace_back(task.kv.begin(), task.kv.end());
      for (size_t i = 0; i < tasks_.size(); ++i) tasks_[i].kv = lists_[i];
    }
    void launch(const Stream& stream) const override {
      emulate_launch(stream, [this] {
        for (const AttendTask& task : tasks_) run(task);
      });
    }

   private:
    void run(AttendTask task) const {
      const auto kernel = make_kernel("cpu");
      const AttendOptions options{.head_dim = options_.head_dim,
                                  .dtype = DType::kBFloat16,
                                  .causal = options_.causal,
                                  .output_scale = options_.output_scale};
      MemoryLedger ledger;
      const TaggedBuffer workspace(ledger, "workspace", kernel->workspace_bytes(options, 1));
      std::vector<float> o(size_t(task.q.rows * options_.head_dim)), lse(size_t(task.q.rows));
      const MergeTask merge{.from = {o.data(), lse.data(), options_.head_dim, 1},
                            .into = task.out,
                            .rows = task.q.rows};
      if (options_.merge) task.out = merge.from;
      kernel->attend({&task, 1}, options, 1, workspace.bytes());
      if (options_.merge) kernel->merge({&merge, 1}, MergeRule::kLse, options, 1);
    }
    std::vector<AttendTask> tasks_;
    std::vector<std::vector<KvRun>> lists_;
    DeviceAttendOptions options_;
  };
  bool merges_;
};

struct Case {
  std::string algorithm, transport = "cuda_ipc", collective = "native";
  int ranks = 1;
  bool causal = false, merges = true, gather = false;
  LayoutKind layout = LayoutKind::kContiguous;
  MixRule mix = MixRule::kLse;
};

ShardedProblem problem_of(const Case& c) {
  const AttentionProblem p{.seq_len = 211,
                           .num_heads = 4,
                           .num_kv_heads = 2,
                           .head_dim = 8,
                           .batch = 2,
                           .dtype = DType::kBFloat16,
                           .causal = c.causal};
  DilatedPattern pattern = dense_pattern(p.seq_len);
  const AlgorithmInfo& algorithm = find_algorithm(c.algorithm);
  if (algorithm.pattern == PatternKind::kDilated)
    pattern = {.branches = {{40, 1}, {100, 3}, {211, 7}}, .mix = c.mix};
  if (algorithm.pattern == PatternKind::kSparse) pattern = sparse_pattern(24, 5);
  return {p, pattern, {p.seq_len, c.ranks, c.layout}};
}

// Three runs in a row, all rows checked, bytes counted.
bool run_case(const Case& c) {
  const ShardedProblem s = problem_of(c);
  const AlgorithmInfo& algorithm = find_algorithm(c.algorithm);
  if (!algorithm.why_unsupported(s).empty()) return false;
  SCOPED_TRACE(testing::Message() << c.algorithm << " " << c.collective << " " << c.transport
                                  << " on " << c.ranks << " causal " << c.causal << " merges "
                                  << c.merges << " gather " << c.gather);
  const Schedule schedule = lower_collectives(algorithm.make(s), parse_collective(c.collective));
  run_on_threads(c.ranks, [&](Communicator& comm) {
    std::unique_ptr<DeviceKernel> kernel = std::make_unique<EmulatedKernel>(c.merges);
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
    const CheckOutcome outcome =
        executor.check_samples(choose_samples(executor.sharded(), 1 << 20), comm, 1e-5 + 1.0 / 256);
    EXPECT_TRUE(outcome.pass) << "rel_l2 " << outcome.rel_l2_error << " worst "
                              << outcome.max_rel_error << " lse " << outcome.max_lse_error
                              << " NaN " << outcome.nan_values;
    EXPECT_LE(outcome.rel_l2_error, executor.program().output_is_partial() ? 1e-5 : 4e-3);
    const RankAccount expected = account(s, executor.program(), comm.rank());
    EXPECT_EQ(transport->counters().bytes_sent, 3 * expected.bytes_sent);
    EXPECT_EQ(transport->counters().bytes_received, 3 * expected.bytes_received);
    EXPECT_EQ(transport->counters().messages_sent, 3 * expected.messages_sent);
    comm.barrier();
  });
  return true;
}

TEST(DeviceExecutorTest, EveryAlgorithmOnEveryTransport) {
  int ran = 0;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const char* transport : {"cuda_ipc", "mpi_host"})
      for (const int ranks : {1, 2, 3, 4})
        for (const bool causal : {false, true})
          ran += run_case({.algorithm = std::string(algorithm.name),
                           .transport = transport,
                           .ranks = ranks,
                           .causal = causal});
  EXPECT_GT(ran, 100);
}

TEST(DeviceExecutorTest, LayoutsCollectivesMixesAndKernels) {
  for (const char* name : {"ring", "all_gather", "double_ring"})
    for (const LayoutKind layout : {LayoutKind::kZigzag, LayoutKind::kStriped})
      run_case({.algorithm = name, .ranks = 4, .causal = true, .layout = layout});
  for (const char* collective : {"ring", "bruck", "recursive_doubling"})
    EXPECT_TRUE(run_case({.algorithm = "dilated", .collective = collective, .ranks = 4}));
  for (const MixRule mix : {MixRule::kMean, MixRule::kSum})
    EXPECT_TRUE(run_case({.algorithm = "dilated", .ranks = 3, .mix = mix}));
  EXPECT_TRUE(run_case({.algorithm = "dilated", .ranks = 3, .merges = false}));
  EXPECT_TRUE(run_case({.algorithm = "dilated", .ranks = 3, .causal = true, .gather = true}));
}

TEST(DeviceExecutorTest, OneDeviceInThePlaceOfFiveRanks) {
  for (const char* name : {"dilated", "ring", "all_gather", "sparse"}) {
    const Case c{.algorithm = name, .ranks = 5};
    const ShardedProblem s = problem_of(c);
    const Schedule schedule = find_algorithm(name).make(s);
    const EmulatedKernel kernel(true);
    SampleErrors errors;
    int64_t nan_values = 0;
    for (Rank rank = 0; rank < 5; ++rank) {
      MemoryLedger ledger;
      DeviceExecutor executor(schedule, rank, kernel, nullptr, {.virtual_ranks = true}, ledger);
      executor.fill_inputs();
      executor.run();
      errors.add(executor.compare(s.problem, choose_samples(s, 1 << 20)));
      nan_values += executor.count_nan();
    }
    EXPECT_EQ(errors.queries, s.problem.batch * s.problem.seq_len * s.problem.num_heads);
    EXPECT_TRUE(judge(errors, nan_values, s, {.rel_l2 = 1e-5}).pass) << name;
  }
}

// A walk on a device leaves what a walk on the CPU leaves, whole or in part.
TEST(DeviceWalkTest, LeavesWhatAWalkOnTheCpuLeaves) {
  for (const char* name : {"dilated", "ring", "all_gather"}) {
    const ShardedProblem s = problem_of({.algorithm = name, .ranks = 5});
    const auto schedule_for = [&](int64_t batches) {
      ShardedProblem part = s;
      part.problem.batch = batches;
      return find_algorithm(name).make(part);
    };
    const EmulatedKernel kernel(true);
    const auto host_kernel = make_kernel("cpu");
    const auto worker = make_cpu_row_worker();
    MemoryLedger device_ledger, host_ledger;
    DeviceWalk on_device(s.problem, schedule_for, kernel, *worker, device_ledger);
    VirtualWalk on_host(s.problem, schedule_for, *host_kernel, *worker, 1, host_ledger);
    for (const WalkUnit unit : {WalkUnit{0, 0, 2}, WalkUnit{3, 1, 1}, WalkUnit{4, 0, 1}}) {
      const auto samples =
          choose_shard_samples(s, unit.rank, unit.first_batch, unit.batches, {}, 20);
      const ShardOutcome got = on_device.run(unit, samples), want = on_host.run(unit, samples);
      SCOPED_TRACE(testing::Message() << name << " rank " << unit.rank);
      EXPECT_EQ(got.input_digest, want.input_digest);
      EXPECT_EQ(got.received_bytes, want.received_bytes);
      EXPECT_EQ(got.errors.queries, want.errors.queries);
      EXPECT_TRUE(judge(got.errors, 0, s, {.rel_l2 = 1e-5}).pass);
      ASSERT_EQ(got.heads.size(), want.heads.size());
      for (size_t h = 0; h < got.heads.size(); ++h) {
        EXPECT_EQ(got.heads[h].rows, want.heads[h].rows);
        EXPECT_EQ(got.heads[h].absent_rows, want.heads[h].absent_rows);
        EXPECT_EQ(got.heads[h].nan_values, 0);
        EXPECT_NEAR(got.heads[h].sum, want.heads[h].sum, 1e-4);
        EXPECT_NEAR(got.heads[h].lse_sum, want.heads[h].lse_sum, 1e-3);
      }
    }
    const ShardOutcome part = on_device.run_share({3, 0, 2}, 0.4);
    const ShardOutcome same = on_host.run_share({3, 0, 2}, 0.4);
    EXPECT_EQ(part.share.all_pairs, same.share.all_pairs) << name;
    EXPECT_GE(part.share.pairs, same.share.pairs) << name;  // rounds of more tasks at once
    EXPECT_GT(part.share.pairs, 0);
    EXPECT_EQ(part.received_bytes, same.received_bytes) << name;
    EXPECT_TRUE(part.heads.empty());
  }
}

TEST(DeviceTransportTest, WhatDoesNotFitIsSaid) {
  std::string reason;
  try {
    run_on_threads(2, [](Communicator& comm) { make_device_transport("nccl", comm); });
  } catch (const std::exception& e) {
    reason = e.what();
  }
  EXPECT_NE(reason.find("hint: "), std::string::npos) << reason;
  run_on_threads(2, [](Communicator& comm) {
    EXPECT_EQ(make_device_transport("auto", comm)->name(), "cuda_ipc");
    EXPECT_THROW(make_device_transport("pigeons", comm), UsageError);
  });
}

}  // namespace
}  // namespace longnet
