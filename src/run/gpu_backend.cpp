// GPUs of this machine: measuring, walking and `lnbench comm` on them.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "comm/comm_operations.h"
#include "comm/cuda/device_transport.h"
#include "core/check.h"
#include "core/cuda/nvml.h"
#include "execute/cuda/device_executor.h"
#include "io/units.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/rows.h"
#include "measure/machine_load.h"
#include "measure/rank_place.h"
#include "run/backend.h"
#include "run/fill_record.h"
#include "run/rank_clock.h"
#include "run/world.h"

namespace longnet {
namespace {

// Runs that are shorter than this are replayed from a CUDA graph, where one rank runs alone.
constexpr double kReplayBelow_s = 2e-4;

// Returns the device of the calling thread.
DeviceInfo own_device() { return describe_devices().devices.at(size_t(current_device())); }

// Dense 16-bit FLOP/s of the calling thread's device at its highest clock; 0: not known here.
double device_peak_flops() {
  const DeviceInfo d = own_device();
  return tensor_flops_per_clock(d) * d.multiprocessors * d.clock_khz * 1e3;
}

// The calling thread's device, and what it has for each of `ranks` that it serves.
void record_device(PointRecord& record, int64_t ranks) {
  record.metrics["device_peak_flops"] = device_peak_flops();
  record.memory.device_bytes = own_device().memory_bytes / ranks;
}

// Clocks, power and temperature of the calling thread's device while something is measured on it.
// Looks right after each sample, while it is warm: reasons to slow down are known for that moment.
class ClockWatch {
 public:
  void look() {
    const DeviceClocks now = read_device_clocks(current_device());
    if (!now.known) return;
    if (!known_ || now.sm_mhz < worst_.sm_mhz) worst_.sm_mhz = now.sm_mhz;
    worst_.power_w = std::max(worst_.power_w, now.power_w);
    worst_.temperature_c = std::max(worst_.temperature_c, now.temperature_c);
    throttled_ = throttled_ || now.throttled();
    if (!known_) slowed_before_s_ = now.slowed_s;
    slowed_s_ = now.slowed_s - slowed_before_s_;
    known_ = true;
  }

  // The lowest clock and the highest of the others, over the ranks of `comm` (null: of this one).
  void write(PointRecord& record, Communicator* comm) const {
    const auto most = [&](double own) { return comm != nullptr ? comm->max_of(own) : own; };
    if (most(known_ ? 0 : 1) > 0) return;  // some rank's NVML does not tell
    record.metrics["device_sm_mhz"] = -most(-double(worst_.sm_mhz));
    record.metrics["device_power_w"] = most(worst_.power_w);
    record.metrics["device_temperature_c"] = most(double(worst_.temperature_c));
    record.metrics["device_throttled"] = most(throttled_ ? 1 : 0);
    if (most(std::isnan(slowed_s_) ? 1 : 0) == 0)
      record.metrics["device_slowed_s"] = most(slowed_s_);
  }

 private:
  DeviceClocks worst_{};
  bool known_ = false, throttled_ = false;
  // Seconds at reduced clocks, before the first look and since, by the driver's own count, which
  // also covers the time between looks.
  double slowed_before_s_ = 0, slowed_s_ = 0;
};

int64_t free_bytes_of_own_device(Communicator& comm) {
  use_device(device_of_rank(comm));
  return device_free_bytes();
}

// Measuring on GPUs, one for each rank in turn. Seconds are the device's, from first to last op.
class GpuSession final : public PointSession {
 public:
  GpuSession(const PointPlan& plan, const RunnerOptions& options, Communicator& comm)
      : comm_(comm),
        measure_(options.measure),
        free_before_(free_bytes_of_own_device(comm)),
        transport_(make_device_transport(options.device_transport, comm)),
        use_(devices_in_use(comm)),
        kernel_(make_device_kernel(plan.point.params.kernel)),
        params_(plan.point.params) {
    worker_ = make_device_row_worker();
    limit_ = plan.device_limit_bytes;
  }

  std::string_view transport() const override { return transport_->name(); }
  double peak_flops() const override { return device_peak_flops() * use_.devices; }
  double peak_now(double) override { return peak_flops(); }
  void record_machine(PointRecord& record) const override {
    record.metrics["devices"] = use_.devices;
    record_device(record, int64_t(comm_.max_of(use_.ranks_on_mine)));
  }

  void bind(const Schedule& schedule) override {
    if (executor_) {  // bound to the pass before: peers close what is freed here
      transport_->close();
      executor_.reset();
      ledger_ = {};
      transport_ = make_device_transport(transport_->name(), comm_);
    }
    ledger_.set_limit(limit_);
    flush_ = DeviceBuffer(scratch_, "flush", flush_bytes(own_device()));
    adopt(std::make_unique<DeviceExecutor>(schedule, comm_.rank(), *kernel_, transport_.get(),
                                           DeviceExecutor::Options{}, ledger_),
          params_);
    executor_->time_ops(false);
  }

  // Also decides whether runs are replayed from a CUDA graph.
  void warm_up(PointRecord& record) override {
    if (comm_.size() > 1) {  // a kernel's first launch may wait for a device that awaits its peers
      executor_->run(RunMode::kComputeOnly);
      comm_.barrier();
    }
    replay_ = worth_a_replay();
    clocks_.look();
    record.metrics["graph_replay"] = replay_ ? 1 : 0;
  }
  const CommCounters& counters() const override { return transport_->counters(); }
  void reset_counters() override { transport_->reset_counters(); }

