#include "gpu/device_timer.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/check.h"

namespace longnet {

DeviceTiming time_on_device(const Stream& stream, const TimerOptions& options,
                            const std::function<void()>& launch) {
  MemoryLedger ledger;
  // Written before a sample: nothing is left in the L2 that the sample reads.
  const DeviceBuffer flush(ledger, "flush",
                           4 * describe_devices().devices.at(size_t(current_device())).l2_bytes);
  const Event begin(Event::Kind::kTiming), end(Event::Kind::kTiming);
  DeviceTiming timing;
  const auto region = [&](const std::function<void()>& body) {
    stream.fill(flush.data(), 0x5A, flush.size());
    begin.record(stream);
    body();
    end.record(stream);
    timing.during = read_device_clocks(current_device());
    end.synchronize();
    return end.seconds_since(begin);
  };
  double once = 0;
  for (int i = 0; i < std::max(1, options.warmup); ++i) once = region(launch);

  timing.launches_per_sample =
      std::clamp(int(std::ceil(options.min_region_s / std::max(once, 1e-6))), 1, 1000);
  const auto repeat = [&] {
    for (int i = 0; i < timing.launches_per_sample; ++i) launch();
  };
  std::optional<Graph> graph;
  if (once < options.graph_below_s) {
    try {
      graph.emplace(stream, repeat);
      timing.graph = true;
      region([&] { graph->launch(stream); });
    } catch (const Error&) {  // not every library's launches can be recorded
      graph.reset();
      timing.graph = false;
    }
  }
  const double expected = once * timing.launches_per_sample;
  const int samples = std::clamp(int(options.budget_s / std::max(expected, 1e-6)),
                                 std::min(3, options.samples), options.samples);
  double mhz = 0;
  for (int i = 0; i < samples; ++i) {
    const double took = graph ? region([&] { graph->launch(stream); }) : region(repeat);
    timing.samples_s.push_back(took / timing.launches_per_sample);
    mhz += timing.during.sm_mhz;
  }
  timing.during.sm_mhz = int(std::lround(mhz / samples));
  std::vector<double> sorted = timing.samples_s;
  std::sort(sorted.begin(), sorted.end());
  const size_t n = sorted.size();
  timing.median_s = n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
  timing.min_s = sorted.front();
  return timing;
}

}  // namespace longnet
