#include "execute/virtual_walk.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "execute/row_tasks.h"
#include "pattern/pair_count.h"

namespace longnet {
namespace {

constexpr int64_t kAlign = 64;

int64_t rounded(int64_t bytes) { return ceil_div(bytes, kAlign) * kAlign; }

// Adds what passes during its life to a number of seconds.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), begin_(Clock::now()) {}
  ~Stopwatch() {
    if (running_) stop();
  }
  void stop() {
    seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count();
    running_ = false;
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point begin_;
  bool running_ = true;
};

bool moves_results(const RankProgram& program, const Action& what) {
  const auto partial = [&](const Held& held) {
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

void WalkTimes::add(const WalkTimes& o) {
  bind_s += o.bind_s;
  poison_s += o.poison_s;
  generate_s += o.generate_s;
  receive_s += o.receive_s;
  attend_s += o.attend_s;
  select_s += o.select_s;
  merge_s += o.merge_s;
  summarize_s += o.summarize_s;
  check_s += o.check_s;
  wall_s += o.wall_s;
}

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
  const auto make = [&](const Held& held) {
    const TensorKind kind = bound.program().slots[size_t(held.slot)].kind;
    const auto tasks = fill_tasks(s, kind, held, bound.memory(held.slot).data(), unit.first_batch);
    worker_.fill(tasks, row_format(s.problem), threads_);
    for (const FillRows& t : tasks)
      out.received_bytes += t.rows * s.problem.head_dim * dtype_bytes(s.problem.dtype);
  };
  const auto make_all_but = [&](const Held& held, int own) {
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
      Stopwatch watch(std::holds_alternative<Merge>(what) ? out.times.merge_s : out.times.select_s);
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
    auto memory = place(program);
    bound = std::make_unique<BoundProgram>(schedule->second, std::move(program), out.unit.rank,
                                           kernel_, threads_, std::move(memory));
    if (workspace_.size() == 0)
      workspace_ =
          TaggedBuffer(ledger_, "workspace", kernel_.workspace_bytes(bound->options(), threads_));
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

double WalkShare::forward_s(const WalkTimes& t) const {
  const double attends = pairs > 0 ? all_pairs / pairs : 1;
  const double folds = merges > 0 ? double(all_merges) / double(merges) : 1;
  return t.attend_s * attends + t.merge_s * folds + t.select_s;
}

namespace {

// Which `wanted` of `all` things to take, spread evenly.
std::vector<size_t> evenly(size_t wanted, size_t all) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < wanted; ++i) chosen.push_back((2 * i + 1) * all / (2 * wanted));
  return chosen;
}

double pairs_of(const AttendTask& task, bool causal) {
  int64_t pairs = 0;
  const TokenRange q{task.q.first_token, task.q.token_step, task.q.rows};
  for (const KvRun& kv : task.kv)
    pairs += count_pairs(q, {kv.first_token, kv.token_step, kv.rows}, causal);
  return double(pairs);
}

// Messages into a slot that nobody has needed so far. Those of other rows replace them.
class PendingMessages {
 public:
  void add(size_t op, const Held& into) {
    auto& pending = of_slot_[into.slot];
    if (!pending.empty() && pending.front().into.rows != into.rows) pending.clear();
    pending.push_back({op, into});
  }
  template <class Fn>
  void take(int slot, Fn fn) {
    for (const Message& m : of_slot_[slot]) fn(m.op);
    of_slot_[slot].clear();
  }

 private:
  struct Message {
    size_t op;
    Held into;
  };
  std::map<int, std::vector<Message>> of_slot_;
};

const Held* arrives_in(const Action& what) {
  if (const auto* o = std::get_if<Recv>(&what)) return &o->what;
  if (const auto* o = std::get_if<AllGather>(&what)) return &o->into;
  if (const auto* o = std::get_if<AllToAll>(&what)) return &o->into;
  return nullptr;
}

}  // namespace

void VirtualWalk::run_some(BoundProgram& bound, double share, ShardOutcome& out) {
  const auto& ops = bound.program().ops;
  std::vector<size_t> attends;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (std::holds_alternative<Merge>(ops[i].what)) ++out.share.all_merges;
    if (!std::holds_alternative<Attend>(ops[i].what) || bound.op(i).attends.empty()) continue;
    attends.push_back(i);
    for (const AttendTask& task : bound.op(i).attends)
      out.share.all_pairs += pairs_of(task, bound.options().causal);
  }
  if (attends.empty()) return;
  const double wanted = share * double(attends.size());
  const auto chosen = evenly(size_t(std::ceil(wanted)), attends.size());
  const double of_tasks = wanted / double(chosen.size());
  PendingMessages messages;
  size_t turn = 0;     // among the chosen attends
  bool fresh = false;  // the last attend was run, so its merge is
  for (size_t i = 0; i < ops.size(); ++i) {
    const Action& what = ops[i].what;
    if (const Held* into = arrives_in(what)) messages.add(i, *into);
    if (std::holds_alternative<Merge>(what) && !fresh) continue;
    if (const auto* attend = std::get_if<Attend>(&what)) {
      fresh = turn < chosen.size() && attends[chosen[turn]] == i;
      if (!fresh) continue;
      ++turn;
      {
        Stopwatch watch(out.times.receive_s);
        for (const int slot : {attend->q.slot, attend->kv.slot})
          messages.take(slot, [&](size_t op) { receive(bound, ops[op].what, bound.op(op), out); });
      }
      const auto& tasks = bound.op(i).attends;
      // As many as keep all threads busy to the end, as they are when all tasks run.
      const auto threads = size_t(threads_);
      const size_t rounds = std::max<size_t>(
          1, size_t(std::llround(of_tasks * double(tasks.size()) / double(threads))));
      const size_t count = std::min(rounds * threads, tasks.size());
      std::vector<AttendTask> some;
      for (size_t t : evenly(count, tasks.size())) some.push_back(tasks[t]);
      for (const AttendTask& task : some) out.share.pairs += pairs_of(task, bound.options().causal);
      Stopwatch watch(out.times.attend_s);
      kernel_.attend(some, bound.options(), threads_, workspace_.bytes());
    } else if (!is_communication(what)) {
      const bool merge = std::holds_alternative<Merge>(what);
      out.share.merges += merge;
      Stopwatch watch(merge ? out.times.merge_s : out.times.select_s);
      bound.execute_rows(i);
    }
  }
}

ShardOutcome VirtualWalk::run_share(const WalkUnit& unit, double share) {
  check(share > 0 && share <= 1, "a share of ", share);
  ShardOutcome out;
  out.unit = unit;
  Stopwatch wall(out.times.wall_s);
  const auto bound = prepare(out);
  run_some(*bound, share, out);
  wall.stop();
  return out;
}

}  // namespace longnet
