#include "run/device_runner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "comm/cuda/device_operations.h"
#include "comm/cuda/device_transport.h"
#include "core/check.h"
#include "core/cuda/nvml.h"
#include "execute/cuda/device_executor.h"
#include "io/units.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/device_row_worker.h"
#include "kernels/cuda/device_timer.h"
#include "measure/rounds.h"
#include "measure/sampler.h"
#include "measure/statistics.h"
#include "run/record_parts.h"
#include "schedule/check_schedule.h"

namespace longnet {
namespace {

// Runs that are shorter than this are replayed from a CUDA graph, where one rank runs alone.
constexpr double kReplayBelow_s = 2e-4;

// What the host takes to enqueue a run counts in its seconds, so that a run may look longer than
// the device needs: a replay's own seconds decide.
bool worth_a_replay(DeviceExecutor& executor, const MeasureConfig& measure, Communicator& comm) {
  if (comm.size() > 1 || !executor.can_replay()) return false;
  double took = 0;
  for (int64_t i = 0; i < std::max<int64_t>(1, measure.warmup); ++i) took = executor.run();
  if (took >= 10 * kReplayBelow_s) return false;
  try {
    executor.replay();
    return executor.replay() < kReplayBelow_s;
  } catch (const Error&) {  // not every library's launches can be recorded
    return false;
  }
}

// This device's clocks right after each sample, while it is still warm: reasons to slow down are
// known for that moment only.
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
  // The lowest clock and the highest of the others over the ranks of `comm`, which may be null.
  void write(PointRecord& record, Communicator* comm) const {
    const bool counted = known_ && !std::isnan(slowed_s_);
    double values[7] = {known_ ? 0.0 : 1.0,           double(-worst_.sm_mhz), worst_.power_w,
                        double(worst_.temperature_c), throttled_ ? 1.0 : 0.0, counted ? 0.0 : 1.0,
                        counted ? slowed_s_ : 0.0};
    if (comm != nullptr) comm->all_max(values);
    if (values[0] > 0) return;  // some rank's NVML does not tell
    record.metrics["device_sm_mhz"] = -values[1];
    record.metrics["device_power_w"] = values[2];
    record.metrics["device_temperature_c"] = values[3];
    record.metrics["device_throttled"] = values[4];
    if (values[5] == 0) record.metrics["device_slowed_s"] = values[6];
  }

