#include "measure/sampler.h"

#include <algorithm>
#include <chrono>

#include "core/check.h"

namespace longnet {
namespace {

// One rank's part in the collective measurement.
class Sampler {
 public:
  Sampler(const SampleOptions& options, const SampleHooks& hooks)
      : options_(options), hooks_(hooks) {
    // All memory before the first sample: a page fault inside one would be measured.
    set_.samples_s.reserve(size_t(options.max_samples));
    set_.own_s.reserve(size_t(options.max_samples));
    sorted_.reserve(size_t(options.max_samples));
  }

  SampleSet take() {
    begin_ = hooks_.now();
    bool go_on = true;
    while (go_on && set_.warmup < options_.warmup) {
      run_once();
      ++set_.warmup;
      go_on = hooks_.broadcast_from_root(!over_budget());
    }
    if (!go_on) set_.stop = SampleStop::kTimeBudget;
    while (go_on) {
      take_one();
      go_on = hooks_.broadcast_from_root(wants_more());
    }
    if (!sorted_.empty()) set_.interval = median_interval_sorted(sorted_, options_.ci_level);
    return std::move(set_);
  }

 private:
  RunSpan run_once() {
    hooks_.prepare();
    RunSpan own{.begin_s = hooks_.now()};
    hooks_.run();
    own.end_s = hooks_.now();
    check(own.end_s >= own.begin_s, "the clock runs backwards: ", own.begin_s, " s, then ",
          own.end_s, " s");
    return own;
  }

  void take_one() {
    const RunSpan own = run_once();
    const double all = hooks_.over_ranks(own);
    set_.own_s.push_back(own.seconds());
    set_.samples_s.push_back(all);
    sorted_.insert(std::upper_bound(sorted_.begin(), sorted_.end(), all), all);
  }

  bool over_budget() const { return hooks_.now() - begin_ >= options_.time_budget_s; }

  // All ranks have the same samples and decide the same, but for the time budget: when rank 0
  // stopped and this rank would not have, rank 0's clock is the reason.
  bool wants_more() {
    const int taken = int(set_.samples_s.size());
    if (taken >= options_.min_samples &&
        median_interval_sorted(sorted_, options_.ci_level).relative_half_width() <=
            options_.target_ci) {
      set_.stop = SampleStop::kTargetReached;
      return false;
    }
    if (taken >= options_.max_samples) {
      set_.stop = SampleStop::kMaxSamples;
      return false;
    }
    set_.stop = SampleStop::kTimeBudget;  // holds unless another sample follows
    const double used = hooks_.now() - begin_;
    return used + set_.samples_s.back() <= options_.time_budget_s;
  }

  const SampleOptions& options_;
  const SampleHooks& hooks_;
  SampleSet set_;
  std::vector<double> sorted_;
  double begin_ = 0;
};

}  // namespace

std::string_view to_string(SampleStop s) {
  constexpr std::string_view kNames[] = {"target reached", "max samples", "time budget"};
  return kNames[size_t(s)];
}

SampleSet sample(const SampleOptions& options, const SampleHooks& hooks) {
  check(options.warmup >= 0, "warmup must not be negative, is ", options.warmup);
  check(options.min_samples >= 1 && options.max_samples >= options.min_samples,
        "need 1 <= min_samples <= max_samples, have ", options.min_samples, " and ",
        options.max_samples);
  check(options.time_budget_s > 0, "time_budget_s must be positive, is ", options.time_budget_s);
  return Sampler(options, hooks).take();
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int worthwhile_rounds(double run_s) { return run_s < 0.3 ? 5 : run_s < 3 ? 3 : 2; }

std::vector<std::vector<double>> take_rounds(int modes, int rounds,
                                             const std::function<double(int)>& time_mode) {
  check(modes > 0 && rounds > 0, "need modes and rounds, have ", modes, " and ", rounds);
  std::vector<std::vector<double>> seconds(static_cast<size_t>(modes));
  for (int round = 0; round < rounds; ++round)
    for (int place = 0; place < modes; ++place) {
      const int mode = (round + place) % modes;
      seconds[size_t(mode)].push_back(time_mode(mode));
    }
  return seconds;
}

}  // namespace longnet
