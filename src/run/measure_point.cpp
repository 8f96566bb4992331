#include "run/measure_point.h"

#include <algorithm>
#include <array>
#include <functional>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/random.h"
#include "core/stopwatch.h"
#include "measure/sampler.h"
#include "run/fill_record.h"
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
    set_transport(record, session->transport());
    session->record_machine(record);
    return session;
  } catch (const UsageError& e) {  // all ranks get it; points of other ranks may fit
    set_transport(record, options.device_transport);
    set_status(record, PointStatus::kSkippedUnsupported, on_one_line(e.what()));
    return nullptr;
  }
}

// True, with the status in the record of every rank, when `body` throws on some rank.
bool refused(const std::function<void()>& body, const PointPlan& plan, PointRecord& record,
             Communicator& comm) {
  std::string mine;
  try {
    body();
  } catch (const std::bad_alloc& e) {
    mine = "oom " + out_of_memory_reason(e, plan, " per rank");
  } catch (const std::exception& e) {
    mine = concat("error ", e.what());
  }
  for (const std::string& text : comm.all_texts(mine)) {
    if (text.empty()) continue;
    set_status(record, text.starts_with("oom ") ? PointStatus::kOom : PointStatus::kError,
               text.substr(text.find(' ') + 1));
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
           !refused([&] { session.executor().fill_inputs(); }, plan, record, comm);
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

// Errors of a run's output, and of its gradients in a backward pass.
struct RunErrors {
  SampleErrors output;
  GradientErrors gradients{};
  void keep_worst(const RunErrors& other) {
    output.keep_worst(other.output);
    for (size_t i = 0; i < gradients.size(); ++i) gradients[i].keep_worst(other.gradients[i]);
  }
};

// Proves every run of a point, beside the timing: what a run must write is poisoned before it, and
// sampled rows of what it wrote are held against the definition, which recomputes them once. An
// output that nobody wrote must fail: a check that passes it proves nothing. Laws of gradients,
// which take all rows of all ranks, are judged after the first sample, the last and one between
// them.
class RunChecks {
 public:
  // Runs the program once where the check of gradients needs an output. Collective.
  RunChecks(PointSession& session, const RunnerOptions& options, Communicator& comm)
      : executor_(session.executor()),
        worker_(session.worker()),
        config_(options.check),
        comm_(comm),
        first_sample_(options.measure.warmup + 1) {
    const Stopwatch watch(compare_s_);
    const ShardedProblem& s = executor_.sharded();
    const int64_t between = std::max<int64_t>(1, options.measure.min_samples - 2);
    random_sample_ =
        first_sample_ + 1 +
        philox4x32_10({}, uint32_t(s.problem.seed), kRandomSampleKey).word[0] % between;
    choice_ = stratify(s, choose_samples(s, config_.sampled_queries), config_.max_queries);
    expected_ = expected_rows(executor_.bound(), s.problem, choice_.queries);
    const Pass pass = executor_.program().pass;
    if (has_backward(pass) && has_forward(pass)) executor_.run();
    if (has_backward(pass)) gradients_.emplace(executor_, choice_.queries, comm);
    executor_.poison(worker_);
    passes_poison_ = judge(errors_of_run(), executor_.count_nan()).all.pass;
  }

  // Before each run; a barrier must follow, since a rank that runs sends into the others' buffers.
  // Collective.
  void prepare_run() {
    if (runs_ > 0) check_last_run(runs_ == first_sample_ || runs_ == random_sample_);
    ++runs_;
    const Stopwatch watch(poison_s_);
    executor_.poison(worker_);
  }

  // Once, after the last run. Collective.
  void record(PointRecord& record) {
    check_last_run(/*laws=*/true);
    const Judged judged = judge(*errors_, nan_values_);
    set_check(record, judged.all, passes_poison_);
    set_strata(record, choice_, judged.all.chosen, config_.max_queries);
    if (gradients_) set_gradients(record, judged.gradients, *laws_, {choice_, gradients_->keys()});
    set_check_cost(record, runs_, comm_.max_of(poison_s_), comm_.max_of(compare_s_));
  }

 private:
  struct Judged {
    CheckOutcome all;  // the worst of the output and the gradients
    std::array<CheckOutcome, 3> gradients{};
  };

  RunErrors errors_of_run() const {
    RunErrors errors{executor_.compare(expected_)};
    if (gradients_) errors.gradients = gradients_->compare();
    return errors;
  }
  Judged judge(const RunErrors& errors, int64_t nan_values) const {
    Judged judged{judge_together(executor_, errors.output, nan_values, comm_, config_.tolerance)};
    if (!gradients_) return judged;
    judged.gradients = gradients_->judge_together(errors.gradients, comm_, config_.tolerance);
    judged.all = worst_of(judged.all, judged.gradients);
    return judged;
  }
  void check_last_run(bool laws) {
    const Stopwatch watch(compare_s_);
    const RunErrors errors = errors_of_run();
    errors_ ? errors_->keep_worst(errors) : void(errors_ = errors);
    nan_values_ = std::max(nan_values_, executor_.count_nan());
    if (!gradients_ || !laws) return;
    const Conservation found = conservation(executor_, comm_);
    laws_ ? laws_->keep_worst(found) : void(laws_ = found);
  }

  static constexpr uint32_t kRandomSampleKey = 0x3C3C3C3C;
  Executor& executor_;
  const RowWorker& worker_;
  const CheckConfig& config_;
  Communicator& comm_;
  int64_t first_sample_, random_sample_;  // counted as runs, from 1
  SampleChoice choice_;
  ExpectedRows expected_;
  std::optional<GradientCheck> gradients_;
  std::optional<RunErrors> errors_;   // the worst so far
  std::optional<Conservation> laws_;  // likewise
  bool passes_poison_ = false;
  int64_t runs_ = 0, nan_values_ = 0;
  double poison_s_ = 0, compare_s_ = 0;
};

// Windows in which the hardware shows its peak, right before and right after each run: others may
// slow both down, and do not change the share of the peak.
class PeakWindows {
 public:
  PeakWindows(PointSession& session, double run_s)
      : session_(session), seconds_(std::clamp(0.05 * run_s, 1e-3, 50e-3)) {}

  void take() { peaks_.push_back(session_.peak_now(seconds_)); }

  // After the last run's second window.
  void record(PointRecord& record, const SampleSet& samples) const {
    std::vector<double> rates, peaks;
    for (size_t i = 0; i < samples.samples_s.size(); ++i) {
      const size_t before = 2 * (size_t(samples.warmup) + i);
      rates.push_back(record.work.flops / samples.samples_s[i]);
      peaks.push_back((peaks_[before] + peaks_[before + 1]) / 2);
    }
    set_share_of_peak(record, rates, peaks, session_.peak_flops());
  }

 private:
  PointSession& session_;
  double seconds_;
  std::vector<double> peaks_;
};

SampleSet take_samples(PointSession& session, const MeasureConfig& measure, RunChecks& checks,
                       PeakWindows& windows) {
  SampleHooks hooks = session.sample_hooks();
  bool first = true;
  hooks.prepare = [&, start = std::move(hooks.prepare)] {
    session.progress();
    if (!std::exchange(first, false)) windows.take();
    checks.prepare_run();
    windows.take();
    start();
  };
  SampleSet samples = sample({.warmup = int(measure.warmup),
                              .min_samples = int(measure.min_samples),
                              .max_samples = int(measure.max_samples),
                              .target_ci = measure.target_ci,
                              .time_budget_s = measure.point_timeout_s},
                             hooks);
  windows.take();
  return samples;
}

// Records the last sample: its output, its inputs and the times of its ops.
void record_last_run(PointRecord& record, PointSession& session, Communicator& comm) {
  Executor& executor = session.executor();
  record_content(record, executor, session.worker(), comm);
  if (!executor.times_every_run()) {
    executor.time_ops(true);
    executor.run();
    executor.time_ops(false);
  }
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
  if (comm.size() <= 64 || comm.rank() == 0) require_correct(schedule);

  if (bind_and_fill(*session, plan, schedule, record, comm)) {
    session->progress();
    session->warm_up(record);
    session->progress();
    RunChecks checks(*session, options, comm);
    session->reset_counters();
    PeakWindows windows(*session, plan.estimated_s);
    const SampleSet samples = take_samples(*session, options.measure, checks, windows);
    session->record_conditions(record);
    if (samples.samples_s.empty()) {
      set_status(
          record, PointStatus::kTimeout,
          concat("no sample within measure.point_timeout_s = ", options.measure.point_timeout_s));
    } else {
      set_timing(record, samples.samples_s, samples.warmup, session->reduction());
      record_counts(record, *session, plan, samples, comm);
      checks.record(record);
      record_last_run(record, *session, comm);
      record_phases(record, *session, options.ablations, comm);  // last: it spoils the buffers
      windows.record(record, samples);
    }
  }
  session->close();
  return record;
}

}  // namespace longnet
