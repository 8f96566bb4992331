#include "run/gpu_session.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/device_timer.h"
#include "kernels/cuda/rows.h"

namespace longnet {
namespace {

// Runs that are shorter than this are replayed from a CUDA graph, where one rank runs alone.
constexpr double kReplayBelow_s = 2e-4;

int64_t free_bytes_of_own_device(Communicator& comm) {
  use_device(device_of_rank(comm));
  return device_free_bytes();
}

}  // namespace

int64_t device_memory_bytes() {
  return describe_devices().devices.at(size_t(current_device())).memory_bytes;
}

double device_peak_flops() {
  const DeviceInfo d = describe_devices().devices.at(size_t(current_device()));
  return tensor_flops_per_clock(d) * d.multiprocessors * d.clock_khz * 1e3;
}

GpuSession::GpuSession(const PointPlan& plan, const RunnerOptions& options, Communicator& comm)
    : comm_(comm),
      measure_(options.measure),
      free_before_(free_bytes_of_own_device(comm)),
      transport_(make_device_transport(options.device_transport, comm)),
      use_(devices_in_use(comm)),
      kernel_(make_device_kernel(plan.point.params.kernel)) {
  worker_ = make_device_row_worker();
  ledger_.set_limit(plan.device_limit_bytes);
}

double GpuSession::peak_flops() const { return device_peak_flops() * use_.devices; }

void GpuSession::record_machine(PointRecord& record) const {
  record.metrics["devices"] = use_.devices;
  record.metrics["device_peak_flops"] = device_peak_flops();
  record.memory.device_bytes = device_memory_bytes() / int64_t(comm_.max_of(use_.ranks_on_mine));
}

void GpuSession::bind(const Schedule& schedule) {
  flush_ = DeviceBuffer(scratch_, "flush", flush_bytes());
  executor_ = std::make_unique<DeviceExecutor>(schedule, comm_.rank(), *kernel_, transport_.get(),
                                               DeviceExecutor::Options{}, ledger_);
  executor_->time_ops(false);
}

void GpuSession::warm_up(PointRecord& record) {
  if (comm_.size() > 1) {  // a kernel's first launch may wait for a device that waits for its peers
    executor_->run(RunMode::kComputeOnly);
    comm_.barrier();
  }
  replay_ = worth_a_replay();
  record.metrics["graph_replay"] = replay_ ? 1 : 0;
}

// True when one rank runs alone and its replay takes less than kReplayBelow_s. The seconds of an
// ordinary run include the host's time to enqueue it, so only much longer runs rule out a replay.
bool GpuSession::worth_a_replay() {
  if (comm_.size() > 1 || !device().can_replay()) return false;
  double took = 0;
  for (int64_t i = 0; i < std::max<int64_t>(1, measure_.warmup); ++i) took = executor_->run();
  if (took >= 10 * kReplayBelow_s) return false;
  try {
    device().replay();
    return device().replay() < kReplayBelow_s;
  } catch (const Error&) {  // not every library's launches can be recorded
    return false;
  }
}

SampleHooks GpuSession::sample_hooks() {
  return {.prepare =
              [this] {
                const Stream& stream = device().compute_stream();
                clocks_.look();
                stream.fill(flush_.data(), 0x5A, flush_.size());
                if (comm_.size() == 1) return;  // and hides the host's first launches
                stream.synchronize();
                comm_.barrier();
                transport_->stream_barrier(stream);
              },
          .run = [this] { clock_s_ += replay_ ? device().replay() : executor_->run(); },
          // Each device has a clock of its own.
          .over_ranks = [this](const RunSpan& own) { return comm_.max_of(own.seconds()); },
          .broadcast_from_root = [this](bool go_on) { return comm_.broadcast_flag(go_on); },
          .now = [this] { return clock_s_; }};
}

double GpuSession::time(const std::function<double()>& run) {
  comm_.barrier();
  transport_->stream_barrier(device().compute_stream());
  return comm_.max_of(run());
}

void GpuSession::record_conditions(PointRecord& record) {
  clocks_.look();
  // With what the transport and lazily loaded kernels took.
  const double growth = double(free_before_ - device_free_bytes() - flush_.size());
  clocks_.write(record, &comm_);
  double values[2] = {growth, double(use_.ranks_on_mine)};
  comm_.all_max(values);
  // By cudaMemGetInfo, which counts all that use the device.
  if (values[1] == 1) record.metrics["device_memory_growth_bytes"] = values[0];
}

}  // namespace longnet
