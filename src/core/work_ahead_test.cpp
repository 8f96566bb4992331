#include "core/work_ahead.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <stdexcept>

namespace longnet {
namespace {

TEST(WorkAhead, ResultsComeInOrderHoweverLongTheyTake) {
  for (const int threads : {0, 1, 2, 5}) {
    WorkAhead<size_t> squares(9, threads, [](size_t i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(9 - i));
      return i * i;
    });
    for (size_t i = 0; i < 9; ++i) EXPECT_EQ(squares.next(), i * i) << threads;
    EXPECT_THROW(squares.next(), std::out_of_range);
  }
}

// The first waits for the second.
TEST(WorkAhead, LaterWorkRunsMeanwhile) {
  std::promise<void> second;
  WorkAhead<int> both(2, 2, [&, future = second.get_future().share()](size_t i) {
    if (i == 0) future.wait();
    if (i == 1) second.set_value();
    return int(i);
  });
  EXPECT_EQ(both.next(), 0);
  EXPECT_EQ(both.next(), 1);
}

TEST(WorkAhead, AnErrorIsThrownWhereItsResultIsAskedFor) {
  WorkAhead<int> work(3, 2, [](size_t i) {
    if (i == 1) throw std::runtime_error("one");
    return int(i);
  });
  EXPECT_EQ(work.next(), 0);
  EXPECT_THROW(work.next(), std::runtime_error);
  EXPECT_EQ(work.next(), 2);
}

TEST(WorkAhead, WhatWasNotBegunIsLeft) {
  std::atomic<int> begun = 0;
  {
    WorkAhead<int> work(100, 1, [&](size_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      return ++begun;
    });
    EXPECT_EQ(work.next(), 1);
  }
  EXPECT_LT(begun, 100);
}

}  // namespace
}  // namespace longnet
