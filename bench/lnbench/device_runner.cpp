#include "lnbench/device_runner.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "comm/cuda/device_transport.h"
#include "core/check.h"
#include "core/cuda/device_clocks.h"
#include "execute/cuda/device_executor.h"
#include "io/units.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/device_timer.h"
#include "lnbench/record_parts.h"
#include "measure/rounds.h"
#include "measure/sampler.h"
#include "measure/statistics.h"
#include "schedule/check_schedule.h"

namespace longnet {
namespace {

// Runs that are shorter than this are replayed from a CUDA graph, where one rank runs alone.
constexpr double kReplayBelow_s = 2e-4;

bool worth_a_replay(DeviceExecutor& executor, const MeasureConfig& measure, Communicator& comm) {
  if (comm.size() > 1 || !executor.can_replay()) return false;
  double took = 0;
  for (int64_t i = 0; i < std::max<int64_t>(1, measure.warmup); ++i) took = executor.run();
  if (took >= kReplayBelow_s) return false;
  try {
    executor.replay();
    return true;
  } catch (const Error&) {  // not every library's launches can be recorded
    return false;
  }
}

// This rank's phases in every run, warm-up included. A replayed graph has none: they are those of
// the run before.
class PhaseSamples {
 public:
  void add(const DeviceExecutor& executor) {
    const RunPhases p = executor.phases();
    const double now[] = {p.compute_s, p.merge_s, p.exposed_communication_s, executor.attend_s()};
    for (size_t i = 0; i < seconds_.size(); ++i) seconds_[i].push_back(now[i]);
  }
  // Over the last `samples` runs: compute, merge, exposed communication, attends.
  std::array<double, 4> medians(size_t samples) const {
    std::array<double, 4> found{};
    for (size_t i = 0; i < found.size(); ++i)
      found[i] = median(std::span(seconds_[i]).last(samples));
    return found;
  }

