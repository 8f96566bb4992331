#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "core/random.h"
#include "run/fill_record.h"
#include "run/run_checks.h"

namespace longnet {
namespace {

// The loss of a model shall rise by twice this share of itself from w - t g to w + t g. Curvature
// puts the slope off by the square of it, rounding of the loss in fp32 by its inverse: of 0.8 M
// parameters and 4K tokens by 1.6e-3 at 1e-5, 2e-5 at 3e-4, 2.8e-4 at 1e-3 and 2.5e-3 at 3e-3.
constexpr double kRise = 3e-4;
// The weights of a layer alone shall move by this share of their norm along their gradient: of
// width 128, curvature puts the slope off by 2.3e-3 at 1e-3, and what rises in a random direction
// by 1 % at 1e-4, where weights move by 5 %.
constexpr double kMove = 2e-5;
// Limit of a step in a random direction: no parameter's values move by more than this share of
// their own scale.
constexpr double kMostMoved = 0.05;
constexpr uint32_t kSignKey = 0xC3C3C3C3;
constexpr double kTiny = 1e-12;  // a gradient whose square fp32 does not hold

// A standard deviation as parameters have it; of vectors, which begin equal, some of the same size.
double scale_of(const Parameter& p) { return p.deviation > 0 ? p.deviation : 0.02; }

// +1 or -1 for each weight, the same on all ranks; and for each value of a rank's rows, `rank` + 1.
double sign_of(size_t value, uint64_t seed, uint32_t whose = 0) {
  const PhiloxBlock x =
      philox4x32_10({{uint32_t(value / 128), whose, 0, 4}}, uint32_t(seed), kSignKey);
  return (x.word[value / 32 % 4] >> value % 32 & 1) != 0 ? 1 : -1;
}

double squares_of(std::span<const float> values) {
  double sum = 0;
  for (const float v : values) sum += double(v) * double(v);
  return sum;
}

class ModelChecks final : public RunChecks {
 public:
  ModelChecks(PointSession& session, const PointPlan& plan, const RunnerOptions& options,
              Communicator& comm)
      : RunChecks(session, comm),
        model_(session.model()),
        plan_(plan),
        options_(options),
        params_(plan.point.params),
        of_layer_(params_.scope == Scope::kLayer),
        outcome_{.tolerance = options.check.tolerance} {}

 private:
  void check_run(int64_t, bool) override {
    const double value = objective() * unit();
    outcome_.lowest_loss = std::min(outcome_.lowest_loss, value);
    outcome_.highest_loss = std::max(outcome_.highest_loss, value);
    outcome_.nan_values = std::max(outcome_.nan_values, model_.count_nan());
    if (!has_backward(params_.pass)) return;
    const size_t digest = digest_of_gradients();
    outcome_.same_gradients &= digest == first_digest_.value_or(digest);
    first_digest_ = first_digest_.value_or(digest);
  }

  void record_findings(PointRecord& record) override {
    outcome_.lowest_loss = -comm_.max_of(-outcome_.lowest_loss);
    outcome_.highest_loss = comm_.max_of(outcome_.highest_loss);
    outcome_.nan_values = int64_t(comm_.sum_of(double(outcome_.nan_values)));
    outcome_.same_gradients = comm_.max_of(outcome_.same_gradients ? 0 : 1) == 0;
    const auto [attention, choice] =
        check_attention_in_model(session_.executor(), options_.check, comm_);
    outcome_.attention = attention;
    has_backward(params_.pass) ? check_gradient() : check_rows();
    session_.poison();  // right values were there: are they gone?
    const bool passes_poison = comm_.sum_of(double(model_.count_nan())) == 0;
    set_model_check(record, outcome_, passes_poison);
    set_strata(record, choice, std::ssize(choice.queries), options_.check.max_queries);
  }

  // Hash of the gradients that this rank has after a run: of weights, and of a layer's input.
  size_t digest_of_gradients() const {
    const auto digest = [](std::span<const float> values) {
      const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                   values.size_bytes());
      return std::hash<std::string_view>{}(bytes);
    };
    const size_t of_weights = digest(model_.values(kWeightGradientSlot));
    return of_layer_ ? of_weights ^ digest(model_.values(kGradRowsSlot)) : of_weights;
  }

  // The function whose gradients a run computes: the loss of a model; of a layer <y, dO>, the inner
  // product of its output and the gradients that were given.
  double objective() {
    return of_layer_ ? rows_sum(model_.product_with_gradients(model_.values(kOutputRowsSlot)))
                     : model_.result().loss;
  }
  // Sum over all rows of a value that each rank has summed over its own. Divides by head_groups,
  // because ranks with other heads of the same tokens have the same rows.
  double rows_sum(double own) { return comm_.sum_of(own) / params_.head_groups; }
  // The sum of term(i) over all weights, of which this rank may have a part.
  double weights_sum(const auto& term) {
    double own = 0, shared = 0;
    for (const Parameter& p : model_.parameters().all()) {
      double& to = p.is_split ? own : shared;
      for (auto i = size_t(p.first); i < size_t(p.first + p.count()); ++i) to += term(i);
    }
    if (params_.head_groups == 1) return own + shared;
    const bool first = comm_.rank() % params_.head_groups == 0;
    return comm_.sum_of(own + (first ? shared : 0)) * params_.head_groups / comm_.size();
  }
  // <y, dO> is recorded in standard deviations of such a sum of random terms.
  double unit() const {
    const AttentionProblem& p = params_.problem;
    return of_layer_ ? 1 / std::sqrt(double(p.batch * p.seq_len * p.num_heads * p.head_dim)) : 1;
  }

