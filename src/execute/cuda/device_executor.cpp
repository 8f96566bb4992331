#include "execute/cuda/device_executor.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "core/check.h"
#include "execute/cuda/comm_rounds.h"
#include "execute/cuda/task_lists.h"
#include "execute/row_tasks.h"
#include "kernels/cuda/rows.h"
#include "kernels/reference/reference_kernel.h"

namespace longnet {

namespace {
// Of 2048 query rows: sixteen blocks of 128 each, which fill the 132 or 148 multiprocessors of
// today's large GPUs about twice.
constexpr int kTasksAtOnce = 16;
}  // namespace

// What enqueueing an op needs. Events with `Kind::kTiming` exist only when times are asked for.
struct DeviceExecutor::DeviceOp {
  std::unique_ptr<PreparedAttend> attend;
  std::vector<DevicePack> packs;
  std::vector<DeviceConvert> converts;
  std::unique_ptr<DeviceMerge> merge;
  std::unique_ptr<DeviceFill> fill;  // virtual ranks: what others would send
  struct OwnPart {
    std::byte* into;
    const std::byte* from;
    int64_t bytes;
  };
  std::optional<OwnPart> own_part;  // of an all-to-all
  bool skipped = false;             // runs as part of a later op
  OpId also_after = -1;             // the op that runs as part of this one
  int round = -1;                   // of a communication
  std::optional<Event> done;        // of computing ops that communications wait for
  std::optional<Event> begin, end;  // timing; of a computing op from when its messages are there
  std::optional<Event> asked;       // timing; before it waits for messages
};

struct DeviceExecutor::Round {
  std::vector<OpId> ops;
  OpId last = -1;
  DeviceTransport::Ticket ticket = -1;
  bool known_over = false;
  std::optional<Event> begin, end;  // timing; the end is when an op first knew of it
};

DeviceExecutor::~DeviceExecutor() = default;

DeviceExecutor::DeviceExecutor(const Schedule& schedule, Rank rank, const DeviceKernel& kernel,
                               DeviceTransport* transport, const Options& options,
                               MemoryLedger& ledger)
    : kernel_(kernel),
      transport_(transport),
      options_(options),
      ledger_(ledger),
      binder_(make_reference_kernel()),
      comm_(Stream::Priority::kHigh),
      begin_(Event::Kind::kTiming),
      end_(Event::Kind::kTiming) {
  RankProgram program = schedule.program(rank);
  check(transport_ != nullptr || options.virtual_ranks || schedule.sharded.layout.world_size() == 1,
        "several ranks need a transport");
  BoundProgram::Memory memory;
  const auto kind = communicates() ? DeviceBuffer::Kind::kShared : DeviceBuffer::Kind::kPrivate;
  for (const Slot& slot : program.slots) {
    slots_.emplace_back(ledger, std::string(to_string(slot.tag)), slot.bytes, kind);
    memory.emplace_back(slots_.back().data(), size_t(slot.bytes));
  }
  bound_ = std::make_unique<BoundProgram>(schedule, std::move(program), rank, *binder_, 1,
                                          std::move(memory));
  const auto& ops = bound_->program().ops;
  ops_.resize(ops.size());
  times_.resize(ops.size());
  for (const CommRound& round : comm_rounds(bound_->program())) {
    for (const OpId op : round.ops) ops_[size_t(op)].round = int(rounds_.size());
    Round& r = rounds_.emplace_back();
    r.ops = round.ops;
    r.last = round.ops.back();
    if (options_.times) r.begin.emplace(Event::Kind::kTiming), r.end.emplace(Event::Kind::kTiming);
  }
  const bool in_part = options_.share < 1;
  check(!in_part || options_.virtual_ranks, "only virtual ranks run in part");
  const ShareChoice choice =
      in_part ? choose_share(*bound_, options_.share, kTasksAtOnce) : ShareChoice{};
  share_ = choice.share;
  const bool fuse = !in_part && options_.fuse_merges && kernel_.merges() &&
                    schedule.sharded.pattern.mix == MixRule::kLse;
  if (fuse)
    for (const auto& [merge, attend] : fusible_merges(bound_->program())) {
      const auto tasks =
          fuse_merges(bound_->op(size_t(attend)).attends, bound_->op(size_t(merge)).merges);
      if (!tasks) continue;
      prepare_attend(merge, *tasks, true);
      ops_[size_t(merge)].also_after = attend;
      ops_[size_t(attend)].skipped = true;
    }
  for (size_t i = 0; i < ops.size(); ++i) prepare(OpId(i), choice);
}

void DeviceExecutor::prepare_attend(OpId op, std::span<const AttendTask> tasks, bool merge) {
  const AttendOptions& o = bound_->options();
  check(o.dtype == DType::kBFloat16, "GPU kernels read bf16, not ", to_string(o.dtype));
  const auto joined = join_tasks(tasks);
  ops_[size_t(op)].attend =
      kernel_.prepare(joined,
                      {.head_dim = o.head_dim,
                       .causal = o.causal,
                       .output_scale = o.output_scale,
                       .merge = merge,
                       .concurrent = communicates() && transport_->takes_multiprocessors()},
                      ledger_);
}

void DeviceExecutor::prepare(OpId id, const ShareChoice& choice) {
  DeviceOp& op = ops_[size_t(id)];
  const Op& what = bound_->program().ops[size_t(id)];
  const BoundOp& b = bound_->op(size_t(id));
  const AttentionProblem& p = sharded().problem;
  if (options_.times) {
    op.begin.emplace(Event::Kind::kTiming);
    op.end.emplace(Event::Kind::kTiming);
    op.asked.emplace(Event::Kind::kTiming);
  }
  if (options_.share < 1 && !choice.runs[size_t(id)]) {
    op.skipped = true;
    return;
  }
  if (is_communication(what.what)) {
    for (const OpId a : what.after)
      if (!is_communication(program().ops[size_t(a)].what)) ops_[size_t(a)].done.emplace();
    if (options_.virtual_ranks) prepare_messages(id);
    return;
  }
  if (op.skipped || op.attend) return;
  const auto& attends = options_.share < 1 ? choice.attends[size_t(id)] : b.attends;
  if (!attends.empty()) prepare_attend(id, attends, false);
  const int64_t row = p.head_dim * dtype_bytes(p.dtype);
  if (!b.packs.empty()) op.packs.emplace_back(b.packs, row, dtype_bytes(p.dtype), ledger_);
  if (!b.float_packs.empty()) op.packs.emplace_back(b.float_packs, p.head_dim * 4, 4, ledger_);
  using Direction = DeviceConvert::Direction;
  for (const auto& [list, direction] :
       {std::pair{&b.rounds, Direction::kRound}, std::pair{&b.widens, Direction::kWiden}})
    if (!list->empty()) op.converts.emplace_back(*list, direction, p.head_dim, ledger_);
  std::vector<PackTask> lse;
  for (const LseCopy& c : b.lse_copies)
    lse.push_back({c.from, c.into, c.from_stride, c.into_stride, c.rows});
  if (!lse.empty()) op.packs.emplace_back(lse, 4, 4, ledger_);
  const MergeRule rule = sharded().pattern.mix == MixRule::kLse ? MergeRule::kLse : MergeRule::kSum;
  if (!b.merges.empty())
    op.merge = std::make_unique<DeviceMerge>(b.merges, rule, p.head_dim, ledger_);
}

// What other ranks would send is generated in the place where it would arrive.
void DeviceExecutor::prepare_messages(OpId id) {
  DeviceOp& op = ops_[size_t(id)];
  const BoundOp& b = bound_->op(size_t(id));
  std::vector<FillRows> tasks;
  const auto make = [&](const SlotView& held) {
    const TensorKind kind = program().slots[size_t(held.slot)].kind;
    const auto some =
        fill_tasks(sharded(), kind, held, slots_[size_t(held.slot)].data(), options_.first_batch);
    tasks.insert(tasks.end(), some.begin(), some.end());
  };
  const auto make_all_but = [&](const SlotView& held, int own) {
    make(held.range(0, own));
    make(held.range(own + 1, held.rows.num_pieces() - own - 1));
  };
  std::visit(
      Overload{[&](const Recv& o) { make(o.what); },
               [&](const AllGather& o) { make_all_but(o.into, o.group.index_of(bound_->rank())); },
               [&](const AllToAll& o) {
                 const int own = o.group.index_of(bound_->rank());
                 make_all_but(o.into, own);
                 op.own_part = {b.into.data(), b.from.data(), b.from_counts[size_t(own)]};
                 for (int i = 0; i < own; ++i) {
                   op.own_part->into += b.into_counts[size_t(i)];
                   op.own_part->from += b.from_counts[size_t(i)];
                 }
               },
               [](const auto&) {}},
      program().ops[size_t(id)].what);
  const AttentionProblem& p = sharded().problem;
  for (const FillRows& t : tasks) received_bytes_ += t.rows * p.head_dim * dtype_bytes(p.dtype);
  op.fill = std::make_unique<DeviceFill>(tasks, p.seed, p.head_dim, StoredAs::kBFloat16, ledger_);
}

int64_t DeviceExecutor::task_list_bytes() const {
  const auto it = ledger_.peak_by_tag().find("task_lists");
  return it == ledger_.peak_by_tag().end() ? 0 : it->second;
}

void DeviceExecutor::fill_inputs() {
  if (communicates()) {
    std::vector<std::span<std::byte>> buffers;
    for (const DeviceBuffer& slot : slots_) buffers.emplace_back(slot.data(), size_t(slot.size()));
    transport_->open(buffers);
    for (const Op& op : program().ops)
      if (const auto* gather = std::get_if<AllGather>(&op.what))
        transport_->open_group(gather->group);
  }
  for (const DeviceBuffer& slot : slots_) compute_.fill(slot.data(), 0xFF, slot.size());
  const AttentionProblem& p = sharded().problem;
  const Slice own{
      kEveryRow, {.first = bound_->rank()}, sharded().all_tokens(), sharded().all_heads()};
  for (const TensorKind kind : {TensorKind::kQuery, TensorKind::kKeyValue}) {
    const int slot = kind == TensorKind::kQuery ? kQuerySlot : kKvSlot;
    const auto tasks =
        fill_tasks(sharded(), kind, {slot, own}, slots_[size_t(slot)].data(), options_.first_batch);
    MemoryLedger lists;  // gone before anything is measured
    const DeviceFill fill(tasks, p.seed, p.head_dim, StoredAs::kBFloat16, lists);
    fill.launch(compute_);
    compute_.synchronize();
  }
}

std::vector<Transfer> DeviceExecutor::transfers_of(OpId id, const Stream& stream) {
  const BoundOp& b = bound_->op(size_t(id));
  std::vector<Transfer> transfers;
  std::visit(Overload{[&](const Send&) {
                        transfers.push_back(
                            {Transfer::Kind::kSend, b.peer, b.from.data(), int64_t(b.from.size())});
                      },
                      [&](const Recv&) {
                        transfers.push_back(
                            {Transfer::Kind::kRecv, b.peer, b.into.data(), int64_t(b.into.size())});
                      },
                      [&](const AllToAll&) {
                        std::byte *from = b.from.data(), *into = b.into.data();
                        for (int i = 0; i < b.group.count; ++i) {
                          const int64_t out = b.from_counts[size_t(i)],
                                        in = b.into_counts[size_t(i)];
                          if (b.group[i] == bound_->rank()) {
                            stream.copy(into, from, out);
                          } else {
                            transfers.push_back({Transfer::Kind::kSend, b.group[i], from, out});
                            transfers.push_back({Transfer::Kind::kRecv, b.group[i], into, in});
                          }
                          from += out;
                          into += in;
                        }
                      },
                      [](const auto&) {}},
             program().ops[size_t(id)].what);
  return transfers;
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
  note(round.begin, comm_);
  const auto* const gather = std::get_if<AllGather>(&program().ops[size_t(round.last)].what);
  if (gather != nullptr) {
    const BoundOp& b = bound_->op(size_t(round.last));
    round.ticket = transport_->post_gather(b.group, b.into.data(), b.into_counts, comm_);
  } else {
    std::vector<Transfer> transfers;
    for (const OpId op : round.ops) {
      const auto some = transfers_of(op, comm_);
      transfers.insert(transfers.end(), some.begin(), some.end());
    }
    round.ticket = transport_->post(transfers, comm_);
  }
  if (mode == RunMode::kSerialised) transport_->complete(round.ticket, compute_);
}

void DeviceExecutor::complete(Round& round, const Stream& waiting) {
  transport_->complete(round.ticket, waiting);
  if (!round.known_over) note(round.end, waiting);
  round.known_over = true;
}

void DeviceExecutor::wait_for_messages(OpId id, const Stream& waiting) {
  for (const OpId a : program().ops[size_t(id)].after) {
    const int round = ops_[size_t(a)].round;
    if (round < 0 || rounds_[size_t(round)].ticket < 0) continue;
    complete(rounds_[size_t(round)], waiting);
  }
}

void DeviceExecutor::enqueue(OpId id) {
  DeviceOp& op = ops_[size_t(id)];
  if (op.attend) op.attend->launch(compute_);
  for (const DevicePack& pack : op.packs) pack.launch(compute_);
  for (const DeviceConvert& convert : op.converts) convert.launch(compute_);
  if (op.merge) op.merge->launch(compute_);
  if (op.fill) op.fill->launch(compute_);
  if (op.own_part) compute_.copy(op.own_part->into, op.own_part->from, op.own_part->bytes);
  const BoundOp& b = bound_->op(size_t(id));
  for (const std::span<float> zeros : b.zeros)
    fill_floats(zeros.data(), int64_t(zeros.size()), 0.0f, compute_);
  for (const std::span<float> absent : b.absent)
    fill_floats(absent.data(), int64_t(absent.size()), -std::numeric_limits<float>::infinity(),
                compute_);
}

// A device that waits for a rank which has failed would wait for ever.
void DeviceExecutor::wait_for_end() {
  if (!communicates()) return end_.synchronize();
  transport_->wait_for(end_);
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
      if (mode == RunMode::kComputeOnly || rounds_[size_t(op.round)].last != OpId(i)) continue;
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
      wait_for_messages(OpId(i), compute_);
      if (op.also_after >= 0) wait_for_messages(op.also_after, compute_);
    }
    note(op.begin, compute_);
    if (!op.skipped) enqueue(OpId(i));
    note(op.end, compute_);
    if (op.done) op.done->record(compute_);
    if (op.also_after >= 0 && ops_[size_t(op.also_after)].done)
      ops_[size_t(op.also_after)].done->record(compute_);
  }
  for (Round& round : rounds_) {
    if (round.ticket < 0) continue;
    complete(round, compute_);
  }
  end_.record(compute_);
  wait_for_end();
  if (communicates()) transport_->finish();
  if (timing_ && (mode == RunMode::kFull || mode == RunMode::kComputeOnly)) collect_times(mode);
  return end_.seconds_since(begin_);
}

