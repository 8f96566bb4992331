// UnitWalk on the calling thread's GPU: every unit is a DeviceExecutor with virtual ranks, whose
// rows are made, digested and summed up on the device. Seconds of ops are the device's own.
#pragma once
#include <map>
#include <memory>

#include "execute/cuda/device_executor.h"
#include "execute/unit_walk.h"

namespace longnet {

class DeviceWalk final : public UnitWalk {
 public:
  // `problem`: with the whole batch. Kernel, worker and ledger must outlive the walk; `worker` is
  // one for the device's rows.
  DeviceWalk(const AttentionProblem& problem, MakeSchedule make_schedule,
             const DeviceKernel& kernel, const RowWorker& worker, MemoryLedger& ledger)
      : problem_(problem),
        make_schedule_(std::move(make_schedule)),
        kernel_(kernel),
        worker_(worker),
        ledger_(ledger) {}

  ShardOutcome run(const WalkUnit& unit, const std::vector<QuerySample>& samples) override;
  ShardOutcome run_share(const WalkUnit& unit, double share) override;

 private:
  std::unique_ptr<DeviceExecutor> executed(double share, ShardOutcome& out);

  AttentionProblem problem_;
  MakeSchedule make_schedule_;
  const DeviceKernel& kernel_;
  const RowWorker& worker_;
  MemoryLedger& ledger_;
  std::map<int64_t, Schedule> schedules_;  // by number of sequences
};

}  // namespace longnet
