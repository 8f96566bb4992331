#include "execute/virtual_walk.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/check.h"
#include "core/stopwatch.h"
#include "execute/program_executor.h"
#include "execute/program_rows.h"

namespace longnet {
namespace {

// Returns `wanted` indices below `all`, spread evenly.
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

double pairs_of(const std::vector<AttendGrid>& grids, bool causal) {
  double pairs = 0;
  for (const AttendGrid& grid : grids) pairs += double(grid.size()) * pairs_of(grid.task, causal);
  return pairs;
}

// Tasks in pieces of at most kRowsPerPiece queries.
class Pieces {
 public:
  Pieces(const std::vector<AttendGrid>& grids, int64_t element_bytes)
      : grids_(grids), element_bytes_(element_bytes) {
    for (const AttendGrid& grid : grids)
      end_.push_back(int64_t(size()) + grid.size() * ceil_div(grid.task.q.rows, kRowsPerPiece));
  }
  size_t size() const { return end_.empty() ? 0 : size_t(end_.back()); }
  AttendGrid operator[](size_t i) const {
    const auto found = std::ranges::upper_bound(end_, int64_t(i));
    const AttendGrid& grid = grids_[size_t(found - end_.begin())];
    const int64_t rows = grid.task.q.rows, pieces = ceil_div(rows, kRowsPerPiece);
    const int64_t at = int64_t(i) - (found == end_.begin() ? 0 : *(found - 1));
    const int64_t first = at % pieces * kRowsPerPiece;
    return {.task = rows_of(grid.at(at / pieces), first, std::min(kRowsPerPiece, rows - first),
                            element_bytes_)};
  }

 private:
  static constexpr int64_t kRowsPerPiece = 2048;
  const std::vector<AttendGrid>& grids_;
  int64_t element_bytes_;
  std::vector<int64_t> end_;  // one past the last piece of each grid
};

constexpr int64_t kAlign = 64;

class VirtualWalk final : public UnitWalk {
 public:
  VirtualWalk(const AttentionProblem& problem, MakeSchedule make_schedule,
              std::shared_ptr<const AttentionKernel> kernel, int threads, MemoryLedger& ledger)
      : UnitWalk(problem, std::move(make_schedule), make_cpu_row_worker(), ledger),
        kernel_(std::move(kernel)),
        threads_(threads) {}

