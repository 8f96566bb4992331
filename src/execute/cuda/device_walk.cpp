// Walks on a GPU: every unit is a DeviceExecutor with virtual ranks, whose rows are made, digested
// and summed up on the device. Seconds of ops are the device's own.
#include "core/check.h"
#include "core/stopwatch.h"
#include "execute/cuda/device_executor.h"
#include "execute/virtual_walk.h"

namespace longnet {
namespace {

class DeviceWalk final : public UnitWalk {
 public:
  DeviceWalk(const AttentionProblem& problem, MakeSchedule make_schedule,
             std::shared_ptr<const DeviceKernel> kernel, std::shared_ptr<const RowWorker> worker,
             MemoryLedger& ledger)
      : UnitWalk(problem, std::move(make_schedule), std::move(worker), ledger),
        kernel_(std::move(kernel)) {}

 private:
  void execute(const Samples* samples, double share, ShardOutcome& out) override {
    std::unique_ptr<DeviceExecutor> executor;
    {
      Stopwatch watch(out.times.bind_s);
      const Schedule& schedule = schedule_for(out.unit);
      const std::string refusal = why_not_virtual(schedule.program(out.unit.rank));
      check(refusal.empty(), "no virtual ranks: ", refusal);
      executor = std::make_unique<DeviceExecutor>(
          schedule, out.unit.rank, *kernel_, nullptr,
          DeviceExecutor::Options{
              .virtual_ranks = true, .first_batch = out.unit.first_batch, .share = share},
          ledger_);
    }
    {
      Stopwatch watch(out.times.poison_s);
      executor->poison(*worker_);
    }
    const Compare compare = [&](const AttentionProblem& p, const Samples& of) {
      return executor->compare(expected_rows(executor->bound(), p, of));
    };
    if (samples) inspect_poisoned(*samples, compare, out);
    {
      Stopwatch watch(out.times.generate_s);
      executor->generate_inputs();
      out.input_digest = executor->digest_inputs(*worker_);
    }
    out.unit_bytes = ledger_.now_bytes();
    const double all = executor->run();
    WalkTimes& t = out.times;
    t.receive_s = executor->receive_s();
    t.attend_s = executor->phases().attend_s;
    t.merge_s = executor->phases().merge_s;
    t.pack_s = std::max(0.0, all - t.receive_s - t.attend_s - t.merge_s);
    out.received_bytes = executor->received_bytes();
    out.share = executor->share();
    if (samples) inspect(executor->bound(), *samples, compare, out);
  }

  std::shared_ptr<const DeviceKernel> kernel_;
};

}  // namespace

std::unique_ptr<UnitWalk> make_device_walk(const AttentionProblem& problem,
                                           UnitWalk::MakeSchedule make_schedule,
                                           std::shared_ptr<const DeviceKernel> kernel,
                                           std::shared_ptr<const RowWorker> worker,
                                           MemoryLedger& ledger) {
  return std::make_unique<DeviceWalk>(problem, std::move(make_schedule), std::move(kernel),
                                      std::move(worker), ledger);
}

}  // namespace longnet
