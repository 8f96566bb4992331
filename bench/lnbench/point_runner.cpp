#include "lnbench/point_runner.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <sstream>

#include "core/check.h"
#include "execute/program_executor.h"
#include "execute/sample_check.h"
#include "io/units.h"
#include "kernels/attention_kernel.h"
#include "kernels/cuda/device_kernel.h"
#include "lnbench/ablations.h"
#include "lnbench/device_runner.h"
#include "lnbench/machine.h"
#include "lnbench/rank_clock.h"
#include "lnbench/record_parts.h"
#include "measure/sampler.h"
#include "measure/statistics.h"
#include "schedule/check_schedule.h"
#include "schedule/program_text.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

constexpr int kTimelineOps = 64, kTimelineRanks = 8;  // beyond that a picture shows nothing

SampleSet take_samples(ProgramExecutor& executor, const MeasureConfig& measure,
                       const RankClock& clock) {
  return sample({.warmup = int(measure.warmup),
                 .min_samples = int(measure.min_samples),
                 .max_samples = int(measure.max_samples),
                 .target_ci = measure.target_ci,
                 .time_budget_s = measure.point_timeout_s},
                clock.hooks([&] { executor.run(); }));
}

void record_timeline(PointRecord& record, const ProgramExecutor& executor, Communicator& comm) {
  const auto& ops = executor.program().ops;
  if (comm.max_of(double(ops.size())) > kTimelineOps || comm.size() > kTimelineRanks) return;
  std::ostringstream mine;
  mine.precision(9);
  for (size_t i = 0; i < ops.size(); ++i) {
    const std::string text = to_text(ops[i]);
    const bool compute = !is_communication(ops[i].what);
    mine << (compute ? "compute" : "communication") << ' ' << executor.op_times()[i].begin_s << ' '
         << executor.op_times()[i].end_s << ' ' << text.substr(0, text.find(' ')) << '\n';
  }
  const auto all = comm.all_texts(mine.str());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::istringstream lines(all[rank]);
    TimelineEntry entry{.rank = int(rank), .lane = {}, .op = {}};
    while (lines >> entry.lane >> entry.begin_s >> entry.end_s >> entry.op)
      record.timeline.push_back(entry);
  }
}

// Counters of all runs so far must be a whole multiple of the prediction for one.
void record_communication(PointRecord& record, const ProgramExecutor& executor, int64_t runs,
                          Communicator& comm) {
  const RankAccount expected = account(executor.sharded(), executor.program(), comm.rank());
  const CommCounters& c = comm.counters();
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
  if (values[4] > 0) {
    record.status = PointStatus::kCheckFailed;
    record.reason = "counted bytes or messages differ from the predicted ones";
  }
}

// Tags of the rank whose peak is the largest (the first of them), on every rank.
std::map<std::string, int64_t> heaviest_ranks_tags(const MemoryLedger& ledger, Communicator& comm) {
  std::ostringstream mine;
  mine << ledger.peak_bytes() << '\n';
  for (const auto& [tag, bytes] : ledger.peak_by_tag()) mine << tag << ' ' << bytes << '\n';
  int64_t most = -1;
  std::map<std::string, int64_t> tags;
  for (const std::string& text : comm.all_texts(mine.str())) {
    std::istringstream lines(text);
    int64_t peak = 0, bytes = 0;
    lines >> peak;
    if (peak <= most) continue;
    most = peak;
    tags.clear();
    for (std::string tag; lines >> tag >> bytes;) tags[tag] = bytes;
  }
  return tags;
}

void record_memory(PointRecord& record, const MemoryLedger& ledger, const PointPlan& plan,
                   const ProgramExecutor& executor, Communicator& comm) {
  const int64_t predicted =
      account(executor.sharded(), executor.program(), comm.rank()).memory_bytes() +
      plan.workspace_bytes;
  double values[2] = {double(ledger.peak_bytes()), ledger.peak_bytes() == predicted ? 0.0 : 1.0};
  comm.all_max(values);
  record.memory.measured_peak_bytes = std::llround(values[0]);
  record.memory.predicted_peak_bytes = plan.memory_bytes();
  record.memory.by_tag = heaviest_ranks_tags(ledger, comm);
  if (values[1] > 0) {
    record.status = PointStatus::kCheckFailed;
    record.reason = "measured memory differs from the predicted";
  }
}

void record_check(PointRecord& record, const ProgramExecutor& executor, const CheckConfig& config,
                  Communicator& comm) {
  const auto samples = choose_samples(executor.sharded(), config.sampled_queries);
  const CheckOutcome outcome = check_samples(executor, samples, comm, config.tolerance);
  record_outcome(record, outcome);
}

