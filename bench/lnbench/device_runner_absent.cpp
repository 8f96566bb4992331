// Builds without CUDA: plan_point() refuses such points before they get here.
#include "core/check.h"
#include "core/cuda/device.h"
#include "lnbench/device_runner.h"

namespace longnet {

PointRecord run_device_point(const PointPlan&, const RunnerOptions&, Communicator&) {
  throw UsageError(describe_devices().unusable);
}

std::optional<PointRecord> run_device_walk(const PointPlan&, const RunnerOptions&,
                                           const std::function<bool()>&) {
  throw UsageError(describe_devices().unusable);
}

}  // namespace longnet
