// Merges taken into attends against the program as it stands, on the CPU: the same bits.
#include "execute/cuda/fusible_merges.h"

#include <gtest/gtest.h>

#include "core/tagged_memory.h"
#include "execute/bound_program.h"
#include "execute/host_ops.h"
#include "execute/program_rows.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

Schedule dilated_on_one_rank(MixRule mix = MixRule::kLse) {
  const AttentionProblem p{.seq_len = 2500,
                           .num_heads = 3,
                           .num_kv_heads = 3,
                           .head_dim = 8,
                           .batch = 2,
                           .dtype = DType::kBFloat16};
  return dilated_attention(
      {p, {.branches = {{250, 1}, {1000, 3}, {2500, 7}}, .mix = mix}, {p.seq_len, 1}});
}

// A program in host memory, run op by op.
class Walk {
 public:
  explicit Walk(const Schedule& schedule)
      : kernel_(make_kernel("cpu")), worker_(make_cpu_row_worker()) {
    RankProgram program = schedule.program(0);
    BoundProgram::Memory memory;
    for (const Slot& slot : program.slots) {
      slots_.emplace_back(ledger_, "slot", slot.bytes);
      memory.push_back(slots_.back().bytes());
    }
    bound_ = std::make_unique<BoundProgram>(schedule, std::move(program), BindOptions{},
                                            std::move(memory));
    fill_inputs(*bound_, *worker_);
    workspace_ = TaggedBuffer(ledger_, "workspace", kernel_->workspace_bytes(bound_->options(), 1));
  }
  BoundProgram& bound() { return *bound_; }

  void run_plain() {
    for (size_t i = 0; i < bound_->program().ops.size(); ++i) {
      attend(bound_->op(i).attends);
      execute_rows(*kernel_, *bound_, i);
    }
  }

  // As the device does it: attends in the place of the merges that they feed.
  int run_fused() {
    std::map<OpId, BoundOp> fused;
    std::map<OpId, bool> skipped;
    for (const auto& [merge, attend_op] : fusible_merges(bound_->program()))
      if (auto op = bound_->bind_fused(attend_op, merge)) {
        fused[merge] = std::move(*op);
        skipped[attend_op] = true;
      }
    for (size_t i = 0; i < bound_->program().ops.size(); ++i) {
      if (skipped[OpId(i)]) continue;
      if (fused.contains(OpId(i))) {
        for (const AttendGrid& grid : fused[OpId(i)].attends)
          for (int64_t t = 0; t < grid.size(); ++t) attend_and_merge(grid.at(t));
        continue;
      }
      attend(bound_->op(i).attends);
      execute_rows(*kernel_, *bound_, i);
    }
    return int(fused.size());
  }

  std::vector<std::byte> output() const {
    const auto bytes = bound_->memory(kOutputSlot);
    return {bytes.begin(), bytes.end()};
  }

 private:
  void attend(const std::vector<AttendGrid>& grids) {
    kernel_->attend(grids, bound_->options(), 1, workspace_.bytes());
  }
  void attend_and_merge(AttendTask task) {
    const int64_t d = bound_->options().head_dim;
    std::vector<float> o(size_t(task.q.rows * d)), lse(size_t(task.q.rows));
    const MergeTask merge{
        .from = {o.data(), lse.data(), d, 1}, .into = task.out, .rows = task.q.rows};
    task.out = merge.from;
    attend({{task}});
    kernel_->merge({&merge, 1}, MergeRule::kLse, bound_->options(), 1);
  }

  std::unique_ptr<AttentionKernel> kernel_;
  std::unique_ptr<RowWorker> worker_;
  MemoryLedger ledger_;
  std::vector<TaggedBuffer> slots_;
  TaggedBuffer workspace_;
  std::unique_ptr<BoundProgram> bound_;
};

TEST(FusibleMergesTest, FusedMergesGiveTheSameBits) {
  const Schedule schedule = dilated_on_one_rank();
  Walk plain(schedule), fused(schedule);
  plain.run_plain();
  EXPECT_EQ(fused.run_fused(), 2);  // both dilated branches
  EXPECT_EQ(plain.output(), fused.output());
}

TEST(FusibleMergesTest, AMergeOfOtherRowsIsNotFused) {
  const Schedule schedule = dilated_on_one_rank();
  RankProgram program = schedule.program(0);
  const auto pairs = fusible_merges(program);
  ASSERT_EQ(pairs.size(), 2u);
  for (const auto& [merge, attend] : pairs)  // half of the queries alone
    std::get<Attend>(program.ops[size_t(attend)].what).queries.end /= 2;
  Schedule half = schedule;
  half.program = [program](Rank) { return program; };
  Walk walk(half);
  for (const auto& [merge, attend] : pairs) EXPECT_FALSE(walk.bound().bind_fused(attend, merge));
}

}  // namespace
}  // namespace longnet
