// One rank's program, bound to memory: for each op the tasks, runs and byte ranges that it stands
// for. program_executor.cpp runs them on the host, cuda/device_executor.cpp on a GPU;
// program_rows.h makes the inputs and reads the output.
//
//   attend q x kv -> output   becomes   AttendGrid{{q, {k, v}, o}, 1 x 12 heads}
//   all_gather into slot 3    becomes   the bytes of slot 3, and how many each member owns
#pragma once
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/rank_group.h"
#include "kernels/attention_kernel.h"
#include "kernels/model_kernel.h"
#include "schedule/program.h"
#include "schedule/row_map.h"

namespace longnet {

// Tasks, byte ranges and peers of one op, computed before the program runs.
struct BoundOp {
  std::vector<AttendGrid> attends;
  std::vector<BackwardGrid> backwards;
  KvLists kv_runs;  // key runs that `attends` and `backwards` refer to
  std::vector<DeltaTask> deltas;
  std::vector<MergeTask> merges;
  std::vector<PackTask> packs, float_packs;     // copies of inputs and results; of O and gradients
  std::vector<PackTask> rounds, widens;         // copies of O into results, and back
  std::vector<PackTask> lse_packs;              // copies of LSEs, which are single floats
  std::vector<SumTask> sums;                    // gradients that are added to others
  std::vector<std::span<float>> zeros, absent;  // O and LSE that a reset fills
  std::vector<ModelTask> tasks;                 // a model's op
  // Communications.
  Rank peer = -1;
  RankGroup group;
  std::span<std::byte> from, into;
  std::vector<int64_t> from_counts, into_counts;
};

// The rank whose program is bound, its threads, and the first sequence of its batch.
struct BindOptions {
  Rank rank = 0;
  int threads = 1;          // threads that run its ops
  int64_t first_batch = 0;  // the batch's first sequence, in the problem
};
// The piece of `view` with the rows of an owner and a query head; throws Error when there is none.
const RowMap::Piece& piece_of(const RowMap& map, const SlotView& view, Rank owner, int64_t head);

class BoundProgram {
 public:
  // Memory for each slot of the program, in their order, at least as large as they say; it must
  // outlive this. It may be a GPU's: nothing here reads or writes it.
  using Memory = std::vector<std::span<std::byte>>;
  BoundProgram(const Schedule& schedule, RankProgram program, const BindOptions& how,
               Memory memory);
  // The rows of another one, elsewhere: no op is bound.
  BoundProgram(const BoundProgram& of, Memory memory)
      : sharded_(of.sharded_),
        program_(of.program_),
        how_(of.how_),
        memory_(std::move(memory)),
        options_(of.options_),
        merge_rule_(of.merge_rule_) {}

  const RankProgram& program() const { return program_; }
  const ShardedProblem& sharded() const { return sharded_; }
  Rank rank() const { return how_.rank; }
  TokenRanges shard() const { return sharded_.layout.shard(how_.rank); }
  int threads() const { return how_.threads; }
  int64_t first_batch() const { return how_.first_batch; }
  const AttendOptions& options() const { return options_; }
  MergeRule merge_rule() const { return merge_rule_; }
  const BoundOp& op(size_t i) const { return ops_[i]; }
  std::span<std::byte> memory(int slot) const { return memory_[size_t(slot)]; }
  // Where a piece of the view's slot begins.
  std::byte* begin_of(const SlotView& view, const RowMap::Piece& piece) const {
    return memory(view.slot).data() + piece.byte_offset;
  }
  // Bytes of the program and of the tasks that its ops are bound to.
  int64_t list_bytes() const;

  // Memory of this one's slots for another program (Executor::in_same_memory).
  Memory memory_for(const RankProgram& program) const;

  // The tasks of dense attention of own queries against own keys.
  BoundOp bind_own_attend();
  // The tasks of an attend whose results belong in the rows that `merge` folds them into. Nothing
  // when the merge has other rows as well.
  std::optional<BoundOp> bind_fused(OpId attend, OpId merge) const;

 private:
  struct KeyLists;

  void bind(const Op& op, BoundOp& bound);
  void bind_attend(const Attend& op, BoundOp& bound) const;
  std::vector<AttendGrid> attends_of_batch(const Attend& op, int64_t batch, BoundOp& bound) const;
  void bind_backward(const AttendBackward& op, BoundOp& bound) const;
  void bind_delta(const Delta& op, BoundOp& bound) const;
  void bind_merge(const Merge& op, BoundOp& bound);
  void bind_values_merge(const Merge& op, BoundOp& bound);
  void bind_pack(const Pack& op, BoundOp& bound);
  void bind_reset(const Reset& op, BoundOp& bound);
  // Row `row` of a piece of gradients.
  float* row_at(const SlotView& view, const RowMap::Piece& piece, int64_t row) const;
  PartialRun partial_at(const SlotView& view, const RowMap::Piece& piece,
                        RowMap::Place place) const;

  ShardedProblem sharded_;
  RankProgram program_;
  BindOptions how_;
  Memory memory_;
  AttendOptions options_;
  MergeRule merge_rule_;
  std::vector<BoundOp> ops_;
};

// The tasks of a model's op, in the memory of the program's slots; of other ops none.
// bind_model.cpp
std::vector<ModelTask> model_tasks(const ShardedProblem& sharded, Rank rank,
                                   const RankProgram& program, const Op& op,
                                   const BoundProgram::Memory& memory);

}  // namespace longnet