  // A forward pass has no gradient to hold its output against. Weights of 0 make all logits 0, and
  // leave a layer's rows as they come.
  void check_rows() {
    const auto losses = session_.executor().in_same_memory(make_schedule(params_));
    model_.restore_inputs();
    model_.set_values(kWeightSlot, std::vector<float>(size_t(model_.count(kWeightSlot))));
    comm_.barrier();
    losses->run();
    const double is = comm_.max_of(objective()) * unit();
    outcome_.loss_without_weights =
        of_layer_
            ? 1 + is -
                  unit() * rows_sum(model_.product_with_gradients(model_.values(kInputRowsSlot)))
            : is / std::log(double(params_.model.vocabulary));
  }

  void check_gradient() {
    const std::vector<float>& g = gradient_ = summed_gradients(model_);
    const double squares = weights_sum([&](size_t i) { return double(g[i]) * double(g[i]); });
    outcome_.gradient_norm = std::sqrt(squares);
    if (params_.pass == Pass::kStep) {
      outcome_.norm_of_step = model_.result().gradient_norm;
      outcome_.update_error = comm_.max_of(error_of_update());
    }
    if (of_layer_) row_gradients_ = model_.values(kGradRowsSlot);
    if (params_.problem.dtype != DType::kFloat32) return compare_with_fp32();
    double all_squares = squares, rise = kRise * outcome_.lowest_loss;
    if (of_layer_) {
      all_squares += rows_sum(squares_of(row_gradients_));
      const std::vector<float> w = model_.values(kWeightSlot);
      const double weights = weights_sum([&](size_t i) { return double(w[i]) * double(w[i]); });
      rise = kMove * std::sqrt(weights / squares) * all_squares;
    }
    PointParams forward = params_;
    forward.pass = Pass::kForward;
    const auto losses = session_.executor().in_same_memory(make_schedule(forward));
    // Half of the objective at d from the weights, and rows, less that at -d.
    const auto rises_by = [&](const auto& weights, const auto& rows) {
      const double above = objective_at(*losses, weights, rows, 1);
      return (above - objective_at(*losses, weights, rows, -1)) / 2;
    };
    const double distance = rise / all_squares;
    outcome_.slope = rises_by([&](size_t i) { return distance * double(g[i]); },
                              [&](size_t i) { return distance * double(row_gradients_[i]); }) /
                     rise;

    const std::vector<double> steps = random_steps(rise);
    const uint64_t seed = params_.problem.seed;
    const double row_step =
        of_layer_ ? std::min(rise / std::sqrt(all_squares - squares), kMostMoved) : 0;
    const auto random = [&](size_t i) { return steps[i] * sign_of(i, seed); };
    const auto random_rows = [&](size_t i) {
      return row_step * sign_of(i, seed, uint32_t(comm_.rank() / params_.head_groups) + 1);
    };
    double expected = 0, usual = row_step * row_step * (all_squares - squares);
    for (size_t i = 0; i < row_gradients_.size(); ++i)
      expected += random_rows(i) * double(row_gradients_[i]);
    expected = rows_sum(expected);
    expected += weights_sum([&](size_t i) { return random(i) * double(g[i]); });
    usual += weights_sum([&](size_t i) { return std::pow(steps[i] * double(g[i]), 2); });
    outcome_.random_error = std::abs(rises_by(random, random_rows) - expected) / std::sqrt(usual);
  }

  // Compares gradients of weights, and of a layer's input, with those of the same point in fp32,
  // whose buffers are there beside its own (PointPlan::check_bytes). Central differences cannot
  // check them: rounding to bf16, 2^-9, is far larger than what they resolve.
  void compare_with_fp32() {
    PointPlan wide = plan_;
    wide.point.params = *checking_run(params_);
    const auto session = backend_of(wide.point.params.kernel).open(wide, options_, comm_);
    session->bind(make_schedule(wide.point.params));
    session->fill_inputs();
    comm_.barrier();
    session->executor().run();
    const auto compare = [&](const std::vector<float>& is, const std::vector<float>& should,
                             bool shared) {
      std::vector<double> squares(2);  // those of the difference, and of `should`
      for (size_t i = 0; i < is.size(); ++i) {
        squares[0] += std::pow(double(is[i]) - double(should[i]), 2);
        squares[1] += std::pow(double(should[i]), 2);
      }
      if (!shared || params_.head_groups > 1) comm_.all_sum(squares);
      return std::sqrt(squares[0] / squares[1]);
    };
    outcome_.bf16_error = compare(gradient_, summed_gradients(session->model()), /*shared=*/true);
    if (of_layer_)
      outcome_.bf16_error = std::hypot(
          outcome_.bf16_error,
          compare(row_gradients_, session->model().values(kGradRowsSlot), /*shared=*/false));
  }

