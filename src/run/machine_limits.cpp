#include "run/machine_limits.h"

#include <algorithm>

#include "core/cuda/device.h"
#include "io/environment.h"
#include "run/backend.h"

namespace longnet {

int default_world_size(const Config& config) {
  const bool devices_only =
      std::ranges::all_of(config.values_of(*find_axis("kernel"), 1),
                          [](const Value& kernel) { return backend_of(to_text(kernel)).on_gpu(); });
  const int places =
      devices_only ? int(describe_devices().devices.size()) : capture_environment().usable_threads;
  return std::max(1, places);
}

MachineLimits machine_limits(const Config& config, double peak_flops_per_rank) {
  const int64_t all = config.memory.limit_bytes.value_or(capture_environment().memory_limit_bytes);
  MachineLimits limits{.memory_bytes = int64_t(double(all) * config.memory.limit_fraction),
                       .flops_per_rank = kExpectedShareOfPeak * peak_flops_per_rank,
                       .point_timeout_s = config.measure.point_timeout_s,
                       .virtual_ranks = config.virtual_ranks};
  const DeviceReport report = describe_devices();
  limits.device_memory_bytes = config.memory.limit_bytes.value_or(0);
  limits.device_limit_given = config.memory.limit_bytes.has_value();
  if (!report.unusable.empty()) return limits;
  const DeviceInfo& d = report.devices.front();
  limits.devices = int(report.devices.size());
  const int64_t flush = 4 * d.l2_bytes;  // flush_bytes() of device_timer.h: measuring needs it
  limits.device_memory_bytes =
      std::max<int64_t>(1, int64_t(double(config.memory.limit_bytes.value_or(d.memory_bytes)) *
                                   config.memory.limit_fraction) -
                               flush);
  limits.device_flops = kExpectedShareOfDevicePeak * std::max(1024.0, tensor_flops_per_clock(d)) *
                        d.multiprocessors * d.clock_khz * 1e3;
  return limits;
}

}  // namespace longnet
