#include "run/measure_point.h"

#include <algorithm>
#include <new>
#include <vector>

#include "core/check.h"
#include "core/stopwatch.h"
#include "measure/sampler.h"
#include "run/fill_record.h"
#include "run/peak_windows.h"
#include "run/record_ranks.h"
#include "run/run_checks.h"
#include "schedule/check_schedule.h"

namespace longnet {
namespace {

// "why\n  hint: what to do" -> "why; what to do"
std::string on_one_line(std::string text) {
  const std::string_view hint = "\n  hint: ";
  if (const size_t at = text.find(hint); at != std::string::npos)
    text.replace(at, hint.size(), "; ");
  return text;
}

// Null, with the status in the record, where these ranks do not fit the transport.
std::unique_ptr<PointSession> open_session(const PointPlan& plan, const RunnerOptions& options,
                                           PointRecord& record, Communicator& comm) {
  try {
    auto session = backend_of(plan.point.params.kernel).open(plan, options, comm);
    record.params.transport = session->transport();
    session->record_machine(record);
    return session;
  } catch (const UsageError& e) {  // all ranks get it; points of other ranks may fit
    record.params.transport = options.device_transport;
    set_status(record, PointStatus::kSkippedUnsupported, on_one_line(e.what()));
    return nullptr;
  }
}

// True, with the status in the record of every rank, when `body` throws on some rank.
bool refused(const std::function<void()>& body, const PointPlan& plan, PointRecord& record,
             Communicator& comm) {
  Refusal mine;
  try {
    body();
  } catch (const std::bad_alloc& e) {
    mine = {PointStatus::kOom, out_of_memory_reason(e, plan, " per rank")};
  } catch (const std::exception& e) {
    mine = {PointStatus::kError, e.what()};
  }
  for (const Refusal& refusal : gather(comm, mine)) {
    if (refusal.status == PointStatus::kOk) continue;
    set_status(record, refusal.status, refusal.reason);
    set_memory(record, plan.memory_bytes());
    return true;
  }
  return false;
}

// False, with the status in the record of every rank, when some rank cannot. A backward pass starts
// from the output of a forward one and what that keeps, so a forward runs here once.
bool bind_and_fill(PointSession& session, const PointPlan& plan, const Schedule& schedule,
                   PointRecord& record, Communicator& comm) {
  const auto ready = [&](const Schedule& of_pass) {
    return !refused([&] { session.bind(of_pass); }, plan, record, comm) &&
           !refused([&] { session.fill_inputs(); }, plan, record, comm);
  };
  if (has_forward(plan.point.params.pass)) return ready(schedule);
  PointParams forward = plan.point.params;
  forward.pass = Pass::kForward;
  if (!ready(make_schedule(forward))) return false;
  session.executor().run();
  std::vector<Kept> kept = schedule.program(comm.rank()).kept;
  kept.push_back({kOutputSlot, {.slot = kOutputSlot, .rows = {}}});
  std::vector<std::vector<std::byte>> rows;
  const auto copy = [&] {
    for (const Kept& k : kept) {
      const auto memory = session.executor().bound().memory(k.forward);
      session.executor().read(memory, rows.emplace_back(memory.size()).data());
    }
  };
  if (refused(copy, plan, record, comm) || !ready(schedule)) return false;
  for (size_t i = 0; i < kept.size(); ++i)
    session.executor().write(rows[i], session.executor().bound().memory(kept[i].view.slot));
  return true;
}

// The share of the peak of each sample, of what the hardware showed right beside it.
void record_share_of_peak(PointRecord& record, const PeakWindows& windows, const SampleSet& samples,
                          double highest) {
  std::vector<double> rates;
  for (const double seconds : samples.samples_s) rates.push_back(record.work.flops / seconds);
  set_share_of_peak(record, rates, windows.beside(samples), highest);
}

// Fails the point where a sample is shorter than what it is made of: a rank's own time and, of the
// last one, that of its ops where each run times them.
void require_whole_samples(PointRecord& record, const Executor& executor, const SampleSet& samples,
                           Communicator& comm) {
  double share = executor.times_every_run() ? executor.phases().all_s() / samples.own_s.back() : 0;
  for (size_t i = 0; i < samples.samples_s.size(); ++i)
    share = std::max(share, samples.own_s[i] / samples.samples_s[i]);
  share = comm.max_of(share);
  constexpr double kRounding = 1e-9;
  if (!(share <= 1 + kRounding))
    fail_check(record, concat("a sample is shorter than what a rank ran in it, of which it has ",
                              1 / share));
}

// Records the times of the last sample's ops.
void record_last_run(PointRecord& record, PointSession& session, const SampleSet& samples,
                     Communicator& comm) {
  Executor& executor = session.executor();
  require_whole_samples(record, executor, samples, comm);
  double seconds = samples.own_s.back();
  if (!executor.times_every_run()) {
    executor.time_ops(true);
    seconds = executor.run();
    executor.time_ops(false);
  }
  if (has_layers(executor.program().scope))
    record.metrics["op_time_share"] = -comm.max_of(-executor.phases().all_s() / seconds);
  record_timeline(record, executor, comm);
}

}  // namespace

PointRecord measure_point(const PointPlan& plan, const RunnerOptions& options, Communicator& comm) {
  PointRecord record = make_record(plan.point);
  const PointParams& p = plan.point.params;
  const auto session = open_session(plan, options, record, comm);
  if (!session) return record;
  session->progress = options.progress;
  set_plan(record, plan);
  if (comm.rank() == 0) set_depth(record, p);
  const Schedule schedule = make_schedule(p);
  // Every rank checks, so that all fail together; beyond 64 ranks only the first one has the time.
  double proof_s = 0, windows_s = 0;
  if (comm.size() <= 64 || comm.rank() == 0) {
    const Stopwatch watch(proof_s);
    require_correct(schedule);
  }

  if (bind_and_fill(*session, plan, schedule, record, comm)) {
    session->progress();
    session->warm_up(record);
    session->progress();
    const auto checks = make_run_checks(*session, plan, options, comm);
    session->reset_counters();
    const double window_s = std::clamp(0.05 * plan.estimated_s, 1e-3, 50e-3);
    PeakWindows windows([&] {
      const Stopwatch watch(windows_s);
      return session->peak_now(window_s);
    });
    const MeasureConfig& measure = options.measure;
    const SampleSet samples = windows.sample({.warmup = int(measure.warmup),
                                              .min_samples = int(measure.min_samples),
                                              .max_samples = int(measure.max_samples),
                                              .target_ci = measure.target_ci,
                                              .time_budget_s = measure.point_timeout_s},
                                             session->sample_hooks(), [&] {
                                               session->progress();
                                               checks->prepare_run();
                                             });
    session->record_conditions(record);
    if (samples.samples_s.empty()) {
      set_status(
          record, PointStatus::kTimeout,
          concat("no sample within measure.point_timeout_s = ", options.measure.point_timeout_s));
    } else {
      set_timing(record, samples.samples_s, samples.warmup, session->reduction());
      record_counts(record, *session, plan, samples, comm);
      checks->record(record);
      record.check.proof_s = comm.max_of(proof_s);  // the check has replaced the rest
      record_last_run(record, *session, samples, comm);
      record_phases(record, *session, options.ablations, comm);  // last: it spoils the buffers
      record_share_of_peak(record, windows, samples, session->peak_flops());
      record.metrics["peak_windows_s"] = comm.max_of(windows_s);
    }
  }
  session->close();
  return record;
}

}  // namespace longnet
