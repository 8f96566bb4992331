// Streams, events, transports and fused merges of the device executor on an emulated device, every
// algorithm. gpu_check tests what a real device computes.
#include "execute/cuda/device_executor.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <set>

#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "emulation/emulated_device.h"
#include "execute/cuda/testing/device_case.h"
#include "execute/gradient_check.h"
#include "execute/virtual_walk.h"
#include "kernels/cuda/backward_plan.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

TEST(DeviceExecutorTest, EveryAlgorithmOnEveryTransport) {
  int ran = 0;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const char* transport : {"cuda_ipc", "mpi_host"})
      for (const int ranks : {1, 2, 3, 4})
        for (const bool causal : {false, true})
          ran += run_device_case({.algorithm = std::string(algorithm.name),
                                  .transport = transport,
                                  .ranks = ranks,
                                  .causal = causal});
  EXPECT_GT(ran, 100);
}

TEST(DeviceExecutorTest, LayoutsCollectivesMixesAndKernels) {
  int ran = 0;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const LayoutKind layout : {LayoutKind::kZigzag, LayoutKind::kStriped})
      ran += run_device_case(
          {.algorithm = std::string(algorithm.name), .ranks = 4, .causal = true, .layout = layout});
  EXPECT_GE(ran, 6);
  for (const char* collective : {"ring", "bruck", "recursive_doubling"})
    EXPECT_TRUE(run_device_case({.algorithm = "dilated", .collective = collective, .ranks = 4}));
  for (const MixRule mix : {MixRule::kMean, MixRule::kSum})
    EXPECT_TRUE(run_device_case({.algorithm = "dilated", .ranks = 3, .mix = mix}));
  EXPECT_TRUE(run_device_case({.algorithm = "dilated", .ranks = 3, .merges = false}));
  EXPECT_TRUE(
      run_device_case({.algorithm = "dilated", .ranks = 3, .causal = true, .gather = true}));
}

// O of 16 bits, merged by attends, by merges of their own, in exact attention and in mixtures.
TEST(DeviceExecutorTest, OutputsOf16Bits) {
  int ran = 0;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const int ranks : {1, 2, 4})
      for (const bool merges : {true, false})
        ran += run_device_case({.algorithm = std::string(algorithm.name),
                                .ranks = ranks,
                                .causal = ranks == 2,
                                .merges = merges,
                                .output_dtype = DType::kBFloat16});
  EXPECT_GT(ran, 20);
  EXPECT_TRUE(run_device_case({.algorithm = "dilated",
                               .ranks = 3,
                               .mix = MixRule::kMean,
                               .output_dtype = DType::kBFloat16}));
  EXPECT_FALSE(
      run_device_case({.algorithm = "ulysses", .ranks = 2, .output_dtype = DType::kBFloat16}));
}

// The rows of a walk in part, whose merges run by themselves, and what they need.
TEST(DeviceExecutorTest, OutputsOf16BitsTakeHalfOfTheMemory) {
  std::map<DType, int64_t> bytes;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const ShardedProblem s =
        device_problem({.algorithm = "dilated", .ranks = 4, .output_dtype = dtype});
    const Schedule schedule = find_algorithm("dilated").make(s);
    const auto kernel = make_emulated_kernel(true);
    MemoryLedger ledger;
    DeviceExecutor executor(schedule, 1, *kernel, nullptr, {.virtual_ranks = true}, ledger);
    const auto held = ledger.peak_by_tag();
    bytes[dtype] = held.at("output");
    for (const auto& [tag, predicted] : executor.program().memory_by_tag())
      EXPECT_EQ(held.at(tag), predicted) << tag;
  }
  const int64_t lse =
      4 * 2 * 4 * device_problem({.algorithm = "dilated", .ranks = 4}).layout.shard(1).tokens();
  EXPECT_EQ(2 * (bytes[DType::kBFloat16] - lse), bytes[DType::kFloat32] - lse);
}

