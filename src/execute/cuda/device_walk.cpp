// Walks on a GPU: every unit is a DeviceExecutor with virtual ranks, whose rows are made, digested
// and summed up on the device. Seconds of ops are the device's own. Gradients are looked at on the
// host, which copies a unit's slots for it.
#include <algorithm>
#include <numeric>
#include <optional>

#include "core/check.h"
#include "core/stopwatch.h"
#include "execute/cuda/device_executor.h"
#include "execute/program_rows.h"
#include "execute/slot_memory.h"
#include "execute/virtual_walk.h"
#include "execute/walk_gradients.h"

namespace longnet {
namespace {

constexpr int kHostThreads = 1;

// Hands rows of gradients over to the host, in the order of a stream.
Prepared prepare_hand_over(std::vector<FillRows> rows, int64_t head_dim,
                           const std::function<void(std::span<const FillRows>)>& take,
                           MemoryLedger& ledger) {
  int64_t count = 0;
  for (const FillRows& run : rows) count += run.rows;
  const int64_t bytes = count * head_dim * int64_t{sizeof(float)};
  Prepared work;
  auto* const dense = reinterpret_cast<float*>(work.workspace(bytes, ledger));
  std::vector<PackTask> packs;
  float* into = dense;
  for (const FillRows& run : rows) {
    packs.push_back({run.out, into, run.row_stride, head_dim, run.rows});
    into += run.rows * head_dim;
  }
  work.then(prepare_pack(packs, Conversion::kNone, head_dim, sizeof(float), ledger));
  work.then([=](const Stream& stream) mutable {
    std::vector<float> host(size_t(count * head_dim));
    stream.copy(host.data(), dense, bytes);
    stream.synchronize();
    float* at = host.data();
    for (FillRows& run : rows) {
      run.out = at;
      run.row_stride = head_dim;
      at += run.rows * head_dim;
    }
    take(rows);
  });
  return work;
}

class DeviceWalk final : public UnitWalk {
 public:
  DeviceWalk(const AttentionProblem& problem, MakeSchedule make_schedule,
             std::shared_ptr<const DeviceKernel> kernel, std::shared_ptr<const RowWorker> worker,
             MemoryLedger& ledger)
      : UnitWalk(problem, std::move(make_schedule), std::move(worker), kHostThreads, ledger),
        kernel_(std::move(kernel)) {}

 private:
  void execute_whole(const Samples& samples, UnitOutcome& out) override {
    const Schedule& schedule = schedule_for(out.unit);
    const RankProgram program = virtual_program(schedule, out.unit.rank);
    if (has_backward(program.pass)) gradients_->sums_of(schedule, out.unit);
    std::vector<std::byte> output;
    if (schedule.forward) output = make_output(schedule, out);
    prepare(schedule, program, std::nullopt, out);
    const BoundProgram& bound = executor_->bound();
    const Compare compare = [&](const ExpectedRows& rows) { return executor_->compare(rows); };
    std::future<ExpectedRows> expected = expect(bound, samples, std::launch::async);
    make_inputs(out);
    inspect_poisoned(bound, samples, compare, out);
    if (!output.empty()) executor_->write(output, bound.memory(kOutputSlot));
    run_program(out);
    inspect(bound, expected, compare, out);
    if (!has_backward(program.pass)) return;
    std::vector<int> slots(program.slots.size());
    std::iota(slots.begin(), slots.end(), 0);
    gradients_->inspect(*executor_->on_host(slots), samples, keys(), out);
  }

  void execute_share(double share, UnitOutcome& out) override {
    const Schedule& schedule = schedule_for(out.unit);
    prepare(schedule, virtual_program(schedule, out.unit.rank), share, out);
    make_inputs(out);
    run_program(out);
  }

  void make_inputs(UnitOutcome& out) const {
    Stopwatch watch(out.times.generate_s);
    out.input_digest = fill_inputs(executor_->bound(), *worker_, executor_->poisoned());
  }

  void run_program(UnitOutcome& out) const {
    out.unit_bytes = ledger_.now_bytes();
    const double all = executor_->run();
    note_times(*executor_, all, out);
  }