 private:
  void execute(const Samples* samples, double share, ShardOutcome& out) override {
    const auto bound = prepare(out);
    const Compare compare = [&](const AttentionProblem& p, const Samples& of) {
      return compare_samples(*bound, expected_rows(*bound, p, of));
    };
    if (samples) inspect_poisoned(*samples, compare, out);
    {
      Stopwatch watch(out.times.generate_s);
      out.input_digest = fill_inputs(*bound, *worker_);
    }
    ShareChoice choice;
    if (!samples) choice = choose_share(*bound, share, threads_);
    out.share = choice.share;
    for (size_t i = 0; i < bound->program().ops.size(); ++i)
      if (samples)
        run_op(*bound, i, bound->op(i).attends, out);
      else if (choice.runs[i])
        run_op(*bound, i, choice.attends[i], out);
    if (samples) inspect(*bound, *samples, compare, out);
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
    Stopwatch watch(out.times.poison_s);
    poison(*bound, *worker_);
    worker_->poison(workspace_.bytes(), threads_);
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

double WalkShare::forward_s(double attend_s, double merge_s, double pack_s) const {
  const double attends = pairs > 0 ? all_pairs / pairs : 1;
  const double folds = merges > 0 ? double(all_merges) / double(merges) : 1;
  return attend_s * attends + merge_s * folds + pack_s;
}

ShareChoice choose_share(const BoundProgram& bound, double share, int at_once) {
  check(share > 0 && share <= 1, "a share of ", share);
  const auto& ops = bound.program().ops;
  const bool causal = bound.options().causal;
  ShareChoice out{.runs = std::vector<bool>(ops.size(), false),
                  .attends = std::vector<std::vector<AttendGrid>>(ops.size()),
                  .share = {}};
  std::vector<size_t> attends;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (std::holds_alternative<Merge>(ops[i].what)) ++out.share.all_merges;
    if (!std::holds_alternative<Attend>(ops[i].what) || bound.op(i).attends.empty()) continue;
    attends.push_back(i);
    out.share.all_pairs += pairs_of(bound.op(i).attends, causal);
  }
  if (attends.empty()) return out;
  const double wanted = share * double(attends.size());
  const auto chosen = evenly(size_t(std::ceil(wanted)), attends.size());
  const double of_tasks = wanted / double(chosen.size());
  // Messages that no attend has read so far, by slot. Messages of other rows replace them.
  struct Message {
    size_t op;
    Slice rows;
  };
  std::map<int, std::vector<Message>> pending;
  size_t turn = 0;     // index among the chosen attends
  bool fresh = false;  // the last attend runs, and so does its merge
  for (size_t i = 0; i < ops.size(); ++i) {
    const Action& what = ops[i].what;
    if (is_communication(what))
      for_each_view(what, [&](const SlotView& view, bool writes) {
        if (!writes) return;
        auto& messages = pending[view.slot];
        if (!messages.empty() && messages.front().rows != view.rows) messages.clear();
        messages.push_back({i, view.rows});
      });
    if (const auto* attend = std::get_if<Attend>(&what)) {
      fresh = turn < chosen.size() && attends[chosen[turn]] == i;
      if (!fresh) continue;
      ++turn;
      for (const int slot : {attend->q.slot, attend->kv.slot}) {
        for (const Message& m : pending[slot]) out.runs[m.op] = true;
        pending[slot].clear();
      }
      // Runs whole rounds of tasks: they keep the device busy to the end, as all tasks together do.
      const Pieces tasks(bound.op(i).attends, dtype_bytes(bound.options().dtype));
      const auto round = size_t(at_once);
      const size_t rounds = std::max<size_t>(
          1, size_t(std::llround(of_tasks * double(tasks.size()) / double(round))));
      for (const size_t t : evenly(std::min(rounds * round, tasks.size()), tasks.size()))
        out.attends[i].push_back(tasks[t]);
      out.share.pairs += pairs_of(out.attends[i], causal);
      out.runs[i] = true;
    } else if (!is_communication(what)) {
      const bool merge = std::holds_alternative<Merge>(what);
      out.runs[i] = !merge || fresh;
      out.share.merges += merge && fresh;
    }
  }
  return out;
}

std::map<std::string, int64_t> walk_memory(const RankProgram& program) {
  return program.memory_by_tag(kAlign);
}

std::string why_not_virtual(const RankProgram& program) {
  if (has_backward(program.pass)) return "a walk has no backward pass yet";
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

ShardOutcome UnitWalk::walk(const WalkUnit& unit, const Samples* samples, double share) {
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

void UnitWalk::inspect_poisoned(const Samples& samples, const Compare& compare, ShardOutcome& out) {
  if (samples.empty() || std::exchange(poisoned_inspected_, true)) return;
  Stopwatch watch(out.times.check_s);
  out.poisoned = compare(problem_, {samples.front()});
}

void UnitWalk::inspect(const BoundProgram& bound, const Samples& samples, const Compare& compare,
                       ShardOutcome& out) const {
  for (int slot = 0; slot < int(bound.program().slots.size()); ++slot)
    out.slot_bytes += int64_t(bound.memory(slot).size());
  {
    Stopwatch watch(out.times.summarize_s);
    out.heads = summarize_output(bound, *worker_);
  }
  Stopwatch watch(out.times.check_s);
  out.errors = compare(problem_, samples);
}

std::unique_ptr<UnitWalk> make_virtual_walk(const AttentionProblem& problem,
                                            UnitWalk::MakeSchedule make_schedule,
                                            std::shared_ptr<const AttentionKernel> kernel,
                                            int threads, MemoryLedger& ledger) {
  return std::make_unique<VirtualWalk>(problem, std::move(make_schedule), std::move(kernel),
                                       threads, ledger);
}

}  // namespace longnet
