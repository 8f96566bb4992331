// For tests: libnvidia-ml.so.1 of a machine of emulated GPUs, each an H200 by its links. With
// LONGNET_EMULATED_THROTTLE=1 their power cap slows them down, a millisecond per reading.
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {
constexpr int kOk = 0, kInvalidArgument = 2;
constexpr unsigned long long kPowerCap = 0x4, kIdle = 0x1;
int device;  // its address is every device's handle

bool throttled() { return std::getenv("LONGNET_EMULATED_THROTTLE") != nullptr; }
}  // namespace

extern "C" {

int nvmlInit_v2() { return kOk; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** handle) {
  *handle = &device;
  return std::strncmp(bus, "emulated:", 9) == 0 ? kOk : kInvalidArgument;
}
int nvmlDeviceGetClockInfo(void*, unsigned, unsigned* mhz) {
  return *mhz = throttled() ? 1500 : 1980, kOk;
}
int nvmlDeviceGetMaxClockInfo(void*, unsigned, unsigned* mhz) { return *mhz = 1980, kOk; }
int nvmlDeviceGetTemperature(void*, unsigned, unsigned* celsius) { return *celsius = 41, kOk; }
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) { return *milliwatts = 612500, kOk; }
int nvmlDeviceGetCurrentClocksEventReasons(void*, unsigned long long* reasons) {
  return *reasons = throttled() ? kPowerCap : kIdle, kOk;
}
int nvmlDeviceGetViolationStatus(void*, unsigned policy, unsigned long long* times) {
  static std::atomic<unsigned long long> nanoseconds = 0;
  if (policy == 0 && throttled()) nanoseconds += 1'000'000;
  times[0] = 0;
  times[1] = policy == 0 ? nanoseconds.load() : 0;
  return kOk;
}
int nvmlDeviceGetNvLinkState(void*, unsigned link, int* up) {
  *up = 1;
  return link < 18 ? kOk : kInvalidArgument;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* generation) { return *generation = 5, kOk; }
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* lanes) { return *lanes = 16, kOk; }
}
