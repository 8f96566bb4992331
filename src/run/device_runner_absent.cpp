// Builds without CUDA: plan_point() refuses such points before they get here.
#include "core/check.h"
#include "core/cuda/device.h"
#include "run/device_runner.h"

namespace longnet {

PointRecord run_device_point(const PointPlan&, const RunnerOptions&, Communicator&) {
  throw UsageError(describe_devices().unusable);
}

std::string transport_of_run(const std::string& name, Communicator&) { return name; }

std::unique_ptr<CommOperations> operations_on_device(const std::string&, Communicator&, int64_t) {
  throw UsageError(describe_devices().unusable);
}

std::vector<std::string> devices_of_ranks(Communicator&) {
  throw UsageError(describe_devices().unusable);
}

std::unique_ptr<UnitWalk> make_device_walk(const PointParams&, UnitWalk::MakeSchedule,
                                           MemoryLedger&) {
  throw UsageError(describe_devices().unusable);
}

double measure_device_attend_rate(const PointParams&) {
  throw UsageError(describe_devices().unusable);
}

Tolerance device_tolerance(double) { throw UsageError(describe_devices().unusable); }
void record_clocks(PointRecord&) { throw UsageError(describe_devices().unusable); }
int64_t device_memory_bytes() { throw UsageError(describe_devices().unusable); }
double device_peak_flops(int) { throw UsageError(describe_devices().unusable); }

}  // namespace longnet
