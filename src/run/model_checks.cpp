#include <algorithm>
#include <cmath>
#include <vector>

#include "core/random.h"
#include "model/model_executor.h"
#include "run/fill_record.h"
#include "run/run_checks.h"

namespace longnet {
namespace {

// The loss shall rise by twice this share of itself from w - t g to w + t g. Curvature puts the
// slope off by the square of it, rounding of the loss in fp32 by its inverse: of 0.8 M parameters
// and 4K tokens by 1.6e-3 at 1e-5, 2e-5 at 3e-4, 2.8e-4 at 1e-3 and 2.5e-3 at 3e-3.
constexpr double kRise = 3e-4;
// Of a random direction: no parameter's values move by more than this share of their own scale.
constexpr double kMostMoved = 0.05;
constexpr uint32_t kSignKey = 0xC3C3C3C3;
constexpr double kTiny = 1e-12;  // a gradient whose square fp32 does not hold

// A standard deviation as parameters have it; of vectors, which begin equal, some of the same size.
double scale_of(const Parameter& p) { return p.deviation > 0 ? p.deviation : 0.02; }

// +1 or -1 for each weight, the same on all ranks.
double sign_of(size_t weight, uint64_t seed) {
  const PhiloxBlock x =
      philox4x32_10({{uint32_t(weight / 128), 0, 0, 4}}, uint32_t(seed), kSignKey);
  return (x.word[weight / 32 % 4] >> weight % 32 & 1) != 0 ? 1 : -1;
}

class ModelChecks final : public RunChecks {
 public:
  ModelChecks(PointSession& session, const PointPlan& plan, const RunnerOptions& options,
              Communicator& comm)
      : RunChecks(session, comm),
        executor_(dynamic_cast<ModelExecutor&>(session.executor())),
        worker_(session.worker()),
        params_(plan.point.params),
        outcome_{.tolerance = options.check.tolerance} {}

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
    has_backward(params_.pass) ? check_gradient() : check_rows();
    executor_.poison(worker_);  // right values were there: are they gone?
    const bool passes_poison = comm_.sum_of(double(executor_.count_nan())) == 0;
    set_model_check(record, outcome_, passes_poison);
  }

  // A forward pass has no gradient to hold its loss against. Weights of 0 make all logits 0.
  void check_rows() {
    ProgramExecutor losses(make_schedule(params_), executor_);
    std::ranges::fill(executor_.weights(), 0.0f);
    comm_.barrier();
    losses.run();
    outcome_.loss_without_weights =
        comm_.max_of(executor_.result().loss) / std::log(double(params_.model.vocabulary));
  }

  void check_gradient() {
    const double norm_of_step = executor_.result().gradient_norm;
    sum_gradients();
    const std::span<const float> g = executor_.weight_gradients();
    double squares = 0;
    for (const float x : g) squares += double(x) * double(x);
    outcome_.gradient_norm = std::sqrt(squares);
    if (params_.pass == Pass::kStep) {
      outcome_.norm_of_step = norm_of_step;
      outcome_.update_error = comm_.max_of(error_of_update());
    }
    PointParams forward = params_;
    forward.pass = Pass::kForward;
    ProgramExecutor losses(make_schedule(forward), executor_);
    const double rise = kRise * outcome_.lowest_loss;
    // Half of the loss at w + d less that at w - d.
    const auto rises_by = [&](const auto& direction) {
      const double above = loss_at(losses, direction, 1), below = loss_at(losses, direction, -1);
      return (above - below) / 2;
    };
    outcome_.slope = rises_by([&](size_t i) { return rise / squares * double(g[i]); }) / rise;

    const std::vector<double> steps = random_steps(rise);
    const auto random = [&](size_t i) { return steps[i] * sign_of(i, params_.problem.seed); };
    double expected = 0, usual = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      expected += random(i) * double(g[i]);
      usual += steps[i] * steps[i] * double(g[i]) * double(g[i]);
    }
    outcome_.random_error = std::abs(rises_by(random) - expected) / std::sqrt(usual);
  }

