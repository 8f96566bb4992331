#include "execute/virtual_walk.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/stopwatch.h"
#include "execute/program_executor.h"
#include "execute/program_rows.h"
#include "execute/slot_memory.h"
#include "execute/walk_gradients.h"

namespace longnet {
namespace {

// Each tag's larger figure.
void keep_larger(std::map<std::string, int64_t>& most,
                 const std::map<std::string, int64_t>& bytes) {
  for (const auto& [tag, held] : bytes) most[tag] = std::max(most[tag], held);
}

class VirtualWalk final : public UnitWalk {
 public:
  VirtualWalk(const AttentionProblem& problem, MakeSchedule make_schedule,
              std::shared_ptr<const AttentionKernel> kernel, int threads, MemoryLedger& ledger)
      : UnitWalk(problem, std::move(make_schedule), make_cpu_row_worker(), threads, ledger),
        kernel_(std::move(kernel)),
        threads_(threads) {}

 private:
  // The program of a unit; for a backward pass alone also the forward pass that makes its output,
  // in the same memory.
  struct Programs {
    std::unique_ptr<BoundProgram> bound, forward;
  };

  void execute_whole(const Samples& samples, UnitOutcome& out) override {
    const auto [bound, forward] = prepare(/*whole=*/true, out);
    const Compare compare = [&](const ExpectedRows& rows) { return compare_samples(*bound, rows); };
    inspect_poisoned(*bound, samples, compare, out);
    std::future<ExpectedRows> expected = expect(*bound, samples, std::launch::deferred);
    make_inputs(*bound, out);
    if (forward) make_output(*forward, *bound, out);
    for (size_t i = 0; i < bound->program().ops.size(); ++i)
      run_op(*bound, i, bound->op(i).attends, bound->op(i).backwards, out);
    inspect(*bound, expected, compare, out);
    if (has_backward(bound->program().pass)) gradients_->inspect(*bound, samples, keys(), out);
  }

  void execute_share(double share, UnitOutcome& out) override {
    const auto [bound, forward] = prepare(/*whole=*/false, out);
    make_inputs(*bound, out);
    const ShareChoice choice = choose_share(*bound, share, threads_);
    out.share = choice.share;
    for (size_t i = 0; i < bound->program().ops.size(); ++i)
      if (choice.runs[i]) run_op(*bound, i, choice.attends[i], choice.backwards[i], out);
  }

  void make_inputs(const BoundProgram& bound, UnitOutcome& out) const {
    Stopwatch watch(out.times.generate_s);
    out.input_digest = fill_inputs(bound, *worker_);
  }

  Programs prepare(bool whole, UnitOutcome& out) {
    Programs programs;
    {
      Stopwatch watch(out.times.bind_s);
      const Schedule& schedule = schedule_for(out.unit);
      RankProgram program = virtual_program(schedule, out.unit.rank);
      const auto needed = slot_bytes_by_tag(schedule, out.unit.rank);
      memory_.grow(needed, ledger_);
      out.unit_bytes += total_bytes(needed);
      const BindOptions how{
          .rank = out.unit.rank, .threads = threads_, .first_batch = out.unit.first_batch};
      const auto bind = [&](RankProgram bindable) {
        auto memory = memory_.place(bindable);
        return std::make_unique<BoundProgram>(schedule, std::move(bindable), how,
                                              std::move(memory));
      };
      const Pass pass = program.pass;
      if (has_backward(pass) && whole) gradients_->sums_of(schedule, out.unit);
      programs.bound = bind(std::move(program));
      if (schedule.forward) programs.forward = bind(schedule.forward(out.unit.rank));
      require_supported(*kernel_, *programs.bound);
      if (workspace_.size() == 0)
        workspace_ = TaggedBuffer(
            ledger_, kWorkspaceTag,
            kernel_->workspace_bytes(programs.bound->options(), threads_,
                                     has_backward(pass) ? Pass::kForwardBackward : pass));
      out.unit_bytes += workspace_.size();
    }
    Stopwatch watch(out.times.poison_s);
    poison(programs.forward ? *programs.forward : *programs.bound, *worker_);
    worker_->poison(workspace_.bytes(), threads_);
    return programs;
  }

