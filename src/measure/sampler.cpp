#include "measure/sampler.h"

#include <algorithm>

#include "core/check.h"

namespace longnet {

SampleSet sample(const SampleOptions& options, const SampleHooks& hooks) {
  check(options.warmup >= 0, "warmup must not be negative, is ", options.warmup);
  check(options.min_samples >= 1 && options.max_samples >= options.min_samples,
        "need 1 <= min_samples <= max_samples, have ", options.min_samples, " and ",
        options.max_samples);
  check(options.time_budget_s > 0, "time_budget_s must be positive, is ", options.time_budget_s);
  SampleSet set;
  std::vector<double> sorted;
  // All memory before the first sample: a page fault inside one would be measured.
  for (auto* values : {&set.samples_s, &set.own_s, &sorted})
    values->reserve(size_t(options.max_samples));
  const double begin = hooks.now();
  const auto run_once = [&] {
    hooks.prepare();
    RunSpan own{.begin_s = hooks.now()};
    hooks.run();
    own.end_s = hooks.now();
    check(own.end_s >= own.begin_s, "the clock runs backwards: ", own.begin_s, " s, then ",
          own.end_s, " s");
    return own;
  };
  // All ranks have the same samples and decide the same, but for the time budget: when rank 0
  // stopped and this rank would not have, rank 0's clock is the reason.
  const auto wants_more = [&] {
    const int taken = int(set.samples_s.size());
    const bool target = taken >= options.min_samples &&
                        median_interval_sorted(sorted).relative_half_width() <= options.target_ci;
    return !target && taken < options.max_samples &&
           hooks.now() - begin + set.samples_s.back() <= options.time_budget_s;
  };
  bool go_on = true;
  while (go_on && set.warmup < options.warmup) {
    run_once();
    ++set.warmup;
    go_on = hooks.broadcast_from_root(hooks.now() - begin < options.time_budget_s);
  }
  while (go_on) {
    const RunSpan own = run_once();
    const double all = hooks.over_ranks(own);
    set.own_s.push_back(own.seconds());
    set.samples_s.push_back(all);
    sorted.insert(std::upper_bound(sorted.begin(), sorted.end(), all), all);
    go_on = hooks.broadcast_from_root(wants_more());
  }
  if (!sorted.empty()) set.interval = median_interval_sorted(sorted);
  return set;
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
