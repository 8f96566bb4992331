// Measuring on GPUs: each rank works on one of its machine, in turn. Seconds are the device's own,
// between the first and the last op.
#pragma once
#include <memory>

#include "comm/cuda/device_transport.h"
#include "execute/cuda/device_executor.h"
#include "run/clock_watch.h"
#include "run/measure_point.h"
#include "run/point_session.h"

namespace longnet {

// Figures of the calling thread's GPU. The peak is the dense 16-bit one of the tensor cores at the
// highest clock, in FLOP/s; 0 for architectures whose rate is not known here.
int64_t device_memory_bytes();
double device_peak_flops();

class GpuSession final : public PointSession {
 public:
  // Collective. Throws UsageError on all ranks where these do not fit the transport.
  GpuSession(const PointPlan& plan, const RunnerOptions& options, Communicator& comm);

  std::string_view transport() const override { return transport_->name(); }
  double peak_flops() const override;
  void record_machine(PointRecord& record) const override;
  void bind(const Schedule& schedule) override;
  // Also decides whether runs are replayed from a CUDA graph.
  void warm_up(PointRecord& record) override;
  const CommCounters& counters() const override { return transport_->counters(); }
  void reset_counters() override { transport_->reset_counters(); }
  SampleHooks sample_hooks() override;
  std::string_view reduction() const override { return "max"; }
  double time(const std::function<double()>& run) override;
  void record_conditions(PointRecord& record) override;
  void close() override { transport_->close(); }

 private:
  DeviceExecutor& device() { return static_cast<DeviceExecutor&>(*executor_); }
  bool worth_a_replay();

  Communicator& comm_;
  MeasureConfig measure_;
  int64_t free_before_;
  std::unique_ptr<DeviceTransport> transport_;
  DevicesInUse use_;
  std::unique_ptr<DeviceKernel> kernel_;
  MemoryLedger scratch_;  // of what only measuring needs
  DeviceBuffer flush_;
  ClockWatch clocks_;
  bool replay_ = false;
  double clock_s_ = 0;  // the sampler's: it stands still but for the runs
};

}  // namespace longnet