  void make_output(const BoundProgram& forward, const BoundProgram& backward, UnitOutcome& out) {
    UnitOutcome aside;
    Stopwatch watch(out.times.output_s);
    for (size_t i = 0; i < forward.program().ops.size(); ++i)
      run_op(forward, i, forward.op(i).attends, {}, aside);
    watch.stop();
    Stopwatch poisoning(out.times.poison_s);
    poison(backward, *worker_);
    worker_->poison(workspace_.bytes(), threads_);
  }

  // `attends`, `backwards`: those of its tasks that run.
  void run_op(const BoundProgram& bound, size_t op, std::span<const AttendGrid> attends,
              std::span<const BackwardGrid> backwards, UnitOutcome& out) {
    const Action& what = bound.program().ops[op].what;
    if (moves_gradients(bound.program(), what)) {
      Stopwatch watch(out.times.receive_s);
      if (const auto* send = std::get_if<Send>(&what))
        gradients_->add(view_rows(bound, send->what));
      std::ranges::fill(bound.op(op).into, std::byte{0});  // nothing comes from other ranks
      out.received_bytes += int64_t(bound.op(op).into.size());
    } else if (is_communication(what)) {
      Stopwatch watch(out.times.receive_s);
      const ReceivedRows received = received_rows(bound, op);
      worker_->fill(received.rows, row_format(bound.sharded().problem), threads_);
      out.received_bytes += received.bytes;
      std::ranges::copy(received.own_from, received.own_into.begin());
    } else if (std::holds_alternative<Attend>(what)) {
      Stopwatch watch(out.times.attend_s);
      if (!attends.empty()) kernel_->attend(attends, bound.options(), threads_, workspace_.bytes());
    } else if (std::holds_alternative<AttendBackward>(what)) {
      Stopwatch watch(out.times.attend_backward_s);
      if (!backwards.empty())
        kernel_->attend_backward(backwards, bound.options(), threads_, workspace_.bytes());
    } else {
      Stopwatch watch(std::holds_alternative<Merge>(what) ? out.times.merge_s : out.times.pack_s);
      execute_rows(*kernel_, bound, op);
    }
  }

