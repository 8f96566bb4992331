// Builds without CUDA: plan_point() refuses points on GPUs before they get to run.
#include "core/check.h"
#include "core/cuda/device.h"
#include "run/backend.h"

namespace longnet {
namespace {

[[noreturn]] void refuse() { throw UsageError(describe_devices().unusable); }

class AbsentGpus final : public GpuPlanning {
 public:
  std::unique_ptr<PointSession> open(const PointPlan&, const RunnerOptions&,
                                     Communicator&) const override {
    refuse();
  }
  std::unique_ptr<UnitWalk> make_walk(const PointParams&, UnitWalk::MakeSchedule,
                                      MemoryLedger&) const override {
    refuse();
  }
  double attend_rate(const PointParams&) const override { refuse(); }
  double peak_now(const PointParams&, double, const RunnerOptions&) const override { refuse(); }
  void record_walking_device(PointRecord&) const override { refuse(); }
  bool rounds_probabilities(const PointParams&) const override { refuse(); }
};

}  // namespace

const Backend& gpu_backend() {
  static const AbsentGpus absent;
  return absent;
}

std::string transport_of_run(const std::string& name, Communicator&) { return name; }
std::unique_ptr<CommOperations> operations_on_device(const std::string&, Communicator&, int64_t) {
  refuse();
}
std::vector<std::string> devices_of_ranks(Communicator&) { refuse(); }

}  // namespace longnet