// A kernel that keeps its first result in its scratch memory, and gives that ever after.
class StaleKernel final : public DeviceKernel {
 public:
  bool merges() const override { return false; }
  Prepared prepare(std::span<const AttendGrid> grids, const DeviceAttendOptions& options,
                   MemoryLedger& ledger) const override {
    Prepared work = make_emulated_kernel(false)->prepare(grids, options, ledger);
    for (const AttendGrid& grid : grids) {
      const int64_t bytes = grid.task.q.rows * options.head_dim * int64_t{sizeof(float)};
      std::byte* const kept = work.workspace(bytes, ledger);
      work.then([=, o = grid.task.out.o, first = true](const Stream& stream) mutable {
        std::exchange(first, false) ? stream.copy(kept, o, bytes) : stream.copy(o, kept, bytes);
      });
    }
    return work;
  }
};

TEST(DeviceExecutorTest, PoisonReachesTheKernelsOwnMemory) {
  const AttentionProblem p{
      .seq_len = 64, .num_heads = 1, .num_kv_heads = 1, .head_dim = 8, .dtype = DType::kBFloat16};
  const Schedule local = find_algorithm("local").make({p, dense_pattern(64), {64, 1}});
  const StaleKernel kernel;
  MemoryLedger ledger;
  DeviceExecutor executor(local, 0, kernel, nullptr, {}, ledger);
  executor.fill_inputs();
  for (int i = 0; i < 2; ++i) {
    executor.run();
    EXPECT_EQ(executor.count_nan(), 0);
  }
  executor.poison(*make_cpu_row_worker());
  executor.run();
  EXPECT_EQ(executor.count_nan(), 64 * 8);
}

// Merges that attends take in have no time of their own.
TEST(DeviceExecutorTest, TimesMergesThatRunByThemselves) {
  const Schedule ring =
      find_algorithm("ring").make(device_problem({.algorithm = "ring", .ranks = 2}));
  for (const bool merges : {true, false}) {
    const auto kernel = make_emulated_kernel(merges);
    MemoryLedger ledger;
    DeviceExecutor executor(ring, 0, *kernel, nullptr, {.virtual_ranks = true}, ledger);
    executor.fill_inputs();
    executor.run();
    EXPECT_EQ(executor.times_merges(), !merges);
    EXPECT_EQ(executor.phases().merge_s > 0, !merges);
  }
}

TEST(DeviceExecutorTest, BothPassesOfEveryAlgorithm) {
  int ran = 0;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const int ranks : {1, 3, 4})
      ran += run_device_case({.algorithm = std::string(algorithm.name),
                              .transport = ranks == 3 ? "mpi_host" : "cuda_ipc",
                              .ranks = ranks,
                              .causal = true,
                              .pass = Pass::kForwardBackward});
  EXPECT_GT(ran, 15);
  EXPECT_TRUE(run_device_case({.algorithm = "ring",
                               .ranks = 4,
                               .causal = true,
                               .layout = LayoutKind::kZigzag,
                               .pass = Pass::kForwardBackward}));
  for (const MixRule mix : {MixRule::kMean, MixRule::kSum, MixRule::kLseDetached})
    EXPECT_TRUE(run_device_case(
        {.algorithm = "dilated", .ranks = 2, .mix = mix, .pass = Pass::kForwardBackward}));
  EXPECT_TRUE(run_device_case({.algorithm = "dilated",
                               .ranks = 3,
                               .causal = true,
                               .pass = Pass::kForwardBackward,
                               .keep_gathered = true}));
}

