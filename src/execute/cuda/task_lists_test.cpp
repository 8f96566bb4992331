// Rearranged tasks against the program as it stands, on the CPU: the same bits.
#include "execute/cuda/task_lists.h"

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

  // As the device does it: joined tasks, and attends in the place of the merges that they feed.
  int run_rearranged() {
    std::map<OpId, std::vector<AttendTask>> fused;
    std::map<OpId, bool> skipped;
    for (const auto& [merge, attend_op] : fusible_merges(bound_->program()))
      if (auto tasks = fuse_merges(bound_->op(size_t(attend_op)).attends,
                                   bound_->op(size_t(merge)).merges)) {
        fused[merge] = join_tasks(*tasks);
        skipped[attend_op] = true;
      }
    for (size_t i = 0; i < bound_->program().ops.size(); ++i) {
      if (skipped[OpId(i)]) continue;
      if (fused.contains(OpId(i))) {
        for (const AttendTask& task : fused[OpId(i)]) attend_and_merge(task);
        continue;
      }
      attend(join_tasks(bound_->op(i).attends));
      execute_rows(*kernel_, *bound_, i);
    }
    return int(fused.size());
  }

  std::vector<std::byte> output() const {
    const auto bytes = bound_->memory(kOutputSlot);
    return {bytes.begin(), bytes.end()};
  }

 private:
  void attend(const std::vector<AttendTask>& tasks) {
    kernel_->attend(tasks, bound_->options(), 1, workspace_.bytes());
  }
  void attend_and_merge(AttendTask task) {
    const int64_t d = bound_->options().head_dim;
    std::vector<float> o(size_t(task.q.rows * d)), lse(size_t(task.q.rows));
    const MergeTask merge{
        .from = {o.data(), lse.data(), d, 1}, .into = task.out, .rows = task.q.rows};
    task.out = merge.from;
    attend({task});
    kernel_->merge({&merge, 1}, MergeRule::kLse, bound_->options(), 1);
  }

  std::unique_ptr<AttentionKernel> kernel_;
  std::unique_ptr<RowWorker> worker_;
  MemoryLedger ledger_;
  std::vector<TaggedBuffer> slots_;
  TaggedBuffer workspace_;
  std::unique_ptr<BoundProgram> bound_;
};

TEST(TaskListsTest, FusedMergesGiveTheSameBits) {
  const Schedule schedule = dilated_on_one_rank();
  Walk plain(schedule), rearranged(schedule);
  plain.run_plain();
  EXPECT_EQ(rearranged.run_rearranged(), 2);  // both dilated branches
  EXPECT_EQ(plain.output(), rearranged.output());
}

TEST(TaskListsTest, DenseQueriesBecomeOneTask) {
  const AttentionProblem p{
      .seq_len = 5000, .num_heads = 2, .num_kv_heads = 2, .head_dim = 8, .dtype = DType::kBFloat16};
  Walk walk(local_attention({p, dense_pattern(p.seq_len), {p.seq_len, 1}}));
  const auto& tasks = walk.bound().op(0).attends;
  EXPECT_GT(tasks.size(), 2u);
  const auto joined = join_tasks(tasks);
  ASSERT_EQ(joined.size(), 2u);
  EXPECT_EQ(joined[0].q.rows, 5000);
}

TEST(TaskListsTest, RowsThatNobodyMergesPreventIt) {
  Walk walk(dilated_on_one_rank());
  for (const auto& [merge, attend] : fusible_merges(walk.bound().program())) {
    auto merges = walk.bound().op(size_t(merge)).merges;
    const auto& attends = walk.bound().op(size_t(attend)).attends;
    EXPECT_TRUE(fuse_merges(attends, merges));
    merges.pop_back();
    EXPECT_FALSE(fuse_merges(attends, merges));
  }
}

}  // namespace
}  // namespace longnet
