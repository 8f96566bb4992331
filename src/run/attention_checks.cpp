#include <algorithm>
#include <array>
#include <optional>

#include "core/random.h"
#include "core/stopwatch.h"
#include "run/fill_record.h"
#include "run/record_ranks.h"
#include "run/run_checks.h"

namespace longnet {
namespace {

// Errors of a run's output, and of its gradients in a backward pass.
struct RunErrors {
  SampleErrors output;
  GradientErrors gradients{};
  void keep_worst(const RunErrors& other) {
    output.keep_worst(other.output);
    for (size_t i = 0; i < gradients.size(); ++i) gradients[i].keep_worst(other.gradients[i]);
  }
};

// An output that nobody wrote must fail: a check that passes it proves nothing.
class AttentionChecks final : public RunChecks {
 public:
  AttentionChecks(PointSession& session, const RunnerOptions& options, Communicator& comm)
      : RunChecks(session, comm),
        executor_(session.executor()),
        worker_(session.worker()),
        config_(options.check),
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
  }

 private:
  void check_run(int64_t run, bool is_last) override {
    const RunErrors errors = errors_of_run();
    errors_ ? errors_->keep_worst(errors) : void(errors_ = errors);
    nan_values_ = std::max(nan_values_, executor_.count_nan());
    const bool laws = is_last || run == first_sample_ || run == random_sample_;
    if (!gradients_ || !laws) return;
    const Conservation found = conservation(executor_, comm_);
    laws_ ? laws_->keep_worst(found) : void(laws_ = found);
  }
  void record_findings(PointRecord& record) override {
    const Judged judged = judge(*errors_, nan_values_);
    record_content(record, executor_, worker_, comm_);
    session_.poison();  // a right output was there: does it fail now?
    const bool passes_poison = judge(errors_of_run(), executor_.count_nan()).all.pass;
    set_check(record, judged.all, passes_poison);
    set_strata(record, choice_, judged.all.chosen, config_.max_queries);
    if (gradients_) set_gradients(record, judged.gradients, *laws_, {choice_, gradients_->keys()});
  }

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

  static constexpr uint32_t kRandomSampleKey = 0x3C3C3C3C;
  Executor& executor_;
  const RowWorker& worker_;
  const CheckConfig& config_;
  int64_t first_sample_, random_sample_;  // counted as runs, from 1
  SampleChoice choice_;
  ExpectedRows expected_;
  std::optional<GradientCheck> gradients_;
  std::optional<RunErrors> errors_;   // the worst so far
  std::optional<Conservation> laws_;  // likewise
  int64_t nan_values_ = 0;
};

}  // namespace

std::unique_ptr<RunChecks> make_attention_checks(PointSession& session,
                                                 const RunnerOptions& options, Communicator& comm) {
  return std::make_unique<AttentionChecks>(session, options, comm);
}

}  // namespace longnet
