#include "run/point_runner.h"

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
#include "measure/sampler.h"
#include "measure/statistics.h"
#include "run/ablations.h"
#include "run/device_runner.h"
#include "run/machine.h"
#include "run/rank_clock.h"
#include "run/record_parts.h"
#include "schedule/check_schedule.h"
#include "schedule/program_text.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

SampleSet take_samples(ProgramExecutor& executor, const MeasureConfig& measure,
                       const RankClock& clock) {
  return sample({.warmup = int(measure.warmup),
                 .min_samples = int(measure.min_samples),
                 .max_samples = int(measure.max_samples),
                 .target_ci = measure.target_ci,
                 .time_budget_s = measure.point_timeout_s},
                clock.hooks([&] { executor.run(); }));
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
  record_communication(record, account(executor->sharded(), executor->program(), comm.rank()),
                       comm.counters(), runs, comm);
  record_per_rank(record, schedule, samples, comm);
  record_memory(record, ledger, plan, *executor, comm);
  if (comm.transport() == "mpi")  // a process per rank: the system's view beside the ledger's
    record.metrics["resident_growth_bytes"] = comm.max_of(peak_resident_bytes() - resident_before);
  record_check(record, *executor, options.check, comm);  // of the last sample's output
  const auto worker = make_cpu_row_worker();
  record_content(record, executor->bound().summarize_output(*worker),
                 executor->bound().digest_inputs(*worker), comm);
  record_timeline(record, executor->program(), executor->op_times(), comm);
  record_phases(record, *executor, comm);
  if (options.ablations)  // the communication alone spoils the buffers: last
    record_ablations(record, *executor, clock, comm);
  record_work(record, plan, peak);
  return record;
}

}  // namespace longnet
