#include "run/backend.h"

#include "kernels/attention_kernel.h"
#include "kernels/cuda/device_kernel.h"
#include "measure/rank_place.h"
#include "run/attend_rate.h"
#include "run/host_session.h"
#include "run/point_schedule.h"

namespace longnet {
namespace {

class HostBackend final : public Backend {
 public:
  bool on_gpu() const override { return false; }
  std::string why_unsupported(const PointParams& p) const override {
    return make_kernel(p.kernel)->why_unsupported(attend_options(p));
  }
  int64_t workspace_bytes(const PointParams& p, int threads) const override {
    return make_kernel(p.kernel)->workspace_bytes(attend_options(p), threads);
  }
  double fill_s_per_value() const override { return 3e-8; }
  std::unique_ptr<PointSession> open(const PointPlan& plan, const RunnerOptions& options,
                                     Communicator& comm) const override {
    return std::make_unique<HostSession>(plan.point.params, options.peak_flops_per_thread, comm);
  }
  std::unique_ptr<UnitWalk> make_walk(const PointParams& p, UnitWalk::MakeSchedule make_schedule,
                                      MemoryLedger& ledger) const override {
    return make_virtual_walk(p.problem, std::move(make_schedule), make_kernel(p.kernel), p.threads,
                             ledger);
  }
  double attend_rate(const PointParams& p) const override {
    AttendOptions options = attend_options(p);
    options.causal = false;
    return measure_attend_rate(*make_kernel(p.kernel), options, p.threads);
  }
  double record_walking_device(PointRecord& record, const RunnerOptions& options) const override {
    const RankPlace here = this_place();
    const int cores = usable_cores({&here, 1}, record.params.threads);
    record.metrics["usable_cores"] = cores;
    return options.peak_flops_per_thread * cores;
  }
  Tolerance walk_tolerance(double given) const override { return {.rel_l2 = given}; }
};

}  // namespace

const Backend& backend_of(std::string_view kernel) {
  static const HostBackend host;
  return is_device_kernel(kernel) ? gpu_backend() : host;
}

}  // namespace longnet
