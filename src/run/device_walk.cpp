// Virtual ranks on a GPU: what a walk needs, put together.
#include "execute/cuda/device_walk.h"

#include "core/cuda/nvml.h"
#include "execute/cuda/device_executor.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/device_row_worker.h"
#include "run/device_runner.h"
#include "schedule/accounting.h"
#include "schedule/registry.h"

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

double measure_device_attend_rate(const PointParams& params) {
  constexpr int64_t kRows = 2048, kBatch = 8;
  AttentionProblem problem = params.problem;
  problem.seq_len = kRows;
  problem.batch = kBatch;
  problem.causal = false;
  const ShardedProblem segments{problem, dense_pattern(kRows), {kRows, 1, LayoutKind::kContiguous}};
  const auto kernel = make_device_kernel(params.kernel);
  MemoryLedger ledger;
  DeviceExecutor executor(find_algorithm("local").make(segments), 0, *kernel, nullptr, {}, ledger);
  executor.fill_inputs();
  executor.run();
  double seconds = 0;
  for (int i = 0; i < 3; ++i) seconds += executor.run() / 3;
  return account(segments, executor.program(), 0).flops / seconds;
}

Tolerance device_tolerance(double given) {
  return {.rel_l2 = given > 0 ? given : kDeviceTolerance, .lse = kDeviceLseTolerance};
}

}  // namespace longnet
