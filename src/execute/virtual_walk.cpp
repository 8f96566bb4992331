#include "execute/virtual_walk.h"

#include <algorithm>

#include "core/check.h"
#include "core/stopwatch.h"
#include "execute/program_executor.h"
#include "execute/program_rows.h"

namespace longnet {
namespace {

constexpr int64_t kAlign = 64;

class VirtualWalk final : public UnitWalk {
 public:
  VirtualWalk(const AttentionProblem& problem, MakeSchedule make_schedule,
              std::shared_ptr<const AttentionKernel> kernel, int threads, MemoryLedger& ledger)
      : UnitWalk(problem, std::move(make_schedule), make_cpu_row_worker(), ledger),
        kernel_(std::move(kernel)),
        threads_(threads) {}

 private:
  void execute(const std::vector<QuerySample>* samples, double share, ShardOutcome& out) override {
    const auto bound = prepare(out);
    ShareChoice choice;
    if (!samples) choice = choose_share(*bound, share, threads_);
    out.share = choice.share;
    for (size_t i = 0; i < bound->program().ops.size(); ++i)
      if (samples)
        run_op(*bound, i, bound->op(i).attends, out);
      else if (choice.runs[i])
        run_op(*bound, i, choice.attends[i], out);
    if (samples)
      inspect(
          *bound, [&](const AttentionProblem& p) { return compare_samples(*bound, p, *samples); },
          out);
  }

  std::unique_ptr<BoundProgram> prepare(ShardOutcome& out) {
    std::unique_ptr<BoundProgram> bound;
    {
      Stopwatch watch(out.times.bind_s);
      const Schedule& schedule = schedule_for(out.unit);
      RankProgram program = schedule.program(out.unit.rank);
      const std::string refusal = why_not_virtual(program);
      check(refusal.empty(), "no virtual ranks: ", refusal);
      for (const auto& [tag, bytes] : walk_memory(program)) out.unit_bytes += bytes;
      auto memory = place(program);
      const BindOptions how{
          .rank = out.unit.rank, .threads = threads_, .first_batch = out.unit.first_batch};
      bound = std::make_unique<BoundProgram>(schedule, std::move(program), how, std::move(memory));
      require_supported(*kernel_, *bound);
      if (workspace_.size() == 0)
        workspace_ = TaggedBuffer(ledger_, "workspace",
                                  kernel_->workspace_bytes(bound->options(), threads_));
      out.unit_bytes += workspace_.size();
    }
    {
      Stopwatch watch(out.times.poison_s);
      for (int slot = kOutputSlot; slot < int(bound->program().slots.size()); ++slot)
        worker_->poison(bound->memory(slot), threads_);
    }
    Stopwatch watch(out.times.generate_s);
    out.input_digest = fill_inputs(*bound, *worker_);
    return bound;
  }

  BoundProgram::Memory place(const RankProgram& program) {
    for (const Slot& slot : program.slots) memory_.try_emplace(slot.tag);
    const auto needed = walk_memory(program);
    for (auto& [tag, buffer] : memory_) {
      const std::string name(to_string(tag));
      const auto it = needed.find(name);
      if (it == needed.end() || it->second <= buffer.size()) continue;
      buffer = TaggedBuffer();  // first, so that old and new are never held together
      buffer = TaggedBuffer(ledger_, name, it->second);
    }
    std::map<SlotTag, int64_t> used;
    BoundProgram::Memory memory;
    for (const Slot& slot : program.slots) {
      int64_t& at = used[slot.tag];
      memory.push_back(memory_[slot.tag].bytes().subspan(size_t(at), size_t(slot.bytes)));
      at += ceil_div(slot.bytes, kAlign) * kAlign;
    }
    return memory;
  }

  // `attends`: those of its tasks that run.
  void run_op(const BoundProgram& bound, size_t op, std::span<const AttendGrid> attends,
              ShardOutcome& out) {
    const Action& what = bound.program().ops[op].what;
    if (is_communication(what)) {
      Stopwatch watch(out.times.receive_s);
      const ReceivedRows received = received_rows(bound, op);
      worker_->fill(received.rows, row_format(bound.sharded().problem), threads_);
      out.received_bytes += received.bytes;
      std::ranges::copy(received.own_from, received.own_into.begin());
    } else if (std::holds_alternative<Attend>(what)) {
      Stopwatch watch(out.times.attend_s);
      if (!attends.empty()) kernel_->attend(attends, bound.options(), threads_, workspace_.bytes());
    } else {
      Stopwatch watch(std::holds_alternative<Merge>(what) ? out.times.merge_s : out.times.pack_s);
      execute_rows(*kernel_, bound, op);
    }
  }

  std::shared_ptr<const AttentionKernel> kernel_;
  int threads_;
  std::map<SlotTag, TaggedBuffer> memory_;
  TaggedBuffer workspace_;
};

}  // namespace

std::map<std::string, int64_t> walk_memory(const RankProgram& program) {
  return program.memory_by_tag(kAlign);
}

std::string why_not_virtual(const RankProgram& program) {
  bool moves_results = false;
  for (const Op& op : program.ops)
    for_each_view(op.what, [&](const SlotView& view, bool writes) {
      moves_results |=
          is_communication(op.what) && writes && holds_o(program.slots[size_t(view.slot)].kind);
    });
  if (!moves_results) return {};
  return "its ranks exchange results, which one device that walks them in turn would have to keep "
         "for all ranks; ring, all_gather and dilated exchange only keys and values, which are "
         "generated again";
}

ShardOutcome UnitWalk::walk(const WalkUnit& unit, const std::vector<QuerySample>* samples,
                            double share) {
  ShardOutcome out;
  out.unit = unit;
  Stopwatch wall(out.times.wall_s);
  execute(samples, share, out);
  wall.stop();
  return out;
}

const Schedule& UnitWalk::schedule_for(const WalkUnit& unit) {
  auto schedule = schedules_.find(unit.batches);
  if (schedule == schedules_.end())
    schedule = schedules_.emplace(unit.batches, make_schedule_(unit.batches)).first;
  return schedule->second;
}

void UnitWalk::inspect(const BoundProgram& bound, const Compare& compare, ShardOutcome& out) const {
  {
    Stopwatch watch(out.times.summarize_s);
    out.heads = summarize_output(bound, *worker_);
  }
  Stopwatch watch(out.times.check_s);
  out.errors = compare(problem_);
}

std::unique_ptr<UnitWalk> make_virtual_walk(const AttentionProblem& problem,
                                            UnitWalk::MakeSchedule make_schedule,
                                            std::shared_ptr<const AttentionKernel> kernel,
                                            int threads, MemoryLedger& ledger) {
  return std::make_unique<VirtualWalk>(problem, std::move(make_schedule), std::move(kernel),
                                       threads, ledger);
}

}  // namespace longnet