// Counts the rows of dQ, dK and dV that the blocks of a backward attend write; each once.
int64_t rows_written_once(const BoundOp& op, bool causal, int64_t head_dim) {
  std::set<const float*> rows;
  int64_t count = 0;
  const auto add = [&](const float* first, int64_t stride, int64_t of) {
    for (int64_t i = 0; i < of; ++i, ++count) {
      const auto at = rows.insert(first + i * stride).first;
      const bool apart = (at == rows.begin() || *std::prev(at) + head_dim <= *at) &&
                         (std::next(at) == rows.end() || *at + head_dim <= *std::next(at));
      check(apart, "two rows overlap");
    }
  };
  const BackwardPlan plan = plan_backward(op.backwards, causal, 64);
  for (const BackwardRows& task : plan.tasks) add(task.grad_q, task.stride, task.rows);
  for (const KeyGroup& group : plan.groups) {
    const BackwardRun& run = plan.runs[size_t(plan.sources[size_t(group.first_source)].run)];
    for (const float* const first : {run.grad_k, run.grad_v})
      add(first, run.stride, run.limit.rows);
  }
  EXPECT_EQ(std::ssize(rows), count);
  return count;
}

// Blocks run in any order and all at once: no row may belong to two of them.
TEST(DeviceExecutorTest, NoTwoBlocksWriteARowOfGradients) {
  int64_t rows = 0;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const LayoutKind layout :
         {LayoutKind::kContiguous, LayoutKind::kZigzag, LayoutKind::kStriped})
      for (const int ranks : {1, 3, 4}) {
        const ShardedProblem s = device_problem({.algorithm = std::string(algorithm.name),
                                                 .ranks = ranks,
                                                 .causal = true,
                                                 .layout = layout});
        if (!why_no_program(algorithm, s, Pass::kBackward).empty()) continue;
        SCOPED_TRACE(testing::Message()
                     << algorithm.name << " " << to_string(layout) << " " << ranks);
        const Schedule schedule =
            lower_collectives(algorithm.make(s, Pass::kBackward), parse_collective("native"));
        RankProgram program = schedule.program(ranks - 1);
        std::vector<std::vector<std::byte>> slots;
        BoundProgram::Memory memory;
        for (const Slot& slot : program.slots)
          memory.emplace_back(slots.emplace_back(size_t(slot.bytes)));
        const BoundProgram bound(schedule, std::move(program), {.rank = ranks - 1}, memory);
        for (size_t i = 0; i < bound.program().ops.size(); ++i)
          if (!bound.op(i).backwards.empty())
            rows += rows_written_once(bound.op(i), true, s.problem.head_dim);
      }
  EXPECT_GT(rows, 10000);
}

TEST(DeviceExecutorTest, OneDeviceInThePlaceOfFiveRanks) {
  for (const char* name : {"dilated", "ring", "all_gather", "sparse"}) {
    const DeviceCase c{.algorithm = name, .ranks = 5};
    const ShardedProblem s = device_problem(c);
    const Schedule schedule = find_algorithm(name).make(s);
    const auto kernel = make_emulated_kernel(true);
    SampleErrors errors;
    int64_t nan_values = 0;
    for (Rank rank = 0; rank < 5; ++rank) {
      MemoryLedger ledger;
      DeviceExecutor executor(schedule, rank, *kernel, nullptr, {.virtual_ranks = true}, ledger);
      executor.fill_inputs();
      executor.run();
      errors.add(
          executor.compare(expected_rows(executor.bound(), s.problem, choose_samples(s, 1 << 20))));
      nan_values += executor.count_nan();
    }
    EXPECT_EQ(errors.queries, s.problem.batch * s.problem.seq_len * s.problem.num_heads);
    EXPECT_TRUE(judge(errors, nan_values, s, {.rel_l2 = 1e-5}).pass) << name;
  }
}