  // How far each weight goes in a random direction: those of one parameter alike, and each
  // parameter with the same part of the rise, as far as kMostMoved lets it.
  std::vector<double> random_steps(double rise) const {
    const std::span<const float> g = executor_.weight_gradients();
    std::vector<double> steps(g.size());
    const std::span<const Parameter> all = executor_.parameters().all();
    for (const Parameter& p : all) {
      double squares = 0;
      for (const float x : g.subspan(size_t(p.first), size_t(p.count())))
        squares += double(x) * double(x);
      const double even = rise / std::sqrt(double(all.size()) * squares);
      std::fill_n(steps.begin() + p.first, p.count(), std::min(even, kMostMoved * scale_of(p)));
    }
    return steps;
  }

  double loss_at(ProgramExecutor& losses, const auto& direction, double sign) {
    executor_.restore_inputs();
    const std::span<float> w = executor_.weights();
    for (size_t i = 0; i < w.size(); ++i) w[i] = float(double(w[i]) + sign * direction(i));
    comm_.barrier();
    losses.run();
    return comm_.max_of(executor_.result().loss);
  }

  // The largest difference of weights and moments after the step from AdamW (kernels/
  // model_kernel.h), written out for moments of 0: of weights as a share of the learning rate, of
  // moments as one of themselves. Leaves initial weights.
  double error_of_update() {
    const StepOptions options;
    const UpdateTask adam;
    const double clip = std::min(1.0, options.clip_norm / outcome_.gradient_norm);
    const std::span<const float> g = executor_.weight_gradients();
    const std::span<float> w = executor_.weights(), first = executor_.first_moments(),
                           second = executor_.second_moments();
    double worst = 0;
    const auto compare = [&](double is, double should, double unit) {
      const double error = std::abs(is - should) / unit;
      worst = error <= worst ? worst : error;  // also NaN
    };
    const auto [begin, end] = own_moments();
    for (size_t i = 0; i < first.size(); ++i) {
      const double step = i >= begin && i < end ? clip * double(g[i]) : 0;
      const double one = (1 - adam.beta1) * step, two = (1 - adam.beta2) * step * step;
      compare(first[i], one, std::abs(one) + kTiny);
      compare(second[i], two, two + kTiny * kTiny);
      first[i] = w[i];
    }
    const Parameters& parameters = executor_.parameters();
    parameters.initialise(w, params_.problem.seed);
    for (const Parameter& p : parameters.all())
      for (auto i = size_t(p.first); i < size_t(p.first + p.count()); ++i) {
        const double step = clip * double(g[i]), decay = p.rows > 1 ? options.decay : 0;
        const double moved = step / (std::abs(step) + adam.epsilon) + decay * double(w[i]);
        compare(first[i], double(w[i]) - kFirstLearningRate * moved, kFirstLearningRate);
      }
    return worst;
  }

  // Values whose moments this rank has.
  std::pair<size_t, size_t> own_moments() const {
    const int64_t all = std::ssize(executor_.weight_gradients());
    if (!params_.model.shard_optimizer) return {0, size_t(all)};
    return {size_t(part_begin(all, comm_.size(), comm_.rank())),
            size_t(part_begin(all, comm_.size(), comm_.rank() + 1))};
  }

  // Makes the gradients of weights the sums over all ranks, where a run leaves parts of them: of a
  // step with a sharded optimizer a rank's own part is summed, without a step none.
  void sum_gradients() {
    const bool of_step = params_.pass == Pass::kStep;
    if (comm_.size() == 1 || (of_step && !params_.model.shard_optimizer)) return;
    const std::span<float> g = executor_.weight_gradients();
    if (of_step) {
      const auto [begin, end] = own_moments();
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
  const RowWorker& worker_;
  const PointParams& params_;
  ModelOutcome outcome_;
};

}  // namespace

std::unique_ptr<RunChecks> make_model_checks(PointSession& session, const PointPlan& plan,
                                             const RunnerOptions& options, Communicator& comm) {
  return std::make_unique<ModelChecks>(session, plan, options, comm);
}

}  // namespace longnet
