#include "run/watchdog.h"

#include <gtest/gtest.h>

namespace longnet {
namespace {

TEST(WatchdogDeathTest, EndsWhatWaitsTooLong) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Watchdog watchdog(7, "; late");
        watchdog.expect("a point", 0.01);
        std::this_thread::sleep_for(std::chrono::seconds(60));
      },
      testing::ExitedWithCode(3), "rank 7 waited too long in 'a point'; late, exit 3");
}

TEST(Watchdog, RestsWhenAllIsWell) {
  Watchdog watchdog(0);
  watchdog.expect("a point", 0.05);
  watchdog.rest();
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
}

}  // namespace
}  // namespace longnet