double DeviceExecutor::replay() {
  check(can_replay(), "a program that communicates cannot be replayed");
  if (!graph_)
    graph_ = std::make_unique<Graph>(compute_, [&] {
      for (size_t i = 0; i < ops_.size(); ++i)
        if (!ops_[i].skipped) enqueue(OpId(i));
    });
  begin_.record(compute_);
  graph_->launch(compute_);
  end_.record(compute_);
  end_.synchronize();
  return end_.seconds_since(begin_);
}

void DeviceExecutor::collect_times(RunMode mode) {
  phases_ = {};
  attend_s_ = receive_s_ = 0;
  for (size_t i = 0; i < ops_.size(); ++i) {
    const DeviceOp& op = ops_[i];
    const Action& what = program().ops[i].what;
    if (op.round >= 0 && communicates()) {
      times_[i] = {};
      if (mode == RunMode::kComputeOnly) continue;
      const Round& round = rounds_[size_t(op.round)];
      times_[i] = {round.begin->seconds_since(begin_), round.end->seconds_since(begin_)};
      continue;
    }
    times_[i] = {op.begin->seconds_since(begin_), op.end->seconds_since(begin_)};
    phases_.exposed_communication_s += op.begin->seconds_since(*op.asked);
    if (op.also_after >= 0) {  // a merge that the attend does
      times_[size_t(op.also_after)] = times_[i];
      times_[i].begin_s = times_[i].end_s;
    }
    const double took = op.end->seconds_since(*op.begin);
    if (op.attend) attend_s_ += took;
    if (is_communication(what))
      receive_s_ += took;
    else if (std::holds_alternative<Merge>(what) && op.also_after < 0)
      phases_.merge_s += took;
    else
      phases_.compute_s += took;
  }
}

