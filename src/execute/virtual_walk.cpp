#include "execute/virtual_walk.h"

#include <algorithm>

#include "core/check.h"
#include "core/stopwatch.h"
#include "execute/host_ops.h"
#include "execute/program_rows.h"
#include "execute/row_tasks.h"

namespace longnet {
namespace {

constexpr int64_t kAlign = 64;

int64_t rounded(int64_t bytes) { return ceil_div(bytes, kAlign) * kAlign; }

bool moves_results(const RankProgram& program, const Action& what) {
  const auto partial = [&](const SlotView& view) {
    const TensorKind kind = program.slots[size_t(view.slot)].kind;
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

void VirtualWalk::receive(const BoundProgram& bound, size_t op, ShardOutcome& out) const {
  Stopwatch watch(out.times.receive_s);
  const ReceivedRows received = received_rows(bound, op);
  worker_.fill(received.rows, row_format(bound.sharded().problem), threads_);
  out.received_bytes += received.bytes;
  std::ranges::copy(received.own_from, received.own_into.begin());
}

void VirtualWalk::run_op(const BoundProgram& bound, size_t op, std::span<const AttendGrid> attends,
                         ShardOutcome& out) {
  const Action& what = bound.program().ops[op].what;
  if (is_communication(what)) return receive(bound, op, out);
  if (std::holds_alternative<Attend>(what)) {
    Stopwatch watch(out.times.attend_s);
    if (!attends.empty()) kernel_.attend(attends, bound.options(), threads_, workspace_.bytes());
  } else {
    Stopwatch watch(std::holds_alternative<Merge>(what) ? out.times.merge_s : out.times.pack_s);
    execute_rows(kernel_, bound, op);
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
    const BindOptions how{
        .rank = out.unit.rank, .threads = threads_, .first_batch = out.unit.first_batch};
    bound = std::make_unique<BoundProgram>(schedule->second, std::move(program), how,
                                           std::move(memory));
    require_supported(kernel_, *bound);
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
  out.input_digest = fill_inputs(*bound, worker_);
  return bound;
}

ShardOutcome VirtualWalk::run(const WalkUnit& unit, const std::vector<QuerySample>& samples) {
  ShardOutcome out;
  out.unit = unit;
  Stopwatch wall(out.times.wall_s);
  const auto bound = prepare(out);
  for (size_t i = 0; i < bound->program().ops.size(); ++i)
    run_op(*bound, i, bound->op(i).attends, out);
  {
    Stopwatch watch(out.times.summarize_s);
    out.heads = summarize_output(*bound, worker_);
  }
  {
    Stopwatch watch(out.times.check_s);
    out.errors = compare_samples(*bound, problem_, samples);
  }
  wall.stop();
  return out;
}

ShardOutcome VirtualWalk::run_share(const WalkUnit& unit, double share) {
  ShardOutcome out;
  out.unit = unit;
  Stopwatch wall(out.times.wall_s);
  const auto bound = prepare(out);
  const ShareChoice choice = choose_share(*bound, share, threads_);
  out.share = choice.share;
  for (size_t i = 0; i < bound->program().ops.size(); ++i)
    if (choice.runs[i]) run_op(*bound, i, choice.attends[i], out);
  wall.stop();
  return out;
}

}  // namespace longnet
