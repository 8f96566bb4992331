// Measures the duration of GPU work with events.
//
//   const DeviceTiming t = time_on_device(stream, {}, [&] { attend->launch(stream); });
//
// A sample is a region of at least min_region_s: one launch, or as many as it takes, preceded by a
// flush of the L2 cache. Launches shorter than 0.2 ms are replayed from a graph, so that the host's
// launch time is not what is measured. Inputs should be several times the L2, and random: zeros run
// 13 % faster.
#pragma once
#include <functional>
#include <vector>

#include "core/cuda/device.h"
#include "core/cuda/nvml.h"

namespace longnet {

struct TimerOptions {
  int warmup = 3, samples = 10;
  double min_region_s = 5e-3, graph_below_s = 2e-4;
  double budget_s = 3;  // fewer samples, but at least three, when one takes long
};

struct DeviceTiming {
  std::vector<double> samples_s;  // seconds of one launch
  double median_s = 0, min_s = 0;
  int launches_per_sample = 1;
  bool graph = false;
  DeviceClocks during;  // while the device works: the last sample's, the clock a mean of all
};

DeviceTiming time_on_device(const Stream& stream, const TimerOptions& options,
                            const std::function<void()>& launch);

}  // namespace longnet
