#include "measure/rank_place.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace longnet {
namespace {

std::vector<RankPlace> ranks_on(const std::string& machine, int ranks, const std::set<int>& cpus) {
  return std::vector<RankPlace>(size_t(ranks), {machine, machine + "/time", cpus});
}

TEST(RankPlace, MoreRanksThanCoresShareThem) {
  EXPECT_EQ(usable_cores(ranks_on("a", 8, {0, 1}), 1), 2);
  EXPECT_EQ(usable_cores(ranks_on("a", 2, {0, 1}), 3), 2);
}

TEST(RankPlace, FewerThreadsThanCoresUseACoreEach) {
  EXPECT_EQ(usable_cores(ranks_on("a", 1, {0, 1, 2, 3}), 1), 1);
  EXPECT_EQ(usable_cores(ranks_on("a", 2, {0, 1, 2, 3, 4, 5, 6, 7}), 3), 6);
}

TEST(RankPlace, CoresOfBoundRanksAddUp) {
  std::vector<RankPlace> places = ranks_on("a", 1, {0, 1});
  places.push_back(ranks_on("a", 1, {2, 3}).front());
  EXPECT_EQ(usable_cores(places, 2), 4);
  EXPECT_EQ(usable_cores(places, 4), 4);
}

TEST(RankPlace, CoresOfMachinesAddUpAndEachHasItsClock) {
  std::vector<RankPlace> places = ranks_on("a", 4, {0, 1});
  EXPECT_TRUE(one_clock(places));
  for (const RankPlace& p : ranks_on("b", 1, {0, 1})) places.push_back(p);
  EXPECT_FALSE(one_clock(places));
  EXPECT_EQ(usable_cores(places, 1), 2 + 1);  // not min(5, 2), not min(4, 2) + 2
}

TEST(RankPlace, ContainersOfOneMachineShareCoresButNotAlwaysTheClock) {
  std::vector<RankPlace> places = ranks_on("a", 2, {0, 1});
  places.back().clock = "a/time:[2]";
  EXPECT_FALSE(one_clock(places));
  EXPECT_EQ(usable_cores(places, 2), 2);
}

TEST(RankPlace, ThreadsOfOneProcessShareItsClock) {
  std::vector<RankPlace> places(2);
  std::thread other([&] { places[1] = this_place(); });
  places[0] = this_place();
  other.join();
  EXPECT_TRUE(one_clock(places));
}

}  // namespace
}  // namespace longnet