  std::shared_ptr<const AttentionKernel> kernel_;
  int threads_;
  SlotMemory<TaggedBuffer> memory_;
  TaggedBuffer workspace_;
};

// The outcome of a unit, with the time of `execute` in all.
UnitOutcome timed(const WalkUnit& unit, const auto& execute) {
  UnitOutcome out;
  out.unit = unit;
  Stopwatch wall(out.times.wall_s);
  execute(out);
  wall.stop();
  return out;
}

}  // namespace

std::map<std::string, int64_t> slot_bytes_by_tag(const Schedule& schedule, Rank rank) {
  auto most = schedule.program(rank).memory_by_tag(kSlotAlign);
  if (schedule.forward) keep_larger(most, schedule.forward(rank).memory_by_tag(kSlotAlign));
  return most;
}

std::map<std::string, int64_t> walk_memory(const Schedule& schedule, const std::vector<Rank>& ranks,
                                           bool in_part) {
  std::map<std::string, int64_t> most;
  for (const Rank rank : ranks) keep_larger(most, slot_bytes_by_tag(schedule, rank));
  if (!ranks.empty() && !in_part && has_backward(schedule.program(ranks[0]).pass))
    if (const int64_t bytes = SharedGradients::bytes(schedule); bytes > 0)
      most[SharedGradients::kTag] = bytes;
  return most;
}

bool moves_gradients(const RankProgram& program, const Action& what) {
  const SlotView* view = nullptr;
  if (const auto* send = std::get_if<Send>(&what)) view = &send->what;
  if (const auto* recv = std::get_if<Recv>(&what)) view = &recv->what;
  return view && program.slots[size_t(view->slot)].kind == TensorKind::kGradKeyValue;
}

std::string why_not_virtual(const RankProgram& program) {
  bool moves_results = false;
  for (const Op& op : program.ops)
    for_each_view(op.what, [&](const SlotView& view, bool writes) {
      using enum TensorKind;
      const TensorKind kind = program.slots[size_t(view.slot)].kind;
      moves_results |= is_communication(op.what) && writes && kind != kQuery && kind != kKeyValue &&
                       !moves_gradients(program, op.what);
    });
  if (!moves_results) return {};
  return "its ranks exchange results, which one device that walks them in turn would have to keep "
         "for all ranks; ring, all_gather and dilated exchange only keys and values, which are "
         "generated again, and, in a backward pass, gradients of these, which are added up";
}

RankProgram virtual_program(const Schedule& schedule, Rank rank) {
  RankProgram program = schedule.program(rank);
  const std::string refusal = why_not_virtual(program);
  check(refusal.empty(), "no virtual ranks: ", refusal);
  return program;
}

UnitWalk::UnitWalk(const AttentionProblem& problem, MakeSchedule make_schedule,
                   std::shared_ptr<const RowWorker> worker, int threads, MemoryLedger& ledger)
    : worker_(std::move(worker)),
      ledger_(ledger),
      gradients_(std::make_unique<WalkGradients>(problem, threads, ledger)),
      problem_(problem),
      make_schedule_(std::move(make_schedule)) {}
UnitWalk::~UnitWalk() = default;

void UnitWalk::end_with(Rank last) { gradients_->end_with(last); }

std::span<std::byte> UnitWalk::sums_after(const WalkUnit& unit) {
  return gradients_->sums_of(schedule_for(unit), unit);
}

UnitOutcome UnitWalk::run(const WalkUnit& unit, const Samples& samples) {
  return timed(unit, [&](UnitOutcome& out) { execute_whole(samples, out); });
}

UnitOutcome UnitWalk::run_share(const WalkUnit& unit, double share) {
  return timed(unit, [&](UnitOutcome& out) { execute_share(share, out); });
}

const Schedule& UnitWalk::schedule_for(const WalkUnit& unit) {
  auto schedule = schedules_.find(unit.batches);
  if (schedule == schedules_.end())
    schedule = schedules_.emplace(unit.batches, make_schedule_(unit.batches)).first;
  return schedule->second;
}

void UnitWalk::inspect_poisoned(const BoundProgram& bound, const Samples& samples,
                                const Compare& compare, UnitOutcome& out) {
  if (samples.empty() || std::exchange(poisoned_inspected_, true)) return;
  Stopwatch watch(out.times.check_s);
  out.poisoned = compare(expected_rows(bound, problem_, {samples.front()}));
}

std::future<ExpectedRows> UnitWalk::expect(const BoundProgram& bound, const Samples& samples,
                                           std::launch when) const {
  return std::async(when, [&] { return expected_rows(bound, problem_, samples); });
}

void UnitWalk::inspect(const BoundProgram& bound, std::future<ExpectedRows>& expected,
                       const Compare& compare, UnitOutcome& out) const {
  for (int slot = 0; slot < int(bound.program().slots.size()); ++slot)
    out.slot_bytes += int64_t(bound.memory(slot).size());
  {
    Stopwatch watch(out.times.summarize_s);
    out.heads = summarize_output(bound, *worker_);
  }
  Stopwatch watch(out.times.check_s);
  out.errors = compare(expected.get());
}

std::unique_ptr<UnitWalk> make_virtual_walk(const AttentionProblem& problem,
                                            UnitWalk::MakeSchedule make_schedule,
                                            std::shared_ptr<const AttentionKernel> kernel,
                                            int threads, MemoryLedger& ledger) {
  return std::make_unique<VirtualWalk>(problem, std::move(make_schedule), std::move(kernel),
                                       threads, ledger);
}

}  // namespace longnet
