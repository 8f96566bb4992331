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
enum : uint64_t {
  kPowerCap = 0x4,
  kHardwareSlowdown = 0x8,
  kSoftwareThermal = 0x20,
  kHardwareThermal = 0x40,
  kPowerBrake = 0x80
};
constexpr unsigned kSmClock = 1, kMemoryClock = 2, kGpuTemperature = 0;
constexpr unsigned kPowerPolicy = 0, kThermalPolicy = 1, kMostLinks = 18;
struct ViolationTime {
  unsigned long long reference_us, violation_ns;
};

struct Nvml {
  DynamicLibrary library{{"libnvidia-ml.so.1"}};
  int (*init)() = nullptr;
  int (*by_bus)(const char*, NvmlDevice*) = nullptr;
  int (*clock)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*max_clock)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*temperature)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*power)(NvmlDevice, unsigned*) = nullptr;
  int (*limits)(NvmlDevice, unsigned long long*) = nullptr;
  // Not every device or driver has these.
  int (*violation)(NvmlDevice, unsigned, ViolationTime*) = nullptr;
  int (*link_state)(NvmlDevice, unsigned, int*) = nullptr;
  int (*pcie_generation)(NvmlDevice, unsigned*) = nullptr;
  int (*pcie_lanes)(NvmlDevice, unsigned*) = nullptr;
  bool ready = false;

  Nvml() {
    const auto find = [&](auto*& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.find(name));
      return function != nullptr;
    };
    find(violation, "nvmlDeviceGetViolationStatus");
    find(link_state, "nvmlDeviceGetNvLinkState");
    find(pcie_generation, "nvmlDeviceGetMaxPcieLinkGeneration");
    find(pcie_lanes, "nvmlDeviceGetMaxPcieLinkWidth");
    ready = find(init, "nvmlInit_v2") && find(by_bus, "nvmlDeviceGetHandleByPciBusId_v2") &&
            find(clock, "nvmlDeviceGetClockInfo") && find(max_clock, "nvmlDeviceGetMaxClockInfo") &&
            find(temperature, "nvmlDeviceGetTemperature") &&
            find(power, "nvmlDeviceGetPowerUsage") &&
            (find(limits, "nvmlDeviceGetCurrentClocksEventReasons") ||
             find(limits, "nvmlDeviceGetCurrentClocksThrottleReasons")) &&  // before driver 535
            init() == 0;
  }

  // Null when NVML or the device is not there.
  static NvmlDevice device(int index) {
    const std::string bus = device_bus_id(index);
    NvmlDevice handle = nullptr;
    return get().ready && !bus.empty() && get().by_bus(bus.c_str(), &handle) == 0 ? handle
                                                                                  : nullptr;
  }
  static const Nvml& get() {
    static const Nvml nvml;
    return nvml;
  }
};

unsigned number(int (*function)(NvmlDevice, unsigned*), NvmlDevice device) {
  unsigned value = 0;
  return function != nullptr && function(device, &value) == 0 ? value : 0;
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

bool DeviceClocks::throttled() const {
  return (limits &
          (kPowerCap | kHardwareSlowdown | kSoftwareThermal | kHardwareThermal | kPowerBrake)) != 0;
}

std::string DeviceClocks::limits_text() const {
  const struct {
    uint64_t bit;
    const char* name;
  } names[] = {{kPowerCap, "power cap"},
               {kHardwareSlowdown, "hardware slowdown"},
               {kSoftwareThermal, "software thermal"},
               {kHardwareThermal, "hardware thermal"},
               {kPowerBrake, "power brake"}};
  std::string text;
  for (const auto& [bit, name] : names)
    if (limits & bit) text += (text.empty() ? "" : ", ") + std::string(name);
  return text.empty() ? "none" : text;
}

DeviceClocks read_device_clocks(int device) {
  DeviceClocks now;
  const Nvml& nvml = Nvml::get();
  const NvmlDevice handle = Nvml::device(device);
  if (handle == nullptr) return now;
  const auto read = [&](auto function, auto... arguments) {
    unsigned value = 0;
    return function(handle, arguments..., &value) == 0 ? int(value) : 0;
  };
  now.sm_mhz = read(nvml.clock, kSmClock);
  now.sm_max_mhz = read(nvml.max_clock, kSmClock);
  now.memory_mhz = read(nvml.clock, kMemoryClock);
  now.temperature_c = read(nvml.temperature, kGpuTemperature);
  now.power_w = read(nvml.power) / 1000.0;
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
  DeviceLinks links{.pcie_generation = int(number(nvml.pcie_generation, handle)),
                    .pcie_lanes = int(number(nvml.pcie_lanes, handle))};
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
