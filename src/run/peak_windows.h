// Windows in which the hardware shows its peak, right before and right after each run: others may
// slow both down, and do not change the share of the peak.
//
//   prepare run | window | run 0 | window | prepare run | window | run 1 | window
//                 p0               p1                     p2               p3     beside run 1:
//                                                                                 (p2 + p3) / 2
#pragma once
#include <functional>
#include <vector>

#include "measure/sampler.h"

namespace longnet {

class PeakWindows {
 public:
  // `window` takes one and returns the peak in it.
  explicit PeakWindows(std::function<double()> window) : window_(std::move(window)) {}

  // Calls sample() with a window on both sides of each run; before each run and its window comes
  // prepare_run().
  SampleSet sample(const SampleOptions& options, SampleHooks hooks,
                   const std::function<void()>& prepare_run);
  // The mean peak of the two windows beside each of these samples.
  std::vector<double> beside(const SampleSet& samples) const;

 private:
  void take() { peaks_.push_back(window_()); }

  std::function<double()> window_;
  std::vector<double> peaks_;  // two of each run, those of the warm-up first
};

}  // namespace longnet
