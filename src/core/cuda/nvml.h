// Readings of NVIDIA's management library (NVML, opened at the first call): a GPU's clocks, the
// limits that slow it down now, and its links. Nothing here throws.
#pragma once
#include <cstdint>
#include <limits>
#include <string>

namespace longnet {

struct DeviceClocks {
  bool known = false;                               // NVML is there and answered
  int sm_mhz = 0, full_mhz = 0, temperature_c = 0;  // full_mhz: the device's highest clock
  double power_w = 0;
  uint64_t limits = 0;  // reasons of nvmlClocksEventReasons*, 0: none
  // Seconds since the driver started that power or heat kept the clocks low; NaN: not counted here.
  double slowed_s = std::numeric_limits<double>::quiet_NaN();
  // True under limits that slow a measurement down: heat, hardware slowdown, a power cap that keeps
  // the clock below 0.9 of full_mhz (above, a busy GPU is at its cap most of the time). Not when
  // idle, nor under clocks that a user has set.
  bool throttled() const;
  std::string limits_text() const;  // "none", "power cap", ...
};
DeviceClocks read_device_clocks(int device);

// Links of a device; 0: none, or unknown to NVML.
struct DeviceLinks {
  int nvlinks = 0;                          // active ones
  int pcie_generation = 0, pcie_lanes = 0;  // the most that device and slot support
};
DeviceLinks read_device_links(int device);
std::string to_string(const DeviceLinks& links);  // "18 NVLinks, PCIe 5 x16", or ""

}  // namespace longnet
