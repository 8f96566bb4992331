// Measuring on the cores of the host: ranks are threads or processes of MPI, timed by their steady
// clocks.
#pragma once
#include <vector>

#include "kernels/attention_kernel.h"
#include "measure/rank_place.h"
#include "run/point_session.h"
#include "run/rank_clock.h"

namespace longnet {

class HostSession final : public PointSession {
 public:
  HostSession(const PointParams& params, double peak_flops_per_thread, Communicator& comm);

  std::string_view transport() const override { return comm_.transport(); }
  double peak_flops() const override { return peak_flops_per_thread_ * cores_; }
  void record_machine(PointRecord& record) const override;
  void bind(const Schedule& schedule) override;
  const CommCounters& counters() const override { return comm_.counters(); }
  void reset_counters() override { comm_.reset_counters(); }
  SampleHooks sample_hooks() override;
  std::string_view reduction() const override { return clock_.reduction(); }
  double time(const std::function<double()>& run) override;
  // Records, for ranks that are MPI processes, the growth of their resident memory: the system's
  // view beside the ledger's.
  void record_conditions(PointRecord& record) override;

 private:
  Communicator& comm_;
  std::vector<RankPlace> places_;
  RankClock clock_;
  std::unique_ptr<AttentionKernel> kernel_;
  int threads_, cores_;
  double peak_flops_per_thread_, resident_before_;
};

}  // namespace longnet