// A walk on a device leaves what a walk on the CPU leaves, whole or in part.
TEST(DeviceWalkTest, LeavesWhatAWalkOnTheCpuLeaves) {
  for (const char* name : {"dilated", "ring", "all_gather"}) {
    const ShardedProblem s = device_problem({.algorithm = name, .ranks = 5});
    const auto schedule_for = [&](int64_t batches) {
      ShardedProblem part = s;
      part.problem.batch = batches;
      return find_algorithm(name).make(part);
    };
    MemoryLedger device_ledger, host_ledger;
    const auto on_device = make_device_walk(s.problem, schedule_for, make_emulated_kernel(true),
                                            make_cpu_row_worker(), device_ledger);
    const auto on_host =
        make_virtual_walk(s.problem, schedule_for, make_kernel("cpu"), 1, host_ledger);
    for (const WalkUnit unit : {WalkUnit{0, 0, 2}, WalkUnit{3, 1, 1}, WalkUnit{4, 0, 1}}) {
      const auto samples =
          choose_shard_samples(s, unit.rank, unit.first_batch, unit.batches, {}, 20);
      const UnitOutcome got = on_device->run(unit, samples), want = on_host->run(unit, samples);
      SCOPED_TRACE(testing::Message() << name << " rank " << unit.rank);
      EXPECT_EQ(got.input_digest, want.input_digest);
      EXPECT_EQ(got.received_bytes, want.received_bytes);
      EXPECT_EQ(got.errors.queries, want.errors.queries);
      EXPECT_EQ(got.slot_bytes, want.slot_bytes);
      for (const UnitOutcome* out : {&got, &want}) {
        ASSERT_EQ(out->poisoned.has_value(), unit.rank == 0);
        EXPECT_FALSE(out->poisoned && judge(*out->poisoned, 0, s, {.rel_l2 = 1e-5}).pass);
      }
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
    const UnitOutcome part = on_device->run_share({3, 0, 2}, 0.4);
    const UnitOutcome same = on_host->run_share({3, 0, 2}, 0.4);
    EXPECT_EQ(part.share.pairs.all, same.share.pairs.all) << name;
    EXPECT_GE(part.share.pairs.run, same.share.pairs.run) << name;  // rounds of more tasks at once
    EXPECT_GT(part.share.pairs.run, 0);
    EXPECT_EQ(part.received_bytes, same.received_bytes) << name;
    EXPECT_TRUE(part.heads.empty());
  }
}

// Each unit of a walk reuses the memory of the unit before it.
TEST(DeviceWalkTest, KeepsItsMemoryAsPredicted) {
  const ShardedProblem s = device_problem({.algorithm = "dilated", .ranks = 5});
  const auto schedule_for = [&](int64_t) { return find_algorithm("dilated").make(s); };
  MemoryLedger ledger;
  const auto walk = make_device_walk(s.problem, schedule_for, make_emulated_kernel(true),
                                     make_cpu_row_worker(), ledger);
  for (Rank r = 0; r < 5; ++r) {
    const UnitOutcome out = walk->run({r, 0, s.problem.batch}, choose_samples(s, 100));
    EXPECT_TRUE(judge(out.errors, 0, s, {.rel_l2 = 1e-5}).pass) << r;
  }
  for (const auto& [tag, bytes] : walk_memory(schedule_for(0), {0, 1, 2, 3, 4}))
    EXPECT_EQ(ledger.peak_bytes(tag), bytes) << tag;
}

// Counts its plans, whose launches do nothing while it is stopped.
class KernelThatCounts final : public DeviceKernel {
 public:
  bool merges() const override { return true; }
  Prepared prepare(std::span<const AttendGrid> grids, const DeviceAttendOptions& options,
                   MemoryLedger& ledger) const override {
    ++plans;
    const auto attend =
        std::make_shared<Prepared>(make_emulated_kernel(true)->prepare(grids, options, ledger));
    Prepared work;
    work.then([this, attend](const Stream& stream) {
      if (!stopped) attend->launch(stream);
    });
    return work;
  }
  mutable int plans = 0;
  bool stopped = false;
};

TEST(DeviceWalkTest, PlansAreKeptAndRowsOfAnEarlierUnitAreNot) {
  const AttentionProblem p{.seq_len = 256,
                           .num_heads = 4,
                           .num_kv_heads = 4,
                           .head_dim = 8,
                           .dtype = DType::kBFloat16,
                           .causal = true};
  const ShardedProblem s{p, {.branches = {{32, 1}, {256, 4}}}, {256, 4}};
  const auto kernel = std::make_shared<KernelThatCounts>();
  MemoryLedger ledger;
  const auto walk = make_device_walk(
      p, [&](int64_t) { return find_algorithm("dilated").make(s); }, kernel, make_cpu_row_worker(),
      ledger);
  const auto passes = [&](Rank r) {
    const UnitOutcome out = walk->run({r, 0, 1}, choose_shard_samples(s, r, 0, 1, {}, 50));
    int64_t nan_values = 0;
    for (const OutputSummary& head : out.heads) nan_values += head.nan_values;
    return judge(out.errors, nan_values, s, {.rel_l2 = 1e-5}).pass;
  };
  EXPECT_TRUE(passes(1));
  EXPECT_EQ(kernel->plans, 2);
  EXPECT_TRUE(passes(2));  // its queries lie elsewhere among the gathered keys: a plan of its own
  EXPECT_EQ(kernel->plans, 3);
  kernel->stopped = true;
  EXPECT_FALSE(passes(2));
  EXPECT_EQ(kernel->plans, 3);
}

// Gradients that a rank would send to other ranks are added to the rows of these.
TEST(DeviceWalkTest, GradientsThatRanksShareAreThoseOfTheDefinition) {
  constexpr Pass kBoth = Pass::kForwardBackward;
  const DeviceCase cases[] = {
      {.algorithm = "dilated", .ranks = 5, .pass = kBoth},
      {.algorithm = "ring", .ranks = 5, .pass = kBoth},
      {.algorithm = "dilated", .ranks = 5, .pass = kBoth, .keep_gathered = true},
      {.algorithm = "dilated", .ranks = 5, .pass = Pass::kBackward, .keep_gathered = true}};
  for (const DeviceCase& c : cases) {
    const std::string& name = c.algorithm;
    const ShardedProblem s = device_problem(c);
    const auto schedule_for = [&](int64_t batches) {
      ShardedProblem part = s;
      part.problem.batch = batches;
      return lower_collectives(make_schedule(find_algorithm(name), part, c.pass),
                               parse_collective("native"));
    };
    MemoryLedger ledger;
    const auto walk = make_device_walk(s.problem, schedule_for, make_emulated_kernel(true),
                                       make_cpu_row_worker(), ledger);
    const auto samples = choose_samples(s, 60);
    const KeyChoice keys = choose_keys(s, samples);
    walk->compare_keys(keys.keys);
    GradientErrors errors;
    LawTerms laws;
    for (Rank rank = 0; rank < 5; ++rank) {
      const UnitOutcome out = walk->run({rank, 0, s.problem.batch}, samples);
      for (size_t i = 0; i < errors.size(); ++i) errors[i].add(out.gradients.value().errors[i]);
      laws.add(out.gradients.value().laws, 0);
    }
    for (const CheckOutcome& one : judge_gradients(errors, s, 1e-2))
      EXPECT_TRUE(one.pass) << name << ": rel_l2 " << one.rel_l2_error;
    EXPECT_EQ(errors[1].chosen, std::ssize(keys.keys)) << name;
    const Conservation found = conservation(laws, s, true);
    EXPECT_LE(std::max(found.keys, found.scores), 1e-6) << name;
    const auto anew = make_device_walk(s.problem, schedule_for, make_emulated_kernel(true),
                                       make_cpu_row_worker(), ledger);
    EXPECT_FALSE(anew->run_share({2, 0, 1}, 1).gradients) << name;  // to nobody
    const WalkShare part = anew->run_share({3, 0, 1}, 0.4).share;
    EXPECT_GT(part.backward_pairs.run, 0) << name;
    EXPECT_LT(part.flops_share(), 0.8) << name;
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
