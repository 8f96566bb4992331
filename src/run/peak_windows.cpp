#include "run/peak_windows.h"

namespace longnet {

SampleSet PeakWindows::sample(const SampleOptions& options, SampleHooks hooks,
                              const std::function<void()>& prepare_run) {
  hooks.prepare = [&, start = std::move(hooks.prepare)] {
    if (!peaks_.empty()) take();  // after the run before
    prepare_run();
    take();
    start();
  };
  SampleSet samples = longnet::sample(options, hooks);
  take();
  return samples;
}

std::vector<double> PeakWindows::beside(const SampleSet& samples) const {
  std::vector<double> peaks;
  for (size_t i = 0; i < samples.samples_s.size(); ++i) {
    const size_t before = 2 * (size_t(samples.warmup) + i);
    peaks.push_back((peaks_[before] + peaks_[before + 1]) / 2);
  }
  return peaks;
}

}  // namespace longnet
