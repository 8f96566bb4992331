// A walk of virtual ranks, as a case of a test, and a kernel that counts what a walk gives it.
// {"ring"} is Ring Attention over 203 tokens of three sequences, on any number of ranks.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "kernels/attention_kernel.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"

namespace longnet {

struct WalkCase {
  std::string algorithm = "dilated";
  AttentionProblem problem = {
      .seq_len = 203, .num_heads = 4, .num_kv_heads = 2, .head_dim = 24, .batch = 3};
  DilatedPattern pattern = {.branches = {{40, 1}, {100, 3}, {203, 7}}};
  LayoutKind layout = LayoutKind::kContiguous;
  std::string collective = "native";
  AlgorithmOptions options = {};
};

inline ShardedProblem sharded_of(const WalkCase& c, int ranks, int64_t batches) {
  ShardedProblem s{c.problem, dense_pattern(c.problem.seq_len),
                   SequenceLayout(c.problem.seq_len, ranks, c.layout), GatherScope::kSegmentGroup,
                   c.options};
  s.problem.batch = batches;
  if (find_algorithm(c.algorithm).pattern == PatternKind::kDilated) s.pattern = c.pattern;
  if (find_algorithm(c.algorithm).pattern == PatternKind::kSparse)
    s.pattern = sparse_pattern(24, 5);
  return s;
}

inline Schedule schedule_of(const WalkCase& c, int ranks, int64_t batches) {
  return lower_collectives(find_algorithm(c.algorithm).make(sharded_of(c, ranks, batches)),
                           parse_collective(c.collective));
}

inline ShardedProblem backward_problem(const WalkCase& c, int ranks, int64_t batches) {
  ShardedProblem s = sharded_of(c, ranks, batches);
  s.pattern.mix = c.pattern.mix;
  return s;
}

inline Schedule backward_schedule(const WalkCase& c, int ranks, int64_t batches, Pass pass) {
  return lower_collectives(
      make_schedule(find_algorithm(c.algorithm), backward_problem(c, ranks, batches), pass),
      parse_collective(c.collective));
}

// Pairs of all tasks, as without a mask.
inline double unmasked_pairs(const AttendGrid& grid) {
  double keys = 0;
  for (const KvRun& run : grid.task.kv) keys += double(run.rows);
  return double(grid.size()) * double(grid.task.q.rows) * keys;
}

// Counts what it is given, and can be stopped.
class WatchedKernel final : public AttentionKernel {
 public:
  std::string_view name() const override { return kernel_->name(); }
  std::string why_kernel_unsupported(const AttendOptions& options) const override {
    return kernel_->why_unsupported(options);
  }
  int64_t workspace_bytes(const AttendOptions& options, int threads) const override {
    return kernel_->workspace_bytes(options, threads);
  }
  void attend(std::span<const AttendGrid> grids, const AttendOptions& options, int threads,
              std::span<std::byte> workspace) const override {
    for (const AttendGrid& grid : grids) pairs += unmasked_pairs(grid);
    if (!stopped) kernel_->attend(grids, options, threads, workspace);
  }
  int64_t backward_workspace_bytes(const AttendOptions& options, int threads) const override {
    return kernel_->backward_workspace_bytes(options, threads);
  }
  void attend_backward(std::span<const BackwardGrid> grids, const AttendOptions& options,
                       int threads, std::span<std::byte> workspace) const override {
    for (const BackwardGrid& grid : grids) backward_pairs += unmasked_pairs(grid.attend);
    kernel_->attend_backward(grids, options, threads, workspace);
  }
  void delta(std::span<const DeltaTask> tasks, const AttendOptions& options,
             int threads) const override {
    kernel_->delta(tasks, options, threads);
  }
  void merge(std::span<const MergeTask> tasks, MergeRule rule, const AttendOptions& options,
             int threads) const override {
    kernel_->merge(tasks, rule, options, threads);
  }
  void add(std::span<const SumTask> tasks, const AttendOptions& options,
           int threads) const override {
    kernel_->add(tasks, options, threads);
  }
  void pack(std::span<const PackTask> tasks, Conversion conversion, const AttendOptions& options,
            int threads) const override {
    kernel_->pack(tasks, conversion, options, threads);
  }
  void fill(std::span<const std::span<float>> ranges, float value, int threads) const override {
    kernel_->fill(ranges, value, threads);
  }
  bool stopped = false;
  mutable double pairs = 0, backward_pairs = 0;

 private:
  std::unique_ptr<AttentionKernel> kernel_ = make_kernel("cpu");
};

}  // namespace longnet
