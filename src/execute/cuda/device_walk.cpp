#include "execute/cuda/device_walk.h"

#include "core/check.h"
#include "core/stopwatch.h"
#include "execute/virtual_walk.h"

namespace longnet {

std::unique_ptr<DeviceExecutor> DeviceWalk::executed(double share, ShardOutcome& out) {
  std::unique_ptr<DeviceExecutor> executor;
  {
    Stopwatch watch(out.times.bind_s);
    auto schedule = schedules_.find(out.unit.batches);
    if (schedule == schedules_.end())
      schedule = schedules_.emplace(out.unit.batches, make_schedule_(out.unit.batches)).first;
    const std::string refusal = why_not_virtual(schedule->second.program(out.unit.rank));
    check(refusal.empty(), "no virtual ranks: ", refusal);
    executor = std::make_unique<DeviceExecutor>(
        schedule->second, out.unit.rank, kernel_, nullptr,
        DeviceExecutor::Options{
            .virtual_ranks = true, .first_batch = out.unit.first_batch, .share = share},
        ledger_);
  }
  {
    Stopwatch watch(out.times.generate_s);
    executor->fill_inputs();
    out.input_digest = executor->digest_inputs(worker_);
  }
  out.unit_bytes = ledger_.now_bytes();
  const double all = executor->run();
  out.times.receive_s = executor->receive_s();
  out.times.attend_s = executor->phases().attend_s;
  out.times.merge_s = executor->phases().merge_s;
  out.times.pack_s =
      std::max(0.0, all - out.times.receive_s - out.times.attend_s - out.times.merge_s);
  out.received_bytes = executor->received_bytes();
  out.share = executor->share();
  return executor;
}

ShardOutcome DeviceWalk::run(const WalkUnit& unit, const std::vector<QuerySample>& samples) {
  ShardOutcome out;
  out.unit = unit;
  Stopwatch wall(out.times.wall_s);
  const auto executor = executed(1, out);
  {
    Stopwatch watch(out.times.summarize_s);
    out.heads = executor->summarize_output(worker_);
  }
  {
    Stopwatch watch(out.times.check_s);
    out.errors = executor->compare(problem_, samples);
  }
  wall.stop();
  return out;
}

ShardOutcome DeviceWalk::run_share(const WalkUnit& unit, double share) {
  ShardOutcome out;
  out.unit = unit;
  Stopwatch wall(out.times.wall_s);
  executed(share, out);
  wall.stop();
  return out;
}

}  // namespace longnet
