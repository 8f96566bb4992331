// One rank's program, bound to memory: for each op the tasks, runs and byte ranges that it stands
// for. Who runs it decides where messages come from: ProgramExecutor has a communicator,
// VirtualWalk one device for all ranks.
//
//   attend q x kv -> output   becomes   AttendTask{q + 4096 rows, {k, v}, o}, one per 2048 queries
//   all_gather into slot 3    becomes   the bytes of slot 3, and how many each member owns
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "kernels/attention_kernel.h"
#include "kernels/row_worker.h"
#include "schedule/program.h"
#include "schedule/row_map.h"

namespace longnet {

struct LseCopy {
  const float* from;
  float* into;
  int64_t from_stride, into_stride, rows;
};

// What running an op needs, ready made.
struct BoundOp {
  std::vector<AttendTask> attends;
  std::vector<KvRun> kv_runs;  // the attends' spans point into it
  std::vector<MergeTask> merges;
  std::vector<PackTask> packs, float_packs;  // of Q, K, V and results; of O
  std::vector<PackTask> rounds, widens;      // of O into results, and back
  std::vector<LseCopy> lse_copies;
  std::vector<std::span<float>> zeros, absent;  // O and LSE that a reset fills
  // Communications.
  Rank peer = -1;
  RankGroup group;
  std::span<std::byte> from, into;
  std::vector<int64_t> from_counts, into_counts;
  Communicator::Request request = -1;
};

class BoundProgram {
 public:
  // The program of `rank`, and memory for each of its slots, in their order, at least as large as
  // they say; memory and kernel must outlive this. Throws Error when the kernel cannot do it.
  using Memory = std::vector<std::span<std::byte>>;
  BoundProgram(const Schedule& schedule, RankProgram program, Rank rank,
               const AttentionKernel& kernel, int threads, Memory memory);

  const RankProgram& program() const { return program_; }
  const ShardedProblem& sharded() const { return sharded_; }
  Rank rank() const { return rank_; }
  TokenRanges shard() const { return sharded_.layout.shard(rank_); }
  const AttendOptions& options() const { return options_; }
  const AttentionKernel& kernel() const { return kernel_; }
  int threads() const { return threads_; }
  BoundOp& op(size_t i) { return ops_[i]; }
  const BoundOp& op(size_t i) const { return ops_[i]; }
  std::span<std::byte> memory(int slot) const { return memory_[size_t(slot)]; }

  // Runs an op that computes, on all its tasks but those of attends.
  void execute_rows(size_t op);
  // Runs the attend tasks [begin, end) of an op.
  // `progress_hook`: called now and then meanwhile.
  void execute_attends(size_t op, std::span<std::byte> workspace,
                       const std::function<void()>* progress_hook = nullptr);

  // Fills Q, K and V of the shard from the generator; the batch's first sequence is number
  // `first_batch` of the problem. Returns their digest (kernels/row_worker.h).
  uint64_t fill_inputs(const RowWorker& worker, int64_t first_batch = 0);
  // The digest of Q, K and V as they are in memory.
  uint64_t digest_inputs(const RowWorker& worker, int64_t first_batch = 0) const;
  // Of the output, per query head.
  std::vector<OutputSummary> summarize_output(const RowWorker& worker,
                                              int64_t first_batch = 0) const;
  // One row of the output, for a token of this rank's shard: head_dim floats, and its LSE.
  std::span<const float> output_row(int64_t batch, int64_t head, int64_t token) const;
  float output_lse(int64_t batch, int64_t head, int64_t token) const {
    return *output_lse_at(batch, head, token);
  }
  const float* output_lse_at(int64_t batch, int64_t head, int64_t token) const;
  // False when the output came as a result: then output_lse is NaN, and O was rounded to the
  // storage type on its way.
  bool output_has_lse() const { return program_.output_is_partial(); }
  // Number of values of the output (O, and LSE when it has one) that are NaN: 0 after a right run.
  int64_t count_nan() const;

  // The tasks of dense attention of own queries against own keys.
  BoundOp bind_own_attend();

 private:
  class KeyLists;

  std::vector<FillRows> input_tasks(TensorKind kind, int64_t first_batch) const;
  int64_t output_index(int64_t batch, int64_t head, int64_t token) const;
  void bind(const Op& op, BoundOp& bound);
  void bind_attend(const Attend& op, BoundOp& bound);
  void bind_merge(const Merge& op, BoundOp& bound);
  void bind_pack(const Pack& op, BoundOp& bound);
  void bind_reset(const Reset& op, BoundOp& bound);
  PartialRun partial_at(const SlotView& held, const RowMap::Piece& piece,
                        RowMap::Place place) const;

  ShardedProblem sharded_;
  RankProgram program_;
  Rank rank_;
  const AttentionKernel& kernel_;
  int threads_;
  Memory memory_;
  AttendOptions options_;
  MergeRule merge_rule_;
  std::vector<BoundOp> ops_;
};

}  // namespace longnet
