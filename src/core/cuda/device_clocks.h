// What a GPU's clocks, power and limits are right now: NVML, opened when it is asked for.
#pragma once
#include <cstdint>
#include <string>

namespace longnet {

struct DeviceClocks {
  bool known = false;  // NVML is there and answered
  int sm_mhz = 0, sm_max_mhz = 0, memory_mhz = 0;
  int temperature_c = 0;
  double power_w = 0;
  uint64_t limits = 0;  // reasons of nvmlClocksEventReasons*, 0: none
  // Those that slow a measurement down: power cap, thermal, hardware slowdown. Not idle, nor clocks
  // that somebody has set.
  bool throttled() const;
  std::string limits_text() const;  // "none", "power cap", ...
};

// Never throws.
DeviceClocks read_device_clocks(int device);

}  // namespace longnet
