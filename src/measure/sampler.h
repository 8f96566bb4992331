// Takes timing samples of one point on all its ranks until the median is known well enough.
//
// One sample, on P = 2 ranks:
//   rank 0: barrier | run 0.0 .. 1.0 s |  \ over_ranks gives 1.3 s on both:
//   rank 1: barrier | run 0.1 .. 1.3 s |  / last end - first begin
// Rank 0 looks at these and decides whether to go on; all ranks follow its broadcast, so that ranks
// whose clocks differ still take the same number of samples (else the next barrier would hang).
#pragma once
#include <functional>
#include <vector>

#include "core/stopwatch.h"
#include "measure/statistics.h"

namespace longnet {

// One rank's part of a run, on its steady clock.
struct RunSpan {
  double begin_s = 0, end_s = 0;
  double seconds() const { return end_s - begin_s; }
};

struct SampleOptions {
  int warmup = 3;
  int min_samples = 10;
  int max_samples = 50;
  double target_ci = 0.025;    // relative half-width of the median's interval that ends sampling
  double time_budget_s = 600;  // rank 0's clock, warm-up included; no sample starts to pass it
};

// Functions that the sampler calls. Single-rank callers pass identities for over_ranks and
// broadcast_from_root.
struct SampleHooks {
  std::function<void()> prepare;  // resets the step, then a barrier: ends as ranks start
  std::function<void()> run;      // the step to time; returns when this rank is done
  std::function<double(const RunSpan&)> over_ranks;  // collective; seconds of all ranks' run
  std::function<bool(bool)> broadcast_from_root;     // collective; rank 0's argument wins
  std::function<double()> now;                       // seconds, monotonic
};

struct SampleSet {
  std::vector<double> samples_s;  // over all ranks, in order; empty if warm-up used the budget up
  std::vector<double> own_s;      // this rank's own durations of the same samples
  int warmup = 0;                 // runs before the first sample
  MedianInterval interval;        // median of samples_s; zeros when empty
};

// Collective over the ranks. Throws Error when options make no sense or a clock runs backwards;
// exceptions of the hooks pass through.
SampleSet sample(const SampleOptions& options, const SampleHooks& hooks);

// Number of rounds for runs of `run_s` seconds: 5 below 0.3 s, 3 below 3 s, else 2.
int worthwhile_rounds(double run_s);

// Several things timed against each other: in rounds, so that a machine that slows down in the
// meantime slows all of them and not their differences. Three modes a, b, c in three rounds:
//   a b c | b c a | c a b
// Each mode takes each place as often as the rounds allow. `time_mode(mode)` gives the seconds
// of one run of modes 0 .. modes - 1. Returns seconds[mode][round]. Throws Error unless both
// numbers are positive.
std::vector<std::vector<double>> take_rounds(int modes, int rounds,
                                             const std::function<double(int)>& time_mode);

}  // namespace longnet
