#include "core/cuda/device_clocks.h"

#include "core/cuda/device.h"
#include "core/cuda/dynamic_library.h"

namespace longnet {
namespace {

// Of nvml.h, which Debian and the toolkit's runtime packages lack: the C interface is stable.
using NvmlDevice = void*;
enum : uint64_t {
  kPowerCap = 0x4,
  kHardwareSlowdown = 0x8,
  kSoftwareThermal = 0x20,
  kHardwareThermal = 0x40,
  kPowerBrake = 0x80
};
constexpr unsigned kSmClock = 1, kMemoryClock = 2, kGpuTemperature = 0;

struct Nvml {
  DynamicLibrary library{{"libnvidia-ml.so.1"}};
  int (*init)() = nullptr;
  int (*by_bus)(const char*, NvmlDevice*) = nullptr;
  int (*clock)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*max_clock)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*temperature)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*power)(NvmlDevice, unsigned*) = nullptr;
  int (*limits)(NvmlDevice, unsigned long long*) = nullptr;
  bool ready = false;

  Nvml() {
    const auto find = [&](auto*& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.find(name));
      return function != nullptr;
    };
    ready = find(init, "nvmlInit_v2") && find(by_bus, "nvmlDeviceGetHandleByPciBusId_v2") &&
            find(clock, "nvmlDeviceGetClockInfo") && find(max_clock, "nvmlDeviceGetMaxClockInfo") &&
            find(temperature, "nvmlDeviceGetTemperature") &&
            find(power, "nvmlDeviceGetPowerUsage") &&
            (find(limits, "nvmlDeviceGetCurrentClocksEventReasons") ||
             find(limits, "nvmlDeviceGetCurrentClocksThrottleReasons")) &&  // before driver 535
            init() == 0;
  }
};

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
  static const Nvml nvml;
  DeviceClocks now;
  const std::string bus = device_bus_id(device);
  NvmlDevice handle = nullptr;
  if (!nvml.ready || bus.empty() || nvml.by_bus(bus.c_str(), &handle) != 0) return now;
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
  now.known = now.sm_mhz > 0;
  return now;
}

}  // namespace longnet
