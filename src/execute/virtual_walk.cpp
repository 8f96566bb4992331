#include "execute/virtual_walk.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/stopwatch.h"
#include "execute/row_tasks.h"

namespace longnet {
namespace {

constexpr int64_t kAlign = 64;

int64_t rounded(int64_t bytes) { return ceil_div(bytes, kAlign) * kAlign; }

bool moves_results(const RankProgram& program, const Action& what) {
  const auto partial = [&](const SlotView& held) {
    const TensorKind kind = program.slots[size_t(held.slot)].kind;
    return kind == TensorKind::kPartial || kind == TensorKind::kResult;
  };
  return std::visit(Overload{
                        [&](const Recv& o) { return partial(o.what); },
                        [&](const AllGather& o) { return partial(o.into); },
                        [&](const AllToAll& o) { return partial(o.into); },
                        [](const ReduceScatter&) { return true; },
                        [](const auto&) { return false; },
                    },
                    what);
}

}  // namespace

std::map<std::string, int64_t> walk_memory(const RankProgram& program) {
  std::map<std::string, int64_t> bytes;
  for (const Slot& slot : program.slots)
    bytes[std::string(to_string(slot.tag))] += rounded(slot.bytes);
  return bytes;
}

std::string why_not_virtual(const RankProgram& program) {
  for (const Op& op : program.ops)
    if (moves_results(program, op.what))
      return "its ranks exchange results, which one device that walks them in turn would "
             "have to keep for all ranks; ring, all_gather and dilated exchange only keys and "
             "values, which are generated again";
  return {};
}

VirtualWalk::VirtualWalk(const AttentionProblem& problem, MakeSchedule make_schedule,
                         const AttentionKernel& kernel, const RowWorker& worker, int threads,
                         MemoryLedger& ledger)
    : problem_(problem),
      make_schedule_(std::move(make_schedule)),
      kernel_(kernel),
      worker_(worker),
      threads_(threads),
      ledger_(ledger) {}

VirtualWalk::~VirtualWalk() = default;

BoundProgram::Memory VirtualWalk::place(const RankProgram& program) {
  for (const Slot& slot : program.slots) memory_.try_emplace(slot.tag);
  const auto needed = walk_memory(program);
  std::map<SlotTag, int64_t> used;
  for (auto& [tag, buffer] : memory_) {
    const std::string name(to_string(tag));
    const auto it = needed.find(name);
    if (it == needed.end() || it->second <= buffer.size()) continue;
    buffer = TaggedBuffer();  // first, so that old and new are never held together
    buffer = TaggedBuffer(ledger_, name, it->second);
  }
  BoundProgram::Memory memory;
  for (const Slot& slot : program.slots) {
    int64_t& at = used[slot.tag];
    memory.push_back(memory_[slot.tag].bytes().subspan(size_t(at), size_t(slot.bytes)));
    at += rounded(slot.bytes);
  }
  return memory;
}

void VirtualWalk::receive(BoundProgram& bound, const Action& what, const BoundOp& op,
                          ShardOutcome& out) const {
  const WalkUnit& unit = out.unit;
  const ShardedProblem& s = bound.sharded();
  const auto make = [&](const SlotView& held) {
    const TensorKind kind = bound.program().slots[size_t(held.slot)].kind;
    const auto tasks = fill_tasks(s, kind, held, bound.memory(held.slot).data(), unit.first_batch);
    worker_.fill(tasks, row_format(s.problem), threads_);
    for (const FillRows& t : tasks)
      out.received_bytes += t.rows * s.problem.head_dim * dtype_bytes(s.problem.dtype);
  };
  const auto make_all_but = [&](const SlotView& held, int own) {
    make(held.range(0, own));
    make(held.range(own + 1, held.rows.num_pieces() - own - 1));
  };
  std::visit(Overload{
                 [&](const Recv& o) { make(o.what); },
                 [&](const AllGather& o) { make_all_but(o.into, o.group.index_of(unit.rank)); },
                 [&](const AllToAll& o) {
                   const int own = o.group.index_of(unit.rank);
                   make_all_but(o.into, own);
                   const auto begin = [&](const std::vector<int64_t>& counts) {
                     int64_t sum = 0;
                     for (int i = 0; i < own; ++i) sum += counts[size_t(i)];
                     return size_t(sum);
                   };
                   if (op.from_counts[size_t(own)] > 0)
                     std::memcpy(op.into.data() + begin(op.into_counts),
                                 op.from.data() + begin(op.from_counts),
                                 size_t(op.from_counts[size_t(own)]));
                 },
                 [](const auto&) {},
             },
             what);
}

void VirtualWalk::run_ops(BoundProgram& bound, ShardOutcome& out) {
  const auto& ops = bound.program().ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    const Action& what = ops[i].what;
    if (is_communication(what)) {
      Stopwatch watch(out.times.receive_s);
      receive(bound, what, bound.op(i), out);
      continue;
    }
    if (std::holds_alternative<Attend>(what)) {
      Stopwatch watch(out.times.attend_s);
      bound.execute_attends(i, workspace_.bytes());
    } else {
      Stopwatch watch(std::holds_alternative<Merge>(what) ? out.times.merge_s : out.times.pack_s);
      bound.execute_rows(i);
    }
  }
}