 private:
  DeviceClocks worst_{};
  bool known_ = false, throttled_ = false;
  // By the driver's own count, which misses nothing between two looks: before the first of them,
  // and since.
  double slowed_before_s_ = 0, slowed_s_ = 0;
};

// The sampler's clock is the device's: it stands still but for the runs.
SampleSet take_samples(DeviceExecutor& executor, DeviceTransport& transport,
                       const DeviceBuffer& flush, bool replay, const MeasureConfig& measure,
                       ClockWatch& clocks, Communicator& comm) {
  const Stream& stream = executor.compute_stream();
  double clock = 0;
  return sample({.warmup = int(measure.warmup),
                 .min_samples = int(measure.min_samples),
                 .max_samples = int(measure.max_samples),
                 .target_ci = measure.target_ci,
                 .time_budget_s = measure.point_timeout_s},
                {.prepare =
                     [&] {
                       clocks.look();
                       stream.fill(flush.data(), 0x5A, flush.size());
                       if (comm.size() == 1) return;  // and hides the host's first launches
                       stream.synchronize();
                       comm.barrier();
                       transport.stream_barrier(stream);
                     },
                 .run = [&] { clock += replay ? executor.replay() : executor.run(); },
                 // Each device has a clock of its own.
                 .over_ranks = [&](const RunSpan& own) { return comm.max_of(own.seconds()); },
                 .broadcast_from_root = [&](bool go_on) { return comm.broadcast_flag(go_on); },
                 .now = [&] { return clock; }});
}

// "why\n  hint: what to do" -> "why; what to do"
std::string on_one_line(std::string text) {
  const std::string_view hint = "\n  hint: ";
  if (const size_t at = text.find(hint); at != std::string::npos)
    text.replace(at, hint.size(), "; ");
  return text;
}

void fail(PointRecord& record, const std::string& reason) {
  record.status = PointStatus::kCheckFailed;
  record.reason = reason;
}

struct Busy {
  double compute_s = 0, merge_s = 0, attend_s = 0;
  double total() const { return compute_s + merge_s; }
};

// The rank that computes longest.
Busy busiest_rank(const Busy& mine, Communicator& comm) {
  std::vector<double> all(3 * size_t(comm.size()), 0.0);
  const size_t own = 3 * size_t(comm.rank());
  all[own] = mine.compute_s, all[own + 1] = mine.merge_s, all[own + 2] = mine.attend_s;
  comm.all_sum(all);
  Busy most;
  for (size_t i = 0; i < all.size(); i += 3) {
    const Busy one{all[i], all[i + 1], all[i + 2]};
    if (one.total() > most.total()) most = one;
  }
  return most;
}

// What parts of a run take, in runs of their own that note the times of ops: where ranks
// communicate, those of runs that compute alone, since what kernels lose to NCCL's is exposed
// communication. Ablations take turns with them.
void record_phases(PointRecord& record, DeviceExecutor& executor, DeviceTransport& transport,
                   const RunnerOptions& options, Communicator& comm) {
  const bool alone = comm.size() == 1;
  std::vector<RunMode> modes{alone ? RunMode::kFull : RunMode::kComputeOnly};
  if (!alone && options.ablations)
    modes.insert(modes.end(), {RunMode::kFull, RunMode::kComputeOnly, RunMode::kCommunicationOnly,
                               RunMode::kSerialised});
  for (const RunMode mode : modes) executor.run(mode);  // warms up
  std::vector<double> compute, merge, attend;
  const int rounds = options.ablations ? worthwhile_rounds(record.timing.median_s) : 1;
  const auto seconds = take_rounds(int(modes.size()), rounds, [&](int mode) {
    executor.time_ops(mode == 0);
    comm.barrier();
    transport.stream_barrier(executor.compute_stream());
    const double took = executor.run(modes[size_t(mode)]);
    if (mode == 0) {
      compute.push_back(executor.phases().compute_s);
      merge.push_back(executor.phases().merge_s);
      attend.push_back(executor.attend_s());
    }
    return comm.max_of(took);
  });
  executor.time_ops(false);
  const Busy busy = busiest_rank({median(compute), median(merge), median(attend)}, comm);
  record.phases = {.compute_s = busy.compute_s,
                   .communication_s = 0,
                   .exposed_communication_s = 0,
                   .merge_s = busy.merge_s};
  record.metrics["attend_s"] = busy.attend_s;
  if (modes.size() == 1) return;
  AblationsRecord& ablations = record.ablations.emplace();
  ablations.full_s = median(seconds[1]);
  ablations.compute_only_s = median(seconds[2]);
  ablations.communication_only_s = median(seconds[3]);
  ablations.serialised_s = median(seconds[4]);
  record.phases.communication_s = ablations.communication_only_s;
  record.phases.exposed_communication_s = ablations.full_s - ablations.compute_only_s;
}

// Lists and scratch memory depend on the kernel; slots must be what the program says.
void record_memory(PointRecord& record, const MemoryLedger& ledger, const PointPlan& plan,
                   const DeviceExecutor& executor, int64_t device_bytes, const DevicesInUse& use,
                   Communicator& comm) {
  int64_t slots = 0;
  for (const auto& [tag, bytes] : ledger.peak_by_tag())
    if (tag != "task_lists" && tag != "workspace") slots += bytes;
  const int64_t predicted =
      account(executor.sharded(), executor.program(), comm.rank()).memory_bytes();
  double values[4] = {double(ledger.peak_bytes()), slots == predicted ? 0.0 : 1.0,
                      double(device_bytes), double(use.ranks_on_mine)};
  comm.all_max(values);
  record.memory.measured_peak_bytes = std::llround(values[0]);
  record.memory.predicted_peak_bytes = plan.memory_bytes();
  record.memory.by_tag = heaviest_ranks_tags(ledger, comm);
  record.memory.device_bytes = device_memory_bytes() / std::llround(values[3]);
  // By cudaMemGetInfo, which counts all that use the device.
  if (values[3] == 1) record.metrics["device_memory_growth_bytes"] = values[2];
  if (values[1] > 0) fail(record, "measured memory of the slots differs from the predicted");
}

void record_check(PointRecord& record, DeviceExecutor& executor, const CheckConfig& config,
                  Communicator& comm) {
  const auto samples = choose_samples(executor.sharded(), config.sampled_queries);
  const CheckOutcome outcome = executor.check_samples(samples, comm, config.tolerance);
  record_outcome(record, outcome);
}

// Of a point: what it is charged with, and what only measuring needs.
struct PointMemory {
  MemoryLedger ledger, scratch;
  DeviceBuffer flush;
};

// With its inputs. Null, with the status in the record, when some rank's device has too little
// memory or its kernel refuses the work.
std::unique_ptr<DeviceExecutor> make_executor(const PointPlan& plan, const DeviceKernel& kernel,
                                              DeviceTransport& transport, PointMemory& memory,
                                              PointRecord& record, Communicator& comm) {
  std::unique_ptr<DeviceExecutor> executor;
  const auto refused = [&](const std::function<void()>& body) {
    std::string mine;
    try {
      body();
    } catch (const std::bad_alloc& e) {
      mine = concat("oom ", e.what());
    } catch (const std::exception& e) {
      mine = concat("error ", e.what());
    }
    for (const std::string& text : comm.all_texts(mine)) {
      if (text.empty()) continue;
      const bool oom = text.starts_with("oom ");
      record.status = oom ? PointStatus::kOom : PointStatus::kError;
      record.reason = text.substr(text.find(' ') + 1);
      record.memory.predicted_peak_bytes = plan.memory_bytes();
      record.memory.device_bytes = device_memory_bytes();
      return true;
    }
    return false;
  };
  if (refused([&] {
        memory.flush = DeviceBuffer(memory.scratch, "flush", flush_bytes());
        executor =
            std::make_unique<DeviceExecutor>(make_schedule(plan.point.params), comm.rank(), kernel,
                                             &transport, DeviceExecutor::Options{}, memory.ledger);
        executor->time_ops(false);
      }))
    return nullptr;
  if (refused([&] { executor->fill_inputs(); })) {
    transport.close();
    return nullptr;
  }
  return executor;
}

}  // namespace