  SampleHooks sample_hooks() override {
    load_.emplace(cpus_here(places_));
    return {.prepare =
                [this] {
                  const Stream& stream = device().compute_stream();
                  stream.fill(flush_.data(), 0x5A, flush_.size());
                  if (comm_.size() == 1) return;  // and hides the host's first launches
                  stream.synchronize();
                  clock_.wait_for_all();
                  transport_->stream_barrier(stream);
                },
            .run =
                [this] {
                  began_s_ = steady_seconds();
                  clock_s_ += replay_ ? device().replay() : executor_->run();
                  clocks_.look();  // not timed: the clock is the device's
                },
            // Each device has a clock of its own.
            .over_ranks =
                [this](const RunSpan& own) {
                  if (comm_.size() > 1) clock_.require_common_begin(began_s_);
                  return comm_.max_of(own.seconds());
                },
            .broadcast_from_root = [this](bool go_on) { return comm_.broadcast_flag(go_on); },
            .now = [this] { return clock_s_; }};
  }
  std::string_view reduction() const override { return "max"; }
  double time(const std::function<double()>& run) override {
    comm_.barrier();
    transport_->stream_barrier(device().compute_stream());
    return comm_.max_of(run());
  }

  void record_conditions(PointRecord& record) override {
    if (const double busy = busy_share(*load_, comm_); busy >= 0)
      record.metrics["busy_share"] = busy;  // the host's, which launches kernels
    // Includes the memory of the transport and of lazily loaded kernels.
    const double growth = comm_.max_of(double(free_before_ - device_free_bytes() - flush_.size()));
    clocks_.write(record, &comm_);
    // cudaMemGetInfo counts all that use the device.
    if (comm_.max_of(use_.ranks_on_mine) == 1)
      record.metrics["device_memory_growth_bytes"] = growth;
  }
  void close() override { transport_->close(); }

 private:
  DeviceExecutor& device() { return static_cast<DeviceExecutor&>(*executor_); }

  // True when one rank runs alone and its replay takes less than kReplayBelow_s. The seconds of an
  // ordinary run include the host's time to enqueue it, so only much longer runs rule out a replay.
  bool worth_a_replay() {
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

  Communicator& comm_;
  MeasureConfig measure_;
  int64_t free_before_;
  std::unique_ptr<DeviceTransport> transport_;
  DevicesInUse use_;
  std::unique_ptr<DeviceKernel> kernel_;
  PointParams params_;
  int64_t limit_ = 0;     // bytes that programs may take
  MemoryLedger scratch_;  // memory that only measuring needs
  DeviceBuffer flush_;
  ClockWatch clocks_;
  bool replay_ = false;
  std::vector<RankPlace> places_{gather(comm_, this_place())};
  RankClock clock_{comm_, places_};  // the hosts', for their barriers
  std::optional<OtherLoad> load_;
  double began_s_ = 0;  // the last sample, by the hosts' clock
  double clock_s_ = 0;  // the sampler's: it stands still but for the runs
};

class GpuBackend final : public GpuPlanning {
 public:
  std::unique_ptr<PointSession> open(const PointPlan& plan, const RunnerOptions& options,
                                     Communicator& comm) const override {
    return std::make_unique<GpuSession>(plan, options, comm);
  }
  std::unique_ptr<UnitWalk> make_walk(const PointParams& p, UnitWalk::MakeSchedule make_schedule,
                                      MemoryLedger& ledger) const override {
    return make_device_walk(p.problem, std::move(make_schedule), make_device_kernel(p.kernel),
                            make_device_row_worker(), ledger);
  }
  double attend_rate(const PointParams& params) const override {
    const auto kernel = make_device_kernel(params.kernel);
    MemoryLedger ledger;
    DeviceExecutor executor(dense_segments(params.problem, 8), 0, *kernel, nullptr, {}, ledger);
    return attend_rate_of(executor);
  }
  double peak_now(const PointParams&, double, const RunnerOptions&) const override {
    return device_peak_flops();
  }
  void record_walking_device(PointRecord& record) const override {
    record_device(record, 1);
    ClockWatch clocks;
    clocks.look();
    clocks.write(record, nullptr);
  }
  bool rounds_probabilities(const PointParams&) const override { return true; }
};

}  // namespace

const Backend& gpu_backend() {
  static const GpuBackend gpus;
  return gpus;
}

std::string transport_of_run(const std::string& name, Communicator& comm) {
  if (comm.max_of(describe_devices().unusable.empty() ? 0.0 : 1.0) > 0) return name;
  use_device(device_of_rank(comm));
  return resolve_device_transport(name, comm);
}

std::unique_ptr<CommOperations> operations_on_device(const std::string& transport,
                                                     Communicator& comm, int64_t max_bytes) {
  use_device(device_of_rank(comm));
  auto moves = make_device_transport(transport == "gpu" ? "auto" : transport, comm);
  const int64_t needed = 2 * max_bytes;  // all ranks refuse alike
  const double lacking = double(devices_in_use(comm).ranks_on_mine) * double(needed) -
                         0.95 * double(device_free_bytes());
  if (comm.max_of(lacking) > 0)
    throw UsageError("--max-bytes ", format_bytes(double(max_bytes)),
                     ": two such buffers per rank do not fit into a GPU's memory\n  hint: "
                     "choose a smaller one");
  return make_device_operations(std::move(moves), max_bytes);
}

std::vector<std::string> devices_of_ranks(Communicator& comm) {
  return comm.all_texts(own_device().uuid);
}

}  // namespace longnet