 private:
  std::array<std::vector<double>, 4> seconds_;
};

// The sampler's clock is the device's: it stands still but for the runs.
SampleSet take_samples(DeviceExecutor& executor, const DeviceBuffer& flush, bool replay,
                       const MeasureConfig& measure, PhaseSamples& phases, Communicator& comm) {
  const Stream& stream = executor.compute_stream();
  double clock = 0;
  return sample({.warmup = int(measure.warmup),
                 .min_samples = int(measure.min_samples),
                 .max_samples = int(measure.max_samples),
                 .target_ci = measure.target_ci,
                 .time_budget_s = measure.point_timeout_s},
                {.prepare =
                     [&] {
                       stream.fill(flush.data(), 0x5A, flush.size());
                       if (comm.size() == 1) return;  // and hides the host's first launches
                       stream.synchronize();
                       comm.barrier();
                     },
                 .run =
                     [&] {
                       clock += replay ? executor.replay() : executor.run();
                       phases.add(executor);
                     },
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

// `values`: this rank's medians; the record has the busiest rank's.
void record_phases(PointRecord& record, std::array<double, 4> values, DeviceExecutor& executor,
                   const RunnerOptions& options, Communicator& comm) {
  comm.all_max(values);
  record.phases = {.compute_s = values[0],
                   .communication_s = 0,
                   .exposed_communication_s = comm.size() > 1 ? values[2] : 0,
                   .merge_s = values[1]};
  record.metrics["attend_s"] = values[3];
  if (comm.size() == 1 || !options.ablations) return;
  constexpr std::array<RunMode, 4> kModes{RunMode::kFull, RunMode::kComputeOnly,
                                          RunMode::kCommunicationOnly, RunMode::kSerialised};
  for (const RunMode mode : kModes) executor.run(mode);  // warms up
  const auto seconds =
      take_rounds(int(kModes.size()), worthwhile_rounds(record.timing.median_s), [&](int mode) {
        comm.barrier();
        return comm.max_of(executor.run(kModes[size_t(mode)]));
      });
  AblationsRecord& ablations = record.ablations.emplace();
  ablations.full_s = median(seconds[0]);
  ablations.compute_only_s = median(seconds[1]);
  ablations.communication_only_s = median(seconds[2]);
  ablations.serialised_s = median(seconds[3]);
  record.phases.communication_s = ablations.communication_only_s;
  record.phases.exposed_communication_s = ablations.full_s - ablations.compute_only_s;
}

void record_communication(PointRecord& record, const DeviceExecutor& executor,
                          const DeviceTransport& transport, int64_t runs, Communicator& comm) {
  const RankAccount expected = account(executor.sharded(), executor.program(), comm.rank());
  const CommCounters& c = transport.counters();
  const bool equal = c.bytes_sent == runs * expected.bytes_sent &&
                     c.messages_sent == runs * expected.messages_sent &&
                     c.bytes_received == runs * expected.bytes_received;
  double values[5] = {double(c.bytes_sent) / double(runs), double(expected.bytes_sent),
                      double(c.messages_sent) / double(runs), double(expected.messages_sent),
                      equal ? 0.0 : 1.0};
  comm.all_max(values);
  record.comm.counted_bytes_per_rank = std::llround(values[0]);
  record.comm.predicted_bytes_per_rank = std::llround(values[1]);
  record.comm.counted_messages_per_rank = std::llround(values[2]);
  record.comm.predicted_messages_per_rank = std::llround(values[3]);
  if (values[4] > 0) fail(record, "counted bytes or messages differ from the predicted ones");
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
  record.memory.by_tag = ledger.peak_by_tag();
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

// Null, with the status in the record, when some rank's device has too little memory.
std::unique_ptr<DeviceExecutor> make_executor(const PointPlan& plan, const DeviceKernel& kernel,
                                              DeviceTransport& transport, PointMemory& memory,
                                              PointRecord& record, Communicator& comm) {
  std::unique_ptr<DeviceExecutor> executor;
  std::string refusal;
  try {
    memory.flush = DeviceBuffer(memory.scratch, "flush", flush_bytes());
    executor =
        std::make_unique<DeviceExecutor>(make_schedule(plan.point.params), comm.rank(), kernel,
                                         &transport, DeviceExecutor::Options{}, memory.ledger);
  } catch (const std::bad_alloc& e) {
    refusal = e.what();
  }
  for (const std::string& text : comm.all_texts(refusal)) {
    if (text.empty()) continue;
    record.status = PointStatus::kOom;
    record.reason = text;
    return nullptr;
  }
  return executor;
}

}  // namespace

void record_clocks(PointRecord& record) {
  const DeviceClocks clocks = read_device_clocks(current_device());
  if (!clocks.known) return;
  record.metrics["device_sm_mhz"] = clocks.sm_mhz;
  record.metrics["device_power_w"] = clocks.power_w;
  record.metrics["device_temperature_c"] = clocks.temperature_c;
  record.metrics["device_throttled"] = clocks.throttled();
}

int64_t device_memory_bytes() {
  return describe_devices().devices.at(size_t(current_device())).memory_bytes;
}

double device_peak_flops(int devices) {
  const DeviceInfo d = describe_devices().devices.at(size_t(current_device()));
  const double per_clock = d.major >= 9 ? 4096 : 2048;
  return per_clock * d.multiprocessors * d.clock_khz * 1e3 * devices;
}

PointRecord run_device_point(const PointPlan& plan, const RunnerOptions& options,
                             Communicator& comm) {
  PointRecord record = make_record(plan.point);
  const PointParams& p = plan.point.params;
  const DeviceScope device(device_of_rank(comm));
  std::unique_ptr<DeviceTransport> transport;
  try {
    transport = make_device_transport(options.device_transport, comm);
  } catch (const UsageError& e) {  // of so many ranks, by all of them; others may fit
    record.status = PointStatus::kSkippedUnsupported;
    record.reason = on_one_line(e.what());
    return record;
  }
  record.params.transport = std::string(transport->name());
  const DevicesInUse use = devices_in_use(comm);
  record.metrics["devices"] = use.devices;
  const double peak = device_peak_flops(use.devices);
  record_work(record, plan, peak);
  if (comm.rank() == 0) record_depth(record, p);
  if (comm.size() <= 64 || comm.rank() == 0) require_correct(make_schedule(p));

  const int64_t free_before = device_free_bytes();
  const auto kernel = make_device_kernel(p.kernel);
  PointMemory memory;
  const auto executor = make_executor(plan, *kernel, *transport, memory, record, comm);
  if (!executor) return record;
  executor->fill_inputs();
  const int64_t device_bytes = free_before - device_free_bytes() - memory.flush.size();
  const bool replay = worth_a_replay(*executor, options.measure, comm);
  record.metrics["graph_replay"] = replay ? 1 : 0;
  transport->reset_counters();
  PhaseSamples phases;
  const SampleSet samples =
      take_samples(*executor, memory.flush, replay, options.measure, phases, comm);
  const int64_t runs = samples.warmup + int64_t(samples.samples_s.size());
  if (samples.samples_s.empty()) {
    transport->close();
    record.status = PointStatus::kTimeout;
    record.reason =
        concat("no sample within measure.point_timeout_s = ", options.measure.point_timeout_s);
    return record;
  }
  record_clocks(record);
  set_timing(record, samples.samples_s, samples.warmup);
  record_communication(record, *executor, *transport, runs, comm);
  record_per_rank(record, make_schedule(p), samples, comm);
  record_memory(record, memory.ledger, plan, *executor, device_bytes, use, comm);
  record_check(record, *executor, options.check, comm);  // of the last sample's output
  // Its last mode spoils the buffers.
  record_phases(record, phases.medians(samples.samples_s.size()), *executor, options, comm);
  transport->close();
  record_work(record, plan, peak);
  return record;
}

}  // namespace longnet
