#include "measure/machine_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "measure/rank_place.h"

namespace longnet {
namespace {

constexpr const char* kBefore =
    "cpu  0 0 0 0\n"
    "cpu0 100 10 20 1000 50 0 5 0 0 0\n"
    "cpu1 200 0 0 500 0 0 0 0 0 0\n"
    "cpu12 5 0 0 5 0 0 0 0 0 0\n"
    "intr 12345\n";
constexpr const char* kAfter =
    "cpu  0 0 0 0\n"
    "cpu0 110 10 25 1030 55 0 5 0 0 0\n"  // 50 ticks, 35 of them idle or waiting for a disk
    "cpu1 250 0 0 500 0 0 0 0 9 0\n"      // 50 ticks, none idle; a guest's are the user's
    "cpu12 5 0 0 95 0 4 6 0 0 0\n"        // interrupts
    "intr 99999\n";

TEST(BusyShare, IsThatOfTheThreadsAskedFor) {
  EXPECT_DOUBLE_EQ(busy_share_between(kBefore, kAfter, {0}), 0.3);
  EXPECT_DOUBLE_EQ(busy_share_between(kBefore, kAfter, {1}), 1.0);
  EXPECT_DOUBLE_EQ(busy_share_between(kBefore, kAfter, {0, 1}), 0.65);
  EXPECT_DOUBLE_EQ(busy_share_between(kBefore, kAfter, {12}), 0.0);
}

TEST(BusyShare, LeavesOwnWorkOut) {
  EXPECT_DOUBLE_EQ(busy_share_between(kBefore, kAfter, {0, 1}, 40), 0.25);
  EXPECT_DOUBLE_EQ(busy_share_between(kBefore, kAfter, {0, 1}, 70), 0.0);
}

TEST(BusyShare, UnknownIsNaN) {
  EXPECT_TRUE(std::isnan(busy_share_between(kBefore, kAfter, {7})));
  EXPECT_TRUE(std::isnan(busy_share_between(kBefore, kBefore, {0})));
  EXPECT_TRUE(std::isnan(busy_share_between("", "garbage\ncpu\ncpux 1 2\n", {0})));
}

// A thread of this process, counted once as other work and once as the process's own.
TEST(BusyShare, SeesAThreadAtWork) {
  if (std::isnan(measure_busy_share(0.1))) GTEST_SKIP() << "no /proc/stat";
  std::atomic<bool> stop{false};
  std::thread worker([&] {
    while (!stop) {
    }
  });
  const OtherLoad load(this_place().cpus);
  EXPECT_TRUE(std::isnan(load.share(0)));  // too early
  const double share = measure_busy_share(OtherLoad::kShortest_s);
  const double own_s = load.own_s();
  stop = true;
  worker.join();
  EXPECT_GT(own_s, 0);
  EXPECT_GT(load.share(0), load.share(own_s));
  EXPECT_GT(share, 0.3 / double(std::max(1u, std::thread::hardware_concurrency())));
  EXPECT_LE(share, 1.0);
}

}  // namespace
}  // namespace longnet
