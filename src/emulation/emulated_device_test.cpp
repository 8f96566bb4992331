// Streams, events, graphs and memory of core/cuda/device.h on the emulated device, whose work is
// done as late as it may be: what no event orders is seen to be missing.
#include "emulation/emulated_device.h"

#include <gtest/gtest.h>

#include "core/check.h"
#include "core/stopwatch.h"

namespace longnet {
namespace {

struct EmulatedDevice : testing::Test {
  MemoryLedger ledger;
  DeviceBuffer buffer{ledger, "x", 8};
  Stream one, two;
  int first() const { return int(*buffer.data()); }
};

TEST_F(EmulatedDevice, WorkIsDoneWhenSomethingWaitsForIt) {
  one.fill(buffer.data(), 1, 8);
  EXPECT_EQ(first(), 0xFF) << "memory is NaN before it is written";
  two.synchronize();
  EXPECT_EQ(first(), 0xFF) << "nothing orders the streams";
  one.synchronize();
  EXPECT_EQ(first(), 1);
}

TEST_F(EmulatedDevice, AnEventOrdersStreams) {
  std::byte seen{};
  const Event filled;
  one.fill(buffer.data(), 1, 8);
  filled.record(one);
  one.fill(buffer.data(), 2, 8);  // after the event
  two.copy(&seen, buffer.data(), 1);
  two.wait(filled);
  two.copy(buffer.data() + 1, buffer.data(), 1);
  two.synchronize();
  EXPECT_EQ(int(seen), 0xFF) << "a copy before the wait";
  EXPECT_EQ(int(buffer.data()[1]), 1) << "a copy after it";
  EXPECT_EQ(first(), 1);
  one.synchronize();
  EXPECT_EQ(first(), 2);
}

TEST_F(EmulatedDevice, StreamsThatWaitForEachOtherThrow) {
  const Event of_one, of_two;
  emulate_launch(two.handle(), [&] { of_one.synchronize(); });
  of_two.record(two);
  one.wait(of_two);
  of_one.record(one);
  EXPECT_THROW(one.synchronize(), Error);
  const Event never;
  EXPECT_THROW(never.synchronize(), Error) << "never recorded";
}

TEST_F(EmulatedDevice, EventsTellTheTimeOfTheWorkBetweenThem) {
  const Event begin(Event::Kind::kTiming), end(Event::Kind::kTiming);
  begin.record(one);
  emulate_launch(one.handle(), [] {
    const double until = steady_seconds() + 2e-3;
    while (steady_seconds() < until) continue;
  });
  end.record(one);
  EXPECT_THROW(end.seconds_since(begin), Error) << "not over yet";
  end.synchronize();
  EXPECT_GE(end.seconds_since(begin), 2e-3);
}

TEST_F(EmulatedDevice, AGraphRunsWhenItIsLaunchedAndAsOftenAsThat) {
  int runs = 0;
  const Graph graph(one, [&] { emulate_launch(one.handle(), [&] { ++runs; }); });
  one.synchronize();
  EXPECT_EQ(runs, 0);
  graph.launch(one);
  graph.launch(one);
  one.synchronize();
  EXPECT_EQ(runs, 2);
  EXPECT_THROW(Graph(one, [&] { DeviceBuffer(ledger, "y", 8); }), Error);
  EXPECT_THROW(Graph(one, [&] { one.synchronize(); }), Error);
}

TEST_F(EmulatedDevice, MemoryIsCountedRefusedAndGivenBack) {
  const int64_t before = device_free_bytes();
  {
    const DeviceBuffer more(ledger, "y", 1000);
    EXPECT_EQ(device_free_bytes(), before - 1000);
    EXPECT_EQ(ledger.now_bytes(), 1008);
    EXPECT_EQ(emulated_buffer(more.data() + 999).first, more.data());
    EXPECT_THROW(DeviceBuffer(ledger, "z", before - 999), DeviceOutOfMemory);
  }
  EXPECT_EQ(device_free_bytes(), before);
  DeviceBuffer list(ledger, "list", 8);
  EXPECT_EQ(list.upload(std::vector<int>{5, 6})[1], 6);
  EXPECT_THROW(list.upload(std::vector<int>{5, 6, 7}), Error);
}

TEST_F(EmulatedDevice, AStreamBelongsToTheDeviceItWasMadeOn) {
  emulate_devices(2);
  use_device(1);
  EXPECT_THROW(one.fill(buffer.data(), 1, 8), Error);
  EXPECT_THROW(Event().record(one), Error);
  use_device(0);
  emulate_devices(1);
  EXPECT_NO_THROW(one.fill(buffer.data(), 1, 8));
}

}  // namespace
}  // namespace longnet
