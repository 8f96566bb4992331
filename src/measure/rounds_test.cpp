#include "measure/rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "measure/statistics.h"

namespace longnet {
namespace {

TEST(Rounds, EachRoundRunsEachModeOnceInARotatedOrder) {
  std::vector<int> order;
  const auto seconds = take_rounds(3, 4, [&](int mode) {
    order.push_back(mode);
    return 10.0 * mode + double(order.size());
  });
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2}));
  ASSERT_EQ(seconds.size(), 3u);
  EXPECT_EQ(seconds[1], (std::vector<double>{12, 14, 19, 21}));  // runs 2, 4, 9 and 11
}

// Every run is 0.01 s slower than the one before; the modes really differ by 0.25 s. Runs 0, 9, 13,
// 17, 21 are mode 0's and 2, 6, 10, 19, 23 mode 2's: medians see three runs of drift at most. One
// mode after another would put twenty of them between modes 0 and 4.
TEST(Rounds, DriftStaysOutOfDifferences) {
  int runs = 0;
  const auto seconds = take_rounds(5, 5, [&](int mode) { return 1 + 0.25 * mode + 0.01 * runs++; });
  for (int mode = 1; mode < 5; ++mode)
    EXPECT_NEAR(median(seconds[size_t(mode)]) - median(seconds[0]), 0.25 * mode, 0.031) << mode;
  runs = 0;
  std::vector<std::vector<double>> blocks(5);
  for (int mode = 0; mode < 5; ++mode)
    for (int i = 0; i < 5; ++i) blocks[size_t(mode)].push_back(1 + 0.25 * mode + 0.01 * runs++);
  EXPECT_GT(median(blocks[4]) - median(blocks[0]), 4 * 0.25 + 0.15);
}

TEST(Rounds, LongRunsGetFewer) {
  EXPECT_EQ(worthwhile_rounds(0.01), 5);
  EXPECT_EQ(worthwhile_rounds(0.3), 3);
  EXPECT_EQ(worthwhile_rounds(2.9), 3);
  EXPECT_EQ(worthwhile_rounds(3), 2);
}

TEST(Rounds, RefusesNoModesOrRounds) {
  EXPECT_THROW(take_rounds(0, 1, [](int) { return 1.0; }), Error);
  EXPECT_THROW(take_rounds(1, 0, [](int) { return 1.0; }), Error);
}

}  // namespace
}  // namespace longnet