  // How far each weight goes in a random direction: those of one parameter alike, and each
  // parameter with the same part of the rise, as far as kMostMoved lets it.
  std::vector<double> random_steps(double rise) const {
    const std::span<const float> g = gradient_;
    std::vector<double> steps(g.size());
    const std::span<const Parameter> all = model_.parameters().all();
    for (const Parameter& p : all) {
      const double squares = squares_of(g.subspan(size_t(p.first), size_t(p.count())));
      const double even = rise / std::sqrt(double(all.size()) * squares);
      std::fill_n(steps.begin() + p.first, p.count(), std::min(even, kMostMoved * scale_of(p)));
    }
    return steps;
  }

  double objective_at(Executor& losses, const auto& weights, const auto& rows, double sign) {
    model_.restore_inputs();
    const auto move = [&](int slot, const auto& direction) {
      std::vector<float> values = model_.values(slot);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = float(double(values[i]) + sign * direction(i));
      model_.set_values(slot, values);
    };
    move(kWeightSlot, weights);
    if (of_layer_) move(kInputRowsSlot, rows);
    comm_.barrier();
    losses.run();
    return comm_.max_of(objective());
  }

  // The largest difference of weights and moments after the step from AdamW (kernels/
  // model_kernel.h), written out for moments of 0: of weights as a share of the learning rate, of
  // moments as one of themselves.
  double error_of_update() const {
    const StepOptions options;
    const UpdateTask adam;
    const double clip = std::min(1.0, options.clip_norm / outcome_.gradient_norm);
    const std::vector<float>& g = gradient_;
    const std::vector<float> first = model_.values(kFirstMomentSlot),
                             second = model_.values(kSecondMomentSlot);
    double worst = 0;
    const auto compare = [&](double is, double should, double unit) {
      const double error = std::abs(is - should) / unit;
      worst = error <= worst ? worst : error;  // also NaN
    };
    const auto begin = size_t(model_.updated().begin);
    for (size_t i = 0; i < first.size(); ++i) {
      const double step = clip * double(g[begin + i]);
      const double one = (1 - adam.beta1) * step, two = (1 - adam.beta2) * step * step;
      compare(first[i], one, std::abs(one) + kTiny);
      compare(second[i], two, two + kTiny * kTiny);
    }
    const std::vector<float> updated = model_.values(kWeightSlot);
    std::vector<float> w(updated.size());
    const Parameters& parameters = model_.parameters();
    parameters.initialise(w, params_.problem.seed);
    for (const Parameter& p : parameters.all())
      for (auto i = size_t(p.first); i < size_t(p.first + p.count()); ++i) {
        const double step = clip * double(g[i]), decay = p.rows > 1 ? options.decay : 0;
        const double moved = step / (std::abs(step) + adam.epsilon) + decay * double(w[i]);
        compare(updated[i], double(w[i]) - kFirstLearningRate * moved, kFirstLearningRate);
      }
    return worst;
  }

  // Gradients of weights, the sums over all ranks, where a run leaves parts of them: of a step with
  // a sharded optimizer a rank's own part is summed, without a step none.
  std::vector<float> summed_gradients(const ModelMemory& model) const {
    const bool of_step = params_.pass == Pass::kStep;
    std::vector<float> gradients = model.values(kWeightGradientSlot);
    if (comm_.size() == 1 || (of_step && !params_.model.shard_optimizer)) return gradients;
    const std::span<float> g = gradients;
    if (of_step) {
      const TokenInterval own = model.updated();
      std::ranges::fill(g.first(size_t(own.begin)), 0.0f);
      std::ranges::fill(g.subspan(size_t(own.end)), 0.0f);
    }
    constexpr size_t kAtOnce = 1 << 16;
    const auto groups = size_t(params_.head_groups), mine = size_t(comm_.rank()) % groups;
    std::vector<double> some;  // by head group
    for (size_t at = 0; at < g.size(); at += kAtOnce) {
      const std::span<float> part = g.subspan(at, std::min(kAtOnce, g.size() - at));
      some.assign(groups * part.size(), 0.0);
      const auto own = some.begin() + std::ptrdiff_t(mine * part.size());
      std::ranges::copy(part, own);
      comm_.all_sum(some);
      std::transform(own, own + std::ssize(part), part.begin(), [](double x) { return float(x); });
    }
    return gradients;
  }

  ModelMemory& model_;
  const PointPlan& plan_;
  const RunnerOptions& options_;
  const PointParams& params_;
  bool of_layer_;
  std::vector<float> gradient_;         // the weights', summed over all ranks
  std::vector<float> row_gradients_;    // gradients of a layer's input
  std::optional<size_t> first_digest_;  // digest of the first run's gradients
  ModelOutcome outcome_;
};

}  // namespace

std::unique_ptr<RunChecks> make_model_checks(PointSession& session, const PointPlan& plan,
                                             const RunnerOptions& options, Communicator& comm) {
  return std::make_unique<ModelChecks>(session, plan, options, comm);
}

}  // namespace longnet
