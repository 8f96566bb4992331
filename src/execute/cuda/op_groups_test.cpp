// Rounds in order must never deadlock, as NCCL runs them: a rank's round ends when all its
// transfers have their other sides in the peers' current rounds; only then its next one begins.
// Attends with fused merges give the same bits as the program without fusion, on the CPU.
#include "execute/cuda/op_groups.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "core/tagged_memory.h"
#include "execute/bound_program.h"
#include "execute/program_executor.h"
#include "execute/program_rows.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

// One side of a message: the n-th from rank `from` to rank `to`, or of a gather of a group.
struct Side {
  Rank from, to;
  int64_t number;
  bool sends;
};
using RankRounds = std::vector<std::vector<Side>>;

RankRounds sides_of(const RankProgram& program, Rank me, bool together) {
  RankRounds all;
  std::map<std::pair<Rank, Rank>, int64_t> numbers;
  std::vector<CommRound> rounds = comm_rounds(program);
  if (!together) {  // as it would be without rounds
    std::vector<CommRound> single;
    for (const CommRound& round : rounds)
      for (const OpId op : round) single.push_back({op});
    rounds = single;
  }
  for (const CommRound& round : rounds) {
    std::vector<Side> sides;
    const auto send = [&](Rank to) { sides.push_back({me, to, numbers[{me, to}]++, true}); };
    const auto recv = [&](Rank from) { sides.push_back({from, me, numbers[{from, me}]++, false}); };
    const auto exchange = [&](const RankGroup& group) {
      for (int i = 0; i < group.count; ++i)
        if (group[i] != me) send(group[i]), recv(group[i]);
    };
    for (const OpId id : round)
      std::visit(Overload{[&](const Send& o) { send(o.to); }, [&](const Recv& o) { recv(o.from); },
                          [&](const AllGather& o) { exchange(o.group); },
                          [&](const AllToAll& o) { exchange(o.group); }, [](const auto&) {}},
                 program.ops[size_t(id)].what);
    all.push_back(sides);
  }
  return all;
}

// Number of ranks that never finish.
int stuck_ranks(const Schedule& schedule, bool together = true) {
  const int ranks = schedule.sharded.layout.world_size();
  std::vector<RankRounds> todo;
  for (Rank r = 0; r < ranks; ++r) todo.push_back(sides_of(schedule.program(r), r, together));
  std::vector<size_t> current(size_t(ranks), 0);
  using Name = std::tuple<Rank, Rank, int64_t>;
  std::map<Name, int> running;  // sides of current rounds, 2: both are there
  const auto enter = [&](Rank r) {
    if (current[size_t(r)] < todo[size_t(r)].size())
      for (const Side& s : todo[size_t(r)][current[size_t(r)]]) ++running[{s.from, s.to, s.number}];
  };
  for (Rank r = 0; r < ranks; ++r) enter(r);
  for (bool progress = true; progress;) {
    progress = false;
    for (Rank r = 0; r < ranks; ++r) {
      if (current[size_t(r)] == todo[size_t(r)].size()) continue;
      const auto& sides = todo[size_t(r)][current[size_t(r)]];
      if (!std::all_of(sides.begin(), sides.end(), [&](const Side& s) {
            return running[{s.from, s.to, s.number}] == 2;
          }))
        continue;
      ++current[size_t(r)];
      enter(r);
      progress = true;
    }
  }
  int stuck = 0;
  for (Rank r = 0; r < ranks; ++r) stuck += current[size_t(r)] < todo[size_t(r)].size();
  return stuck;
}

ShardedProblem problem_for(const AlgorithmInfo& algorithm, int ranks, LayoutKind layout) {
  const AttentionProblem p{.seq_len = 96, .num_heads = 8, .num_kv_heads = 4, .head_dim = 8};
  DilatedPattern pattern = dense_pattern(p.seq_len);
  if (algorithm.pattern == PatternKind::kDilated)
    pattern = {.branches = {{16, 1}, {40, 3}, {96, 7}}};
  if (algorithm.pattern == PatternKind::kSparse) pattern = sparse_pattern(11, 3);
  return {p, pattern, SequenceLayout(p.seq_len, ranks, layout)};
}

TEST(CommRoundsTest, NoAlgorithmDeadlocks) {
  int schedules = 0;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const LayoutKind layout :
         {LayoutKind::kContiguous, LayoutKind::kZigzag, LayoutKind::kStriped})
      for (const char* collective : {"native", "ring", "recursive_doubling", "bruck", "pairwise"})
        for (int ranks = 1; ranks <= 9; ++ranks) {
          const ShardedProblem s = problem_for(algorithm, ranks, layout);
          if (!algorithm.why_no_program(s).empty()) continue;
          const Schedule schedule =
              lower_collectives(algorithm.make(s), parse_collective(collective));
          EXPECT_EQ(stuck_ranks(schedule), 0) << algorithm.name << " " << collective << " on "
                                              << ranks << ", layout " << to_string(layout);
          ++schedules;
        }
  EXPECT_GT(schedules, 500);
}

TEST(CommRoundsTest, OneByOneARingWouldDeadlock) {  // the test can tell
  const AlgorithmInfo& ring = find_algorithm("ring");
  const Schedule schedule = ring.make(problem_for(ring, 4, LayoutKind::kContiguous));
  EXPECT_EQ(stuck_ranks(schedule, /*together=*/false), 4);
}

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
    workspace_ =
        TaggedBuffer(ledger_, kWorkspaceTag, kernel_->workspace_bytes(bound_->options(), 1));
  }
  BoundProgram& bound() { return *bound_; }

  void run_plain() {
    for (size_t i = 0; i < bound_->program().ops.size(); ++i) {
      attend(bound_->op(i).attends);
      execute_rows(*kernel_, *bound_, i);
    }
  }

  // Runs as the device does: attends take the place of the merges that they feed.
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

// A receive that waits until the attend has read its keys would come before an attend that runs
// with its merge.
TEST(FusibleMergesTest, AnAttendThatAnotherOpWaitsForIsNotFused) {
  const SlotView keys{4, {}}, partial{3, {}}, output{kOutputSlot, {}};
  RankProgram program;
  program.ops = {{Attend{0, {}, {}, {}, keys, partial}, {}},
                 {Recv{1, keys}, {}},
                 {Merge{partial, output}, {0}}};
  EXPECT_EQ(fusible_merges(program), (std::map<OpId, OpId>{{2, 0}}));
  program.ops[1].after = {0};
  EXPECT_TRUE(fusible_merges(program).empty());
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
