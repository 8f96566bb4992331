#include "execute/cuda/device_executor.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "core/check.h"
#include "execute/program_rows.h"
#include "kernels/cuda/device_model.h"

namespace longnet {

namespace {
// Tasks that the device works on together, in units of 2048 query rows: sixteen blocks of 128 rows
// each, so that 16 tasks fill the 132 or 148 multiprocessors of a large GPU about twice.
constexpr int kTasksAtOnce = 16;

// Packs, conversions, merges, sums, statistics and resets of an op that computes, and what it does
// of a model's layers, in scratch memory that all ops share.
void prepare_rows(const BoundProgram& bound, OpId id, std::byte* scratch, Prepared& work,
                  MemoryLedger& ledger) {
  const BoundOp& b = bound.op(size_t(id));
  const AttentionProblem& p = bound.sharded().problem;
  const int64_t element = dtype_bytes(p.dtype), d = p.head_dim;
  const auto pack = [&](std::span<const PackTask> tasks, Conversion conversion, int64_t head_dim,
                        int64_t element_bytes) {
    if (!tasks.empty()) work.then(prepare_pack(tasks, conversion, head_dim, element_bytes, ledger));
  };
  pack(b.packs, Conversion::kNone, d, element);
  pack(b.float_packs, Conversion::kNone, d, 4);
  pack(b.lse_packs, Conversion::kNone, 1, 4);
  pack(b.rounds, Conversion::kRound, d, element);
  pack(b.widens, Conversion::kWiden, d, element);
  if (!b.merges.empty())
    work.then(prepare_merge(b.merges, bound.merge_rule(), p.head_dim, ledger, p.output_dtype));
  if (!b.sums.empty()) work.then(prepare_add(b.sums, p.head_dim, ledger));
  if (!b.deltas.empty()) work.then(prepare_delta(b.deltas, p.head_dim, ledger));
  const auto fill = [&](std::span<const std::span<float>> parts, float value) {
    for (const std::span<float> part : parts)
      work.then([=](const Stream& stream) {
        fill_floats(part.data(), int64_t(part.size()), value, stream);
      });
  };
  fill(b.zeros, 0.0f);
  fill(b.absent, -std::numeric_limits<float>::infinity());
  for (const ModelTask& task : b.tasks) work.then(prepare_model_task(task, ledger, scratch));
}

// The messages of a send, a receive or an all-to-all, without empty ones.
Transfers messages_of(const BoundOp& b, Rank me) {
  Transfers list;
  if (!b.from_counts.empty())
    list_all_to_all(b.group, me, b.from, b.from_counts, b.into, b.into_counts, list);
  else if (!b.from.empty())
    list.push_back(message_to(b.peer, b.from));
  else if (!b.into.empty())
    list.push_back(message_from(b.peer, b.into));
  return list;
}

}  // namespace

DeviceExecutor::DeviceExecutor(const Schedule& schedule, Rank rank, const DeviceKernel& kernel,
                               DeviceTransport* transport, const Options& options,
                               MemoryLedger& ledger, std::unique_ptr<DeviceExecutor> before)
    : kernel_(kernel), transport_(transport), options_(options), ledger_(ledger) {
  check(transport_ != nullptr || options.virtual_ranks || schedule.sharded.layout.world_size() == 1,
        "several ranks need a transport");
  check(options_.share == 1 || options_.virtual_ranks, "only virtual ranks run in part");
  bind(schedule, rank);
  make_rounds();
  ShareChoice choice;
  if (options_.share < 1)
    choice = choose_share(*bound_, options_.share, kTasksAtOnce);
  else if (kernel_.merges() && bound_->merge_rule() == MergeRule::kLse)
    take_merges_into_attends();
  share_ = choice.share;
  if (before) take_plans(*before);
  before.reset();
  for (size_t i = 0; i < ops_.size(); ++i) prepare(OpId(i), choice);
}

void DeviceExecutor::bind(const Schedule& schedule, Rank rank) {
  RankProgram program = schedule.program(rank);
  BoundProgram::Memory memory = options_.memory;
  const auto kind = communicates() ? DeviceBuffer::Kind::kShared : DeviceBuffer::Kind::kPrivate;
  for (const Slot& slot : program.slots) {
    if (!options_.memory.empty()) break;
    slots_.emplace_back(ledger_, std::string(to_string(slot.tag)), slot.bytes, kind);
    memory.emplace_back(slots_.back().data(), size_t(slot.bytes));
  }
  bound_ = std::make_unique<BoundProgram>(
      schedule, std::move(program), BindOptions{.rank = rank, .first_batch = options_.first_batch},
      std::move(memory));
  ops_.resize(bound_->program().ops.size());
  times_.resize(ops_.size());
  int64_t scratch = 0;
  for (size_t op = 0; op < ops_.size(); ++op)
    for (const ModelTask& task : bound_->op(op).tasks)
      scratch = std::max(scratch, model_workspace_bytes(task));
  if (scratch > 0) model_scratch_ = DeviceBuffer(ledger_, kWorkspaceTag, scratch);
}

void DeviceExecutor::make_rounds() {
  for (CommRound& round : comm_rounds(program())) {
    for (const OpId op : round) ops_[size_t(op)].round = int(rounds_.size());
    rounds_.push_back({.ops = std::move(round)});
  }
}

void DeviceExecutor::take_merges_into_attends() {
  for (const auto& [merge, attend] : fusible_merges(program())) {
    auto fused = bound_->bind_fused(attend, merge);
    if (!fused) continue;
    DeviceOp& op = ops_[size_t(merge)];
    op.fused = std::move(fused);
    op.also_after = attend;
    ops_[size_t(attend)].skipped = true;
  }
}

void DeviceExecutor::take_plans(DeviceExecutor& from) {
  if (options_.share < 1 || from.options_.share < 1) return;  // they run parts of attends
  for (size_t i = 0; i < std::min(ops_.size(), from.ops_.size()); ++i) {
    DeviceOp &op = ops_[i], &other = from.ops_[i];
    if (op.skipped || other.skipped || op.fused.has_value() != other.fused.has_value()) continue;
    op.planned = !attends_of(i).empty() && same_tasks(attends_of(i), from.attends_of(i));
    if (op.planned) op.work = std::move(other.work);
  }
}

DeviceAttendOptions DeviceExecutor::attend_options(bool merge) const {
  const AttendOptions& o = bound_->options();
  check(o.dtype == DType::kBFloat16, "GPU kernels read bf16, not ", to_string(o.dtype));
  return {.head_dim = o.head_dim,
          .causal = o.causal,
          .output_scale = o.output_scale,
          .merge = merge,
          .output_dtype = o.output_dtype,
          .concurrent = communicates() && transport_->takes_multiprocessors()};
}

Prepared DeviceExecutor::prepare_attend(std::span<const AttendGrid> grids, bool merge) const {
  return kernel_.prepare(grids, attend_options(merge), ledger_);
}

void DeviceExecutor::prepare(OpId id, const ShareChoice& choice) {
  DeviceOp& op = ops_[size_t(id)];
  const Op& what = program().ops[size_t(id)];
  for (auto* event : {&op.begin, &op.end, &op.asked}) event->emplace(Event::Kind::kTiming);
  if (options_.share < 1 && !choice.runs[size_t(id)]) {
    op.skipped = true;
    return;
  }
  if (is_communication(what.what)) {
    for (const OpId a : what.after)
      if (!is_communication(program().ops[size_t(a)].what)) ops_[size_t(a)].done.emplace();
    if (options_.virtual_ranks) op.work = prepare_virtual_message(id);
    return;
  }
  if (op.skipped) return;
  const std::span<const AttendGrid> attends =
      options_.share < 1 ? choice.attends[size_t(id)] : attends_of(size_t(id));
  const std::span<const BackwardGrid> backwards =
      options_.share < 1 ? choice.backwards[size_t(id)] : bound_->op(size_t(id)).backwards;
  if (!attends.empty() && !op.planned) op.work = prepare_attend(attends, op.fused.has_value());
  if (op.fused || !attends.empty()) return;  // they have no rows beside
  if (!backwards.empty()) op.work = kernel_.prepare_backward(backwards, attend_options(), ledger_);
  prepare_rows(*bound_, id, model_scratch_.data(), op.work, ledger_);
}

void DeviceExecutor::open() {
  if (communicates()) {
    std::vector<std::span<std::byte>> buffers;
    for (const DeviceBuffer& slot : slots_) buffers.emplace_back(slot.data(), size_t(slot.size()));
    transport_->open(buffers);
    for (const Op& op : program().ops)
      if (const auto* gather = std::get_if<AllGather>(&op.what))
        transport_->open_group(gather->group);
  }
  for (size_t slot = 0; slot < program().slots.size(); ++slot) {
    const std::span<std::byte> bytes = bound_->memory(int(slot));
    compute_.fill(bytes.data(), 0xFF, int64_t(bytes.size()));
  }
}

void DeviceExecutor::fill_inputs() {
  open();
  compute_.synchronize();
  longnet::fill_inputs(*bound_, *make_device_row_worker());
}

std::unique_ptr<Executor> DeviceExecutor::in_same_memory(const Schedule& schedule) const {
  const Rank rank = bound_->rank();
  Options options = options_;
  options.memory = bound_->memory_for(schedule.program(rank));
  return std::make_unique<DeviceExecutor>(schedule, rank, kernel_, transport_, options, ledger_);
}

std::vector<std::span<std::byte>> DeviceExecutor::poisoned() const {
  auto memory = Executor::poisoned();
  for (const DeviceOp& op : ops_)
    for (const DeviceBuffer& scratch : op.work.workspaces()) memory.push_back(scratch.bytes());
  if (model_scratch_.size() > 0) memory.push_back(model_scratch_.bytes());
  return memory;
}

void DeviceExecutor::post(size_t index, RunMode mode) {
  Round& round = rounds_[index];
  for (const OpId op : round.ops)
    for (const OpId a : program().ops[size_t(op)].after) {
      const DeviceOp& before = ops_[size_t(a)];
      if (before.round >= 0) {
        if (before.round != int(index) && rounds_[size_t(before.round)].ticket >= 0)
          transport_->complete(rounds_[size_t(before.round)].ticket, comm_);
      } else if (before.done && mode != RunMode::kCommunicationOnly) {
        comm_.wait(*before.done);
      }
    }
  note(ops_[size_t(round.last())].begin, comm_);
  const BoundOp& last = bound_->op(size_t(round.last()));
  if (std::holds_alternative<AllGather>(program().ops[size_t(round.last())].what)) {
    round.ticket = transport_->post_gather({last.group, last.into, last.into_counts}, comm_);
  } else {
    Transfers transfers;
    for (const OpId op : round.ops) {
      const BoundOp& b = bound_->op(size_t(op));
      if (!b.from_counts.empty()) {
        const int me = b.group.index_of(bound_->rank());
        const auto own = part_of(b.from, b.from_counts, me);
        comm_.copy(part_of(b.into, b.into_counts, me).data(), own.data(), int64_t(own.size()));
      }
      std::ranges::copy(messages_of(b, bound_->rank()), std::back_inserter(transfers));
    }
    round.ticket = transport_->post(transfers, comm_);
  }
  if (mode == RunMode::kSerialised) transport_->complete(round.ticket, compute_);
}

void DeviceExecutor::complete(Round& round) {
  if (round.ticket < 0) return;
  transport_->complete(round.ticket, compute_);
  if (!round.known_over) note(ops_[size_t(round.last())].end, compute_);
  round.known_over = true;
}

void DeviceExecutor::wait_for_messages(OpId id) {
  for (const OpId a : program().ops[size_t(id)].after)
    if (const int round = ops_[size_t(a)].round; round >= 0) complete(rounds_[size_t(round)]);
}

double DeviceExecutor::run(RunMode mode) {
  for (Round& round : rounds_) {
    round.ticket = -1;
    round.known_over = false;
  }
  begin_.record(compute_);
  comm_.wait(begin_);
  for (size_t i = 0; i < ops_.size(); ++i) {
    DeviceOp& op = ops_[i];
    if (op.round >= 0 && communicates()) {
      if (mode == RunMode::kComputeOnly || rounds_[size_t(op.round)].last() != OpId(i)) continue;
      if (mode == RunMode::kSerialised) {
        end_.record(compute_);
        comm_.wait(end_);
      }
      post(size_t(op.round), mode);
      continue;
    }
    if (mode == RunMode::kCommunicationOnly) continue;
    note(op.asked, compute_);
    if (!op.skipped) {
      wait_for_messages(OpId(i));
      if (op.also_after >= 0) wait_for_messages(op.also_after);
    }
    note(op.begin, compute_);
    if (!op.skipped) op.work.launch(compute_);
    note(op.end, compute_);
    if (op.done) op.done->record(compute_);
    if (op.also_after >= 0 && ops_[size_t(op.also_after)].done)
      ops_[size_t(op.also_after)].done->record(compute_);
  }
  for (Round& round : rounds_) complete(round);
  end_.record(compute_);
  if (communicates()) {
    transport_->wait_for(end_);  // throws when a rank has failed: end_ would not come
    transport_->finish();
  } else {
    end_.synchronize();
  }
  if (timing_ && (mode == RunMode::kFull || mode == RunMode::kComputeOnly)) collect_times(mode);
  return end_.seconds_since(begin_);
}

double DeviceExecutor::replay() {
  check(can_replay(), "a program that communicates cannot be replayed");
  if (!graph_)
    graph_ = std::make_unique<Graph>(compute_, [&] {
      for (const DeviceOp& op : ops_)
        if (!op.skipped) op.work.launch(compute_);
    });
  begin_.record(compute_);
  graph_->launch(compute_);
  end_.record(compute_);
  end_.synchronize();
  return end_.seconds_since(begin_);
}

bool DeviceExecutor::times_merges() const {
  for (size_t i = 0; i < ops_.size(); ++i)
    if (std::holds_alternative<Merge>(program().ops[i].what) && ops_[i].also_after < 0) return true;
  return false;
}

void DeviceExecutor::collect_times(RunMode mode) {
  phases_ = {};
  receive_s_ = 0;
  for (size_t i = 0; i < ops_.size(); ++i) {
    const DeviceOp& op = ops_[i];
    const Action& what = program().ops[i].what;
    if (op.round >= 0 && communicates()) {
      times_[i] = {};
      if (mode == RunMode::kComputeOnly) continue;
      const DeviceOp& last = ops_[size_t(rounds_[size_t(op.round)].last())];
      times_[i] = {last.begin->seconds_since(begin_), last.end->seconds_since(begin_)};
      continue;
    }
    times_[i] = {op.begin->seconds_since(begin_), op.end->seconds_since(begin_)};
    phases_.exposed_communication_s += op.begin->seconds_since(*op.asked);
    const double took = op.end->seconds_since(*op.begin);
    if (op.also_after >= 0) {  // a merge that the attend does
      times_[size_t(op.also_after)] = times_[i];
      times_[i].begin_s = times_[i].end_s;
      phases_.add(program().ops[size_t(op.also_after)].what, took);
    } else if (is_communication(what)) {
      receive_s_ += took;
    } else {
      phases_.add(what, took);
    }
  }
}

}  // namespace longnet