std::unique_ptr<BoundProgram> VirtualWalk::prepare(ShardOutcome& out) {
  std::unique_ptr<BoundProgram> bound;
  {
    Stopwatch watch(out.times.bind_s);
    auto schedule = schedules_.find(out.unit.batches);
    if (schedule == schedules_.end())
      schedule = schedules_.emplace(out.unit.batches, make_schedule_(out.unit.batches)).first;
    RankProgram program = schedule->second.program(out.unit.rank);
    const std::string refusal = why_not_virtual(program);
    check(refusal.empty(), "no virtual ranks: ", refusal);
    for (const auto& [tag, bytes] : walk_memory(program)) out.unit_bytes += bytes;
    auto memory = place(program);
    bound = std::make_unique<BoundProgram>(schedule->second, std::move(program), out.unit.rank,
                                           kernel_, threads_, std::move(memory));
    if (workspace_.size() == 0)
      workspace_ =
          TaggedBuffer(ledger_, "workspace", kernel_.workspace_bytes(bound->options(), threads_));
    out.unit_bytes += workspace_.size();
  }
  {
    Stopwatch watch(out.times.poison_s);
    for (int slot = kOutputSlot; slot < int(bound->program().slots.size()); ++slot)
      worker_.poison(bound->memory(slot), threads_);
  }
  Stopwatch watch(out.times.generate_s);
  out.input_digest = bound->fill_inputs(worker_, out.unit.first_batch);
  return bound;
}

ShardOutcome VirtualWalk::run(const WalkUnit& unit, const std::vector<QuerySample>& samples) {
  ShardOutcome out;
  out.unit = unit;
  Stopwatch wall(out.times.wall_s);
  const auto bound = prepare(out);
  run_ops(*bound, out);
  {
    Stopwatch watch(out.times.summarize_s);
    out.heads = bound->summarize_output(worker_, unit.first_batch);
  }
  {
    Stopwatch watch(out.times.check_s);
    out.errors = compare_samples(*bound, problem_, unit.first_batch, samples);
  }
  wall.stop();
  return out;
}

void VirtualWalk::run_some(BoundProgram& bound, double share, ShardOutcome& out) {
  const auto& ops = bound.program().ops;
  const ShareChoice choice = choose_share(bound, share, threads_);
  out.share = choice.share;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!choice.runs[i]) continue;
    const Action& what = ops[i].what;
    if (is_communication(what)) {
      Stopwatch watch(out.times.receive_s);
      receive(bound, what, bound.op(i), out);
    } else if (std::holds_alternative<Attend>(what)) {
      Stopwatch watch(out.times.attend_s);
      kernel_.attend(choice.attends[i], bound.options(), threads_, workspace_.bytes());
    } else {
      Stopwatch watch(std::holds_alternative<Merge>(what) ? out.times.merge_s : out.times.pack_s);
      bound.execute_rows(i);
    }
  }
}

ShardOutcome VirtualWalk::run_share(const WalkUnit& unit, double share) {
  ShardOutcome out;
  out.unit = unit;
  Stopwatch wall(out.times.wall_s);
  const auto bound = prepare(out);
  run_some(*bound, share, out);
  wall.stop();
  return out;
}

}  // namespace longnet
