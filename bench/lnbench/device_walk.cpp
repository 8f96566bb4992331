// Virtual ranks on a GPU: what a walk needs, put together.
#include "execute/cuda/device_walk.h"

#include "core/cuda/device_clocks.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/device_row_worker.h"
#include "lnbench/device_runner.h"

namespace longnet {
namespace {

class OwningWalk final : public UnitWalk {
 public:
  OwningWalk(const PointParams& p, MakeSchedule make_schedule, MemoryLedger& ledger)
      : kernel_(make_device_kernel(p.kernel)),
        worker_(make_device_row_worker()),
        walk_(p.problem, std::move(make_schedule), *kernel_, *worker_, ledger) {}
  ShardOutcome run(const WalkUnit& unit, const std::vector<QuerySample>& samples) override {
    return walk_.run(unit, samples);
  }
  ShardOutcome run_share(const WalkUnit& unit, double share) override {
    return walk_.run_share(unit, share);
  }

 private:
  std::unique_ptr<DeviceKernel> kernel_;
  std::unique_ptr<RowWorker> worker_;
  DeviceWalk walk_;
};

}  // namespace

std::unique_ptr<UnitWalk> make_device_walk(const PointParams& params,
                                           UnitWalk::MakeSchedule make_schedule,
                                           MemoryLedger& ledger) {
  return std::make_unique<OwningWalk>(params, std::move(make_schedule), ledger);
}

Tolerance device_tolerance(double given) {
  return {.rel_l2 = given > 0 ? given : kDeviceTolerance, .lse = kDeviceLseTolerance};
}

}  // namespace longnet