void record_clocks(PointRecord& record) {
  ClockWatch clocks;
  clocks.look();
  clocks.write(record, nullptr);
}

int64_t device_memory_bytes() {
  return describe_devices().devices.at(size_t(current_device())).memory_bytes;
}

double device_peak_flops(int devices) {
  const DeviceInfo d = describe_devices().devices.at(size_t(current_device()));
  return tensor_flops_per_clock(d) * d.multiprocessors * d.clock_khz * 1e3 * devices;
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
    throw UsageError(concat("--max-bytes ", format_bytes(double(max_bytes)),
                            ": two such buffers per rank do not fit into a GPU's memory\n  hint: "
                            "choose a smaller one"));
  return make_device_operations(std::move(moves), max_bytes);
}

std::vector<std::string> devices_of_ranks(Communicator& comm) {
  return comm.all_texts(describe_devices().devices.at(size_t(current_device())).uuid);
}

PointRecord run_device_point(const PointPlan& plan, const RunnerOptions& options,
                             Communicator& comm) {
  PointRecord record = make_record(plan.point);
  record.params.transport = options.device_transport;
  const PointParams& p = plan.point.params;
  use_device(device_of_rank(comm));
  const int64_t free_before = device_free_bytes();
  std::unique_ptr<DeviceTransport> transport;
  try {
    transport = make_device_transport(options.device_transport, comm);
  } catch (const UsageError& e) {  // of so many ranks, by all of them; others may fit
    record.status = PointStatus::kSkippedUnsupported;
    record.reason = on_one_line(e.what());
    return record;
  }
  record.params.transport = std::string(transport->name());
  record.comm.collectives_used = plan.collectives_used;
  const DevicesInUse use = devices_in_use(comm);
  record.metrics["devices"] = use.devices;
  const double peak = device_peak_flops(use.devices);
  record.metrics["device_peak_flops"] = peak / use.devices;
  record_work(record, plan, peak);
  if (comm.rank() == 0) record_depth(record, p);
  if (comm.size() <= 64 || comm.rank() == 0) require_correct(make_schedule(p));

  const auto kernel = make_device_kernel(p.kernel);
  PointMemory memory;
  memory.ledger.set_limit(plan.device_limit_bytes);
  const auto executor = make_executor(plan, *kernel, *transport, memory, record, comm);
  if (!executor) return record;
  if (comm.size() > 1) {  // a kernel's first launch may wait for a device that waits for its peers
    executor->run(RunMode::kComputeOnly);
    comm.barrier();
  }
  const bool replay = worth_a_replay(*executor, options.measure, comm);
  record.metrics["graph_replay"] = replay ? 1 : 0;
  transport->reset_counters();
  ClockWatch clocks;
  const SampleSet samples =
      take_samples(*executor, *transport, memory.flush, replay, options.measure, clocks, comm);
  clocks.look();
  // With what the transport and lazily loaded kernels took.
  const int64_t device_bytes = free_before - device_free_bytes() - memory.flush.size();
  const int64_t runs = samples.warmup + int64_t(samples.samples_s.size());
  if (samples.samples_s.empty()) {
    transport->close();
    record.status = PointStatus::kTimeout;
    record.reason =
        concat("no sample within measure.point_timeout_s = ", options.measure.point_timeout_s);
    return record;
  }
  clocks.write(record, &comm);
  set_timing(record, samples.samples_s, samples.warmup);
  record_communication(record, account(executor->sharded(), executor->program(), comm.rank()),
                       transport->counters(), runs, comm);
  record_per_rank(record, make_schedule(p), samples, comm);
  record_memory(record, memory.ledger, plan, *executor, device_bytes, use, comm);
  record_check(record, *executor, options.check, comm);  // of the last sample's output
  const auto worker = make_device_row_worker();
  record_content(record, executor->summarize_output(*worker), executor->digest_inputs(*worker),
                 comm);
  executor->time_ops(true);
  executor->run();
  record_timeline(record, executor->program(), executor->op_times(), comm);
  executor->time_ops(false);
  record_phases(record, *executor, *transport, options, comm);  // its last mode spoils the buffers
  transport->close();
  record_work(record, plan, peak);
  return record;
}

}  // namespace longnet