uint64_t DeviceExecutor::digest_inputs(const RowWorker& worker) const {
  return bound_->digest_inputs(worker, options_.first_batch);
}

std::vector<OutputSummary> DeviceExecutor::summarize_output(const RowWorker& worker) const {
  return bound_->summarize_output(worker, options_.first_batch);
}

int64_t DeviceExecutor::count_nan() {
  MemoryLedger ledger;
  DeviceBuffer total(ledger, "check", sizeof(unsigned long long));
  const DeviceBuffer& output = slots_[kOutputSlot];
  compute_.fill(total.data(), 0, total.size());
  const AttentionProblem& p = sharded().problem;
  const int64_t rows = p.batch * shard().tokens() * p.num_heads;
  longnet::count_nan(reinterpret_cast<const float*>(output.data()),
                     rows * (p.head_dim + bound_->output_has_lse()),
                     reinterpret_cast<unsigned long long*>(total.data()), compute_);
  unsigned long long count = 0;
  compute_.copy(&count, total.data(), sizeof count);
  compute_.synchronize();
  return int64_t(count);
}

SampleErrors DeviceExecutor::compare(const AttentionProblem& problem,
                                     const std::vector<QuerySample>& samples) {
  const int64_t d = problem.head_dim;
  std::vector<QuerySample> mine;
  std::vector<PackTask> rows, lses;
  for (const QuerySample& q : samples) {
    const int64_t batch = q.batch - options_.first_batch;
    if (shard().index_of(q.token) < 0 || batch < 0 || batch >= sharded().problem.batch) continue;
    mine.push_back(q);
    // Addresses of the device: only copied from.
    rows.push_back({bound_->output_row(batch, q.head, q.token).data(), nullptr, d, d, 1});
    lses.push_back({bound_->output_lse_at(batch, q.head, q.token), nullptr, 1, 1, 1});
  }
  MemoryLedger ledger;
  const int64_t count = int64_t(mine.size());
  DeviceBuffer packed(ledger, "check", count * (d + 1) * int64_t{sizeof(float)});
  auto* const at = reinterpret_cast<float*>(packed.data());
  for (int64_t i = 0; i < count; ++i) {
    rows[size_t(i)].into = at + i * d;
    lses[size_t(i)].into = at + count * d + i;
  }
  const DevicePack pack_rows(rows, d * int64_t{sizeof(float)}, 4, ledger);
  const DevicePack pack_lses(lses, 4, 4, ledger);  // both have lists, until the copies are done
  pack_rows.launch(compute_);
  pack_lses.launch(compute_);
  std::vector<float> host(size_t(count * (d + 1)));
  compute_.copy(host.data(), packed.data(), packed.size());
  compute_.synchronize();
  const bool rounded = !bound_->output_has_lse() && problem.dtype != DType::kFloat32;
  return compare_rows(problem, sharded().pattern, mine, rounded, [&](size_t i) {
    OutputRow row{{host.data() + int64_t(i) * d, size_t(d)}, {}};
    if (bound_->output_has_lse()) row.lse = host[size_t(count * d) + i];
    return row;
  });
}

CheckOutcome DeviceExecutor::check_samples(const std::vector<QuerySample>& samples,
                                           Communicator& comm, double tolerance) {
  const SampleErrors mine = compare(sharded().problem, samples);
  // Where a kernel's error is near half a unit, both sides round to different values now and then.
  constexpr double kHalfBf16Unit = 1.0 / 256;
  const double rounding = mine.rounded ? kHalfBf16Unit : 0;
  return judge_all(mine, count_nan(), comm, sharded(),
                   {.rel_l2 = tolerance > 0 ? tolerance : kDeviceTolerance + rounding,
                    .lse = kDeviceLseTolerance});
}

}  // namespace longnet
