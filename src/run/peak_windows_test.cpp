#include "run/peak_windows.h"

#include <gmock/gmock.h>

#include <string>

namespace longnet {
namespace {

// Run i is between windows that show 10 i + 1 and 10 i + 4.
TEST(PeakWindows, StandRightBeforeAndRightAfterEachRun) {
  double now = 0;
  int runs = 0;
  std::string order;
  PeakWindows windows([&] {
    order += 'w';
    return order.ends_with("rw") ? 10.0 * (runs - 1) + 4 : 10.0 * runs + 1;
  });
  const SampleHooks hooks{.prepare = [&] { order += 'b'; },
                          .run =
                              [&] {
                                order += 'r';
                                now += 1 + 0.1 * runs++;
                              },
                          .over_ranks = [](const RunSpan& own) { return own.seconds(); },
                          .broadcast_from_root = [](bool go_on) { return go_on; },
                          .now = [&] { return now; }};
  const SampleSet samples =
      windows.sample({.warmup = 2, .min_samples = 3, .max_samples = 3, .target_ci = 1e-9}, hooks,
                     [&] { order += 'p'; });
  EXPECT_EQ(order,
            "pwbrw"
            "pwbrw"
            "pwbrw"
            "pwbrw"
            "pwbrw");
  ASSERT_EQ(samples.samples_s.size(), 3u);
  EXPECT_THAT(windows.beside(samples), testing::ElementsAre(22.5, 32.5, 42.5));
}

}  // namespace
}  // namespace longnet
