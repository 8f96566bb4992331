#include "core/cuda/nvml.h"

#include <cmath>

#include "core/check.h"
#include "core/cuda/device.h"
#include "core/cuda/dynamic_library.h"

namespace longnet {
namespace {

// Declarations of nvml.h, which Debian and the toolkit's runtime packages lack: the C interface is
// stable.
using NvmlDevice = void*;
constexpr uint64_t kPowerCap = 0x4;
// Limits that may slow a measurement down.
constexpr struct {
  uint64_t bit;
  const char* name;
} kLimits[] = {{kPowerCap, "power cap"},
               {0x8, "hardware slowdown"},
               {0x20, "software thermal"},
               {0x40, "hardware thermal"},
               {0x80, "power brake"}};
constexpr unsigned kSmClock = 1, kGpuTemperature = 0;
constexpr unsigned kPowerPolicy = 0, kThermalPolicy = 1, kMostLinks = 18;
struct ViolationTime {
  unsigned long long reference_us, violation_ns;
};

struct Nvml {
  DynamicLibrary library{"libnvidia-ml.so.1"};
  int (*init)() = library.find("nvmlInit_v2");
  int (*by_bus)(const char*, NvmlDevice*) = library.find("nvmlDeviceGetHandleByPciBusId_v2");
  int (*clock)(NvmlDevice, unsigned, unsigned*) = library.find("nvmlDeviceGetClockInfo");
  int (*full_clock)(NvmlDevice, unsigned, unsigned*) = library.find("nvmlDeviceGetMaxClockInfo");
  int (*temperature)(NvmlDevice, unsigned, unsigned*) = library.find("nvmlDeviceGetTemperature");
  int (*power)(NvmlDevice, unsigned*) = library.find("nvmlDeviceGetPowerUsage");
  int (*limits)(NvmlDevice,
                unsigned long long*) = library.find("nvmlDeviceGetCurrentClocksEventReasons");
  // Not every device or driver has these.
  int (*violation)(NvmlDevice, unsigned,
                   ViolationTime*) = library.find("nvmlDeviceGetViolationStatus");
  int (*link_state)(NvmlDevice, unsigned, int*) = library.find("nvmlDeviceGetNvLinkState");
  int (*pcie_generation)(NvmlDevice,
                         unsigned*) = library.find("nvmlDeviceGetMaxPcieLinkGeneration");
  int (*pcie_lanes)(NvmlDevice, unsigned*) = library.find("nvmlDeviceGetMaxPcieLinkWidth");
  bool ready = false;

  Nvml() {
    if (limits == nullptr)  // before driver 535
      limits = library.find("nvmlDeviceGetCurrentClocksThrottleReasons");
    ready = init && by_bus && clock && temperature && power && limits && init() == 0;
  }

  // Null when NVML or the device is not there.
  static NvmlDevice device(int index) {
    const std::string bus = device_bus_id(index);
    NvmlDevice handle = nullptr;
    const bool known = get().ready && !bus.empty() && get().by_bus(bus.c_str(), &handle) == 0;
    return known ? handle : nullptr;
  }
  static const Nvml& get() {
    static const Nvml nvml;
    return nvml;
  }
};

// 0 where the library has no such function, or it fails.
template <class Function, class... Arguments>
int number(Function* function, NvmlDevice device, Arguments... arguments) {
  unsigned value = 0;
  return function != nullptr && function(device, arguments..., &value) == 0 ? int(value) : 0;
}

double slowed_seconds(NvmlDevice device) {
  double seconds = std::numeric_limits<double>::quiet_NaN();
  if (Nvml::get().violation == nullptr) return seconds;
  for (const unsigned policy : {kPowerPolicy, kThermalPolicy}) {
    ViolationTime time{};
    if (Nvml::get().violation(device, policy, &time) != 0) continue;
    seconds = (std::isnan(seconds) ? 0 : seconds) + double(time.violation_ns) * 1e-9;
  }
  return seconds;
}

}  // namespace

std::string DeviceClocks::limits_text() const {
  std::string text;
  for (const auto& [bit, name] : kLimits)
    if (limits & bit) text += (text.empty() ? "" : ", ") + std::string(name);
  return text.empty() ? "none" : text;
}

bool DeviceClocks::throttled() const {
  constexpr double kSlow = 0.9;
  DeviceClocks but_power = *this;
  but_power.limits &= ~kPowerCap;
  return but_power.limits_text() != "none" ||
         ((limits & kPowerCap) != 0 && sm_mhz < kSlow * (full_mhz > 0 ? full_mhz : INFINITY));
}

DeviceClocks read_device_clocks(int device) {
  DeviceClocks now;
  const Nvml& nvml = Nvml::get();
  const NvmlDevice handle = Nvml::device(device);
  if (handle == nullptr) return now;
  now.sm_mhz = number(nvml.clock, handle, kSmClock);
  now.full_mhz = number(nvml.full_clock, handle, kSmClock);
  now.temperature_c = number(nvml.temperature, handle, kGpuTemperature);
  now.power_w = number(nvml.power, handle) / 1000.0;
  unsigned long long limits = 0;
  if (nvml.limits(handle, &limits) == 0) now.limits = limits;
  now.slowed_s = slowed_seconds(handle);
  now.known = now.sm_mhz > 0;
  return now;
}

DeviceLinks read_device_links(int device) {
  const Nvml& nvml = Nvml::get();
  const NvmlDevice handle = Nvml::device(device);
  if (handle == nullptr) return {};
  DeviceLinks links{.pcie_generation = number(nvml.pcie_generation, handle),
                    .pcie_lanes = number(nvml.pcie_lanes, handle)};
  for (unsigned link = 0; nvml.link_state != nullptr && link < kMostLinks; ++link) {
    int up = 0;
    if (nvml.link_state(handle, link, &up) == 0) links.nvlinks += up == 1;
  }
  return links;
}

std::string to_string(const DeviceLinks& links) {
  std::string text;
  if (links.nvlinks > 0) text = concat(links.nvlinks, " NVLinks");
  if (links.pcie_generation > 0 && links.pcie_lanes > 0)
    text +=
        concat(text.empty() ? "" : ", ", "PCIe ", links.pcie_generation, " x", links.pcie_lanes);
  return text;
}

}  // namespace longnet
