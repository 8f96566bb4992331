// Tests of the functions of device.h that need no device; src/emulation/emulated_device_test.cpp
// tests its streams.
#include "core/cuda/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace longnet {
namespace {

TEST(Device, VersionsAsTheirMakersWriteThem) {
  EXPECT_EQ(cuda_version_text(13000), "13.0");
  EXPECT_EQ(cuda_version_text(12090), "12.9");
  EXPECT_EQ(library_version_text(22809), "2.28.9");  // NCCL
  EXPECT_EQ(library_version_text(91002), "9.10.2");  // cuDNN
}

// The H100 SXM: 132 multiprocessors at 1830 MHz, 989.4 TFLOP/s of dense bf16 (NVIDIA H100 white
// paper, table 2); A100: 108 at 1410 MHz, 312.
TEST(Device, TensorCoresReachTheirNominalPeak) {
  const auto tflops = [](int major, int minor, int multiprocessors, double mhz) {
    return tensor_flops_per_clock({.major = major, .minor = minor}) * multiprocessors * mhz / 1e6;
  };
  EXPECT_NEAR(tflops(9, 0, 132, 1830), 989.4, 0.1);
  EXPECT_NEAR(tflops(8, 0, 108, 1410), 312, 0.2);
  EXPECT_EQ(tflops(7, 5, 72, 1770), 0) << "unknown";
}

TEST(Device, ALedgersLimitRefusesWhatWouldPassIt) {
  MemoryLedger ledger;
  const TaggedBuffer taken(ledger, "kv", 600);
  EXPECT_NO_THROW(require_admitted(ledger, "output", int64_t{1} << 50)) << "no limit";
  ledger.set_limit(1000);
  EXPECT_NO_THROW(require_admitted(ledger, "output", 400));
  try {
    require_admitted(ledger, "output", 401);
    ADD_FAILURE() << "401 bytes beside 600 of 1000 were admitted";
  } catch (const std::bad_alloc& refusal) {  // as the host's memory refuses
    EXPECT_STREQ(refusal.what(),
                 "memory.limit_bytes admits 1000 bytes, 600 are taken, output wants 401");
  }
}

TEST(Device, AReportHasDevicesOrTheReason) {
  const DeviceReport report = describe_devices();
  EXPECT_EQ(report.devices.empty(), !report.unusable.empty()) << report.unusable;
  EXPECT_EQ(device_bus_id(int(report.devices.size())), "");
}

}  // namespace
}  // namespace longnet