// Digests are sums modulo 2^64: they travel as four digits of 16 bits each.
uint64_t sum_modulo(uint64_t mine, Communicator& comm) {
  double digits[4];
  for (int i = 0; i < 4; ++i) digits[i] = double(mine >> (16 * i) & 0xFFFF);
  comm.all_sum(digits);
  uint64_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += uint64_t(digits[i]) << (16 * i);
  return sum;
}

void record_content(PointRecord& record, const BoundProgram& bound, Communicator& comm) {
  const auto worker = make_cpu_row_worker();
  OutputSummary mine;
  for (const OutputSummary& head : bound.summarize_output(*worker)) mine.add(head);
  double sums[6] = {double(mine.rows), double(mine.absent_rows), double(mine.nan_values),
                    mine.sum,          mine.sum_squares,         mine.lse_sum};
  double extremes[2] = {-mine.min, mine.max};
  comm.all_sum(sums);
  comm.all_max(extremes);
  record.content = to_content({.rows = std::llround(sums[0]),
                               .absent_rows = std::llround(sums[1]),
                               .nan_values = std::llround(sums[2]),
                               .sum = sums[3],
                               .sum_squares = sums[4],
                               .min = -extremes[0],
                               .max = extremes[1],
                               .lse_sum = sums[5],
                               .digest = sum_modulo(mine.digest, comm)});
  record.content->input_digest = sum_modulo(bound.digest_inputs(*worker), comm);
}

}  // namespace

PointRecord run_point(const PointPlan& plan, const RunnerOptions& options, Communicator& comm) {
  if (is_device_kernel(plan.point.params.kernel)) return run_device_point(plan, options, comm);
  PointRecord record = make_record(plan.point);
  record.params.transport = std::string(comm.transport());
  const std::vector<RankPlace> places = gather_places(comm);
  const int cores = usable_cores(places, plan.point.params.threads);
  const double peak = options.peak_flops_per_thread * cores;
  record.metrics["usable_cores"] = cores;
  record_work(record, plan, peak);
  record.comm.collectives_used = plan.collectives_used;
  if (comm.rank() == 0) record_depth(record, plan.point.params);
  const double resident_before = peak_resident_bytes();

  const PointParams& p = plan.point.params;
  const Schedule schedule = make_schedule(p);
  // Every rank checks, so that all fail together; beyond 64 ranks only the first one has the time.
  if (comm.size() <= 64 || comm.rank() == 0) require_correct(schedule);
  const auto kernel = make_kernel(p.kernel);
  MemoryLedger ledger;
  std::unique_ptr<ProgramExecutor> executor;
  bool out_of_memory = false;
  try {
    executor = std::make_unique<ProgramExecutor>(schedule, *kernel, p.threads, comm, ledger);
  } catch (const std::bad_alloc&) {
    out_of_memory = true;
  }
  if (comm.max_of(out_of_memory ? 1.0 : 0.0) > 0) {
    record.status = PointStatus::kOom;
    record.memory.predicted_peak_bytes = plan.memory_bytes();
    record.reason =
        concat("the machine refused ", format_bytes(double(plan.memory_bytes())), " per rank");
    return record;
  }
  executor->fill_inputs();
  comm.reset_counters();
  const RankClock clock(comm, places);
  record.timing.reduction = clock.reduction();
  const SampleSet samples = take_samples(*executor, options.measure, clock);
  const int64_t runs = samples.warmup + int64_t(samples.samples_s.size());
  if (samples.samples_s.empty()) {
    record.status = PointStatus::kTimeout;
    record.reason =
        concat("no sample within measure.point_timeout_s = ", options.measure.point_timeout_s);
    return record;
  }
  set_timing(record, samples.samples_s, samples.warmup);
  record_communication(record, *executor, runs, comm);
  record_per_rank(record, schedule, samples, comm);
  record_memory(record, ledger, plan, *executor, comm);
  if (comm.transport() == "mpi")  // a process per rank: the system's view beside the ledger's
    record.metrics["resident_growth_bytes"] = comm.max_of(peak_resident_bytes() - resident_before);
  record_check(record, *executor, options.check, comm);  // of the last sample's output
  record_content(record, executor->bound(), comm);
  record_timeline(record, *executor, comm);
  record_phases(record, *executor, comm);
  if (options.ablations)  // the communication alone spoils the buffers: last
    record_ablations(record, *executor, clock, comm);
  record_work(record, plan, peak);
  return record;
}

}  // namespace longnet
