// What NVIDIA's management library (NVML, opened when it is first asked for) says of a GPU: clocks
// and what slows it down right now, and how it is connected. Nothing here throws.
#pragma once
#include <cstdint>
#include <limits>
#include <string>

namespace longnet {

struct DeviceClocks {
  bool known = false;  // NVML is there and answered
  int sm_mhz = 0, sm_max_mhz = 0, memory_mhz = 0;
  int temperature_c = 0;
  double power_w = 0;
  uint64_t limits = 0;  // reasons of nvmlClocksEventReasons*, 0: none
  // Seconds since the driver started that power or heat kept the clocks low; NaN: not counted here.
  double slowed_s = std::numeric_limits<double>::quiet_NaN();
  // By limits that slow a measurement down: power cap, thermal, hardware slowdown. Not idle, nor
  // clocks that somebody has set.
  bool throttled() const;
  std::string limits_text() const;  // "none", "power cap", ...
};
DeviceClocks read_device_clocks(int device);

// Of a device; 0: none, or NVML does not say.
struct DeviceLinks {
  int nvlinks = 0;                          // that are up
  int pcie_generation = 0, pcie_lanes = 0;  // most that device and slot can do
};
DeviceLinks read_device_links(int device);
std::string to_string(const DeviceLinks& links);  // "18 NVLinks, PCIe 5 x16", or ""

}  // namespace longnet
