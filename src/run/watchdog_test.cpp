#include "run/watchdog.h"

#include <gtest/gtest.h>

#include <iostream>

namespace longnet {
namespace {

TEST(WatchdogDeathTest, EndsWhatWaitsTooLong) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Watchdog watchdog([](const std::string& what) { std::cerr << "late: " << what << "\n"; });
        watchdog.expect("a point", 0.01);
        std::this_thread::sleep_for(std::chrono::seconds(60));
      },
      testing::ExitedWithCode(3), "late: a point");
}

TEST(Watchdog, RestsWhenAllIsWell) {
  Watchdog watchdog([](const std::string&) { FAIL(); });
  watchdog.expect("a point", 0.05);
  watchdog.rest();
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
}

}  // namespace
}  // namespace longnet
