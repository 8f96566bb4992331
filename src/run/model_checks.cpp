#include <algorithm>
#include <cmath>
#include <vector>

#include "model/model_executor.h"
#include "run/fill_record.h"
#include "run/run_checks.h"

namespace longnet {
namespace {

// The loss shall rise by twice this share of itself from w - t g to w + t g. Curvature puts the
// slope off by the square of it, rounding of the loss in fp32 by its inverse: of 0.8 M parameters
// and 4K tokens by 1.6e-3 at 1e-5, 2e-5 at 3e-4, 2.8e-4 at 1e-3 and 2.5e-3 at 3e-3.
constexpr double kRise = 3e-4;

class ModelChecks final : public RunChecks {
 public:
  ModelChecks(PointSession& session, const PointPlan& plan, const RunnerOptions& options,
              Communicator& comm)
      : RunChecks(session, comm),
        executor_(dynamic_cast<ModelExecutor&>(session.executor())),
        params_(plan.point.params),
        outcome_{.tolerance = options.check.tolerance} {
    executor_.poison(session.worker());
    passes_poison_ = comm.sum_of(double(executor_.count_nan())) == 0;
  }

 private:
  void check_run(int64_t, bool) override {
    const double loss = executor_.result().loss;
    outcome_.lowest_loss = std::min(outcome_.lowest_loss, loss);
    outcome_.highest_loss = std::max(outcome_.highest_loss, loss);
    outcome_.nan_values = std::max(outcome_.nan_values, executor_.count_nan());
  }

  void record_findings(PointRecord& record) override {
    outcome_.lowest_loss = -comm_.max_of(-outcome_.lowest_loss);
    outcome_.highest_loss = comm_.max_of(outcome_.highest_loss);
    outcome_.nan_values = int64_t(comm_.sum_of(double(outcome_.nan_values)));
    if (has_backward(params_.pass)) check_gradient();
    set_model_check(record, outcome_, passes_poison_);
  }

  void check_gradient() {
    const double norm_of_step = executor_.result().gradient_norm;
    sum_gradients();
    double squares = 0;
    for (const float g : executor_.weight_gradients()) squares += double(g) * double(g);
    outcome_.gradient_norm = std::sqrt(squares);
    if (params_.pass == Pass::kStep) outcome_.norm_of_step = norm_of_step;
    PointParams forward = params_;
    forward.pass = Pass::kForward;
    ProgramExecutor losses(make_schedule(forward), executor_);
    const double rise = kRise * outcome_.lowest_loss, distance = rise / squares;
    const double above = loss_at(losses, distance), below = loss_at(losses, -distance);
    outcome_.slope = (above - below) / (2 * rise);
  }

  // At w + distance * g.
  double loss_at(ProgramExecutor& losses, double distance) {
    executor_.restore_inputs();
    const std::span<const float> g = executor_.weight_gradients();
    const std::span<float> w = executor_.weights();
    for (size_t i = 0; i < w.size(); ++i) w[i] = float(double(w[i]) + distance * double(g[i]));
    comm_.barrier();
    losses.run();
    return comm_.max_of(executor_.result().loss);
  }

  // Makes the gradients of weights the sums over all ranks, where a run leaves parts of them: of a
  // step with a sharded optimizer a rank's own part is summed, without a step none.
  void sum_gradients() {
    const bool of_step = params_.pass == Pass::kStep;
    if (comm_.size() == 1 || (of_step && !params_.model.shard_optimizer)) return;
    const std::span<float> g = executor_.weight_gradients();
    if (of_step) {
      const auto begin = size_t(part_begin(std::ssize(g), comm_.size(), comm_.rank())),
                 end = size_t(part_begin(std::ssize(g), comm_.size(), comm_.rank() + 1));
      std::ranges::fill(g.first(begin), 0.0f);
      std::ranges::fill(g.subspan(end), 0.0f);
    }
    constexpr size_t kAtOnce = 1 << 16;
    std::vector<double> some;
    for (size_t at = 0; at < g.size(); at += kAtOnce) {
      const std::span<float> part = g.subspan(at, std::min(kAtOnce, g.size() - at));
      some.assign(part.begin(), part.end());
      comm_.all_sum(some);
      std::ranges::transform(some, part.begin(), [](double x) { return float(x); });
    }
  }

  ModelExecutor& executor_;
  const PointParams& params_;
  ModelOutcome outcome_;
  bool passes_poison_ = false;
};

}  // namespace

std::unique_ptr<RunChecks> make_model_checks(PointSession& session, const PointPlan& plan,
                                             const RunnerOptions& options, Communicator& comm) {
  return std::make_unique<ModelChecks>(session, plan, options, comm);
}

}  // namespace longnet
