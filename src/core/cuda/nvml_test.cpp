#include "core/cuda/nvml.h"

#include <gtest/gtest.h>

namespace longnet {
namespace {

constexpr uint64_t kIdle = 0x1, kPowerCap = 0x4, kHardwareThermal = 0x40;

bool throttled(uint64_t limits, int sm_mhz, int full_mhz = 1980) {
  DeviceClocks clocks;
  clocks.limits = limits;
  clocks.sm_mhz = sm_mhz;
  clocks.full_mhz = full_mhz;
  return clocks.throttled();
}

TEST(DeviceClocks, APowerCapThrottlesWhereItCostsATenth) {
  EXPECT_FALSE(throttled(kPowerCap, 1800));
  EXPECT_TRUE(throttled(kPowerCap, 1770));
  EXPECT_TRUE(throttled(kPowerCap, 1980, 0)) << "the highest clock is not known";
}

TEST(DeviceClocks, HeatThrottlesAtAnyClockAndRestAtNone) {
  EXPECT_TRUE(throttled(kPowerCap | kHardwareThermal, 1980));
  EXPECT_FALSE(throttled(kIdle, 345));
  EXPECT_FALSE(throttled(0, 1980));
}

}  // namespace
}  // namespace longnet