  // Memory is kept from unit to unit, and so are the plans of attends that are the same. A share,
  // also of 1, gives no gradients.
  void prepare(const Schedule& schedule, const RankProgram& program, std::optional<double> share,
               UnitOutcome& out) {
    Stopwatch watch(out.times.bind_s);
    memory_.grow(slot_bytes_by_tag(schedule, out.unit.rank), ledger_);
    DeviceExecutor::Options options{.virtual_ranks = true,
                                    .first_batch = out.unit.first_batch,
                                    .share = share.value_or(1),
                                    .take_gradients =
                                        [this, share](std::span<const FillRows> rows) {
                                          if (!share) gradients_->add(rows);
                                        },
                                    .memory = memory_.place(program)};
    executor_ = std::make_unique<DeviceExecutor>(schedule, out.unit.rank, *kernel_, nullptr,
                                                 options, ledger_, std::move(executor_));
  }

  // The output that a backward pass alone begins with.
  std::vector<std::byte> make_output(const Schedule& schedule, UnitOutcome& out) {
    UnitOutcome aside{.unit = out.unit};
    Stopwatch watch(out.times.output_s);
    Schedule forward = schedule;
    forward.program = schedule.forward;
    prepare(forward, forward.program(out.unit.rank), std::nullopt, aside);
    executor_->poison(*worker_);
    fill_inputs(executor_->bound(), *worker_);
    executor_->run();
    const std::span<std::byte> from = executor_->bound().memory(kOutputSlot);
    std::vector<std::byte> output(from.size());
    executor_->read(from, output.data());
    worker_->poison(from, kHostThreads);  // an input of the backward pass, which poisons no inputs
    return output;
  }

  static void note_times(const DeviceExecutor& executor, double all, UnitOutcome& out) {
    WalkTimes& t = out.times;
    for (size_t i = 0; i < executor.program().ops.size(); ++i)
      if (std::holds_alternative<AttendBackward>(executor.program().ops[i].what))
        t.attend_backward_s += executor.op_times()[i].end_s - executor.op_times()[i].begin_s;
    t.receive_s = executor.receive_s();
    t.attend_s = executor.phases().attend_s - t.attend_backward_s;
    t.merge_s = executor.phases().merge_s;
    t.pack_s = std::max(0.0, all - t.receive_s - t.attend_s - t.attend_backward_s - t.merge_s);
    out.received_bytes = executor.received_bytes();
    out.share = executor.share();
  }

  std::shared_ptr<const DeviceKernel> kernel_;
  SlotMemory<DeviceBuffer> memory_;
  std::unique_ptr<DeviceExecutor> executor_;  // the last unit's
};

}  // namespace

// The rows that it would receive are generated in place. Of gradients nothing comes from other
// ranks, and what would be sent goes to take_gradients.
Prepared DeviceExecutor::prepare_virtual_message(OpId id) {
  const AttentionProblem& p = sharded().problem;
  const Action& what = program().ops[size_t(id)].what;
  if (moves_gradients(program(), what)) {
    Prepared work;
    if (const auto* send = std::get_if<Send>(&what)) {
      check(bool(options_.take_gradients), "gradients that nobody takes");
      work = prepare_hand_over(view_rows(*bound_, send->what), p.head_dim, options_.take_gradients,
                               ledger_);
    }
    const auto into = bound_->op(size_t(id)).into;
    if (!into.empty())
      work.then(
          [into](const Stream& stream) { stream.fill(into.data(), 0, int64_t(into.size())); });
    received_bytes_ += int64_t(into.size());
    return work;
  }
  const ReceivedRows received = received_rows(*bound_, size_t(id));
  Prepared work = prepare_fill(received.rows, p.seed, p.head_dim, DType::kBFloat16, ledger_);
  if (!received.own_from.empty())  // a rank's part for itself of an all-to-all
    work.then([from = received.own_from, into = received.own_into](const Stream& stream) {
      stream.copy(into.data(), from.data(), int64_t(from.size()));
    });
  received_bytes_ += received.bytes;
  return work;
}

std::unique_ptr<UnitWalk> make_device_walk(const AttentionProblem& problem,
                                           UnitWalk::MakeSchedule make_schedule,
                                           std::shared_ptr<const DeviceKernel> kernel,
                                           std::shared_ptr<const RowWorker> worker,
                                           MemoryLedger& ledger) {
  return std::make_unique<DeviceWalk>(problem, std::move(make_schedule), std::move(kernel),
                                      std::move(worker), ledger);
}

}  // namespace longnet
