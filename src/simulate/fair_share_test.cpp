// Max-min fair rates of flows over shared links.
#include "simulate/fair_share.h"

#include <gmock/gmock.h>

#include <limits>

namespace longnet {
namespace {

using testing::ElementsAre;

FairShare::Flow started(FairShare& share, const std::vector<int>& links, double most = 1000) {
  return share.start(links, most);
}

// The flows that are looked at again.
std::vector<FairShare::Flow> update(FairShare& share) {
  std::vector<FairShare::Flow> all;
  share.update([&](auto flows) { all.insert(all.end(), flows.begin(), flows.end()); });
  return all;
}

TEST(FairShare, BandwidthThatAFlowCannotUseGoesToOthers) {  // links of 10 and 2
  FairShare share({10, 2}, 2);
  const auto wide = started(share, {0}), narrow = started(share, {0, 1});
  EXPECT_EQ(update(share).size(), 2u);
  EXPECT_DOUBLE_EQ(share.rate(wide), 8);
  EXPECT_DOUBLE_EQ(share.rate(narrow), 2);
  share.stop(narrow);
  EXPECT_THAT(update(share), ElementsAre(wide));
  EXPECT_DOUBLE_EQ(share.rate(wide), 10);
}

TEST(FairShare, FillsLinkAfterLink) {
  // Link 0 (12): a b c; link 1 (6): c d; link 2 (100): d e. c = d = 3, then a = b = 4.5, e = 97.
  FairShare share({12, 6, 100}, 2);
  const auto a = started(share, {0}), b = started(share, {0}), c = started(share, {0, 1}),
             d = started(share, {1, 2}), e = started(share, {2});
  update(share);
  EXPECT_DOUBLE_EQ(share.rate(c), 3);
  EXPECT_DOUBLE_EQ(share.rate(d), 3);
  EXPECT_DOUBLE_EQ(share.rate(a), 4.5);
  EXPECT_DOUBLE_EQ(share.rate(b), 4.5);
  EXPECT_DOUBLE_EQ(share.rate(e), 97);
}

TEST(FairShare, UpdatesOnlyConnectedFlows) {
  FairShare share({10, 10}, 2);
  const auto left = started(share, {0}), right = started(share, {1});
  update(share);
  const auto more = started(share, {1});
  EXPECT_THAT(update(share), testing::UnorderedElementsAre(right, more));
  EXPECT_DOUBLE_EQ(share.rate(left), 10);
  EXPECT_DOUBLE_EQ(share.rate(right), 5);
}

TEST(FairShare, AFlowThatNoLinkSlowsHasItsRateAtOnce) {
  FairShare share({10}, 1);
  const auto first = started(share, {0}, 6), second = started(share, {0}, 4);
  EXPECT_DOUBLE_EQ(share.rate(second), 4);  // 10 carries both
  EXPECT_THAT(update(share), ElementsAre());
  const auto third = started(share, {0}, 1);
  EXPECT_EQ(share.rate(third), 0);  // not yet known
  EXPECT_THAT(update(share), testing::UnorderedElementsAre(first, second, third));
  EXPECT_DOUBLE_EQ(share.rate(first), 5);
  share.stop(third);
  EXPECT_THAT(update(share), testing::UnorderedElementsAre(first, second));
  EXPECT_DOUBLE_EQ(share.rate(first), 6);
  share.stop(second);
  EXPECT_THAT(update(share), ElementsAre());
}

TEST(FairShare, ALinkThatSlowsNobodyAnyMoreConnectsNobody) {
  // a b on link 0, b c and e on link 1, c d on link 2: without e, link 1 carries b and c.
  FairShare share({10, 20, 10}, 2);
  const auto a = started(share, {0}, 10), b = started(share, {0, 1}, 10),
             c = started(share, {1, 2}, 10), d = started(share, {2}, 10),
             e = started(share, {1}, 10);
  EXPECT_EQ(update(share).size(), 5u);
  share.stop(e);
  std::vector<std::vector<FairShare::Flow>> apart;
  share.update([&](auto flows) { apart.emplace_back(flows.begin(), flows.end()); });
  EXPECT_THAT(apart, testing::UnorderedElementsAre(testing::UnorderedElementsAre(a, b),
                                                   testing::UnorderedElementsAre(c, d)));
}

TEST(FairShare, AFlowThatUsesALinkTwiceTakesTwice) {
  FairShare share({12}, 2);
  const auto twice = started(share, {0, 0}), once = started(share, {0});
  update(share);
  EXPECT_DOUBLE_EQ(share.rate(twice), 4);
  EXPECT_DOUBLE_EQ(share.rate(once), 4);
  share.stop(twice);
  update(share);
  EXPECT_DOUBLE_EQ(share.rate(once), 12);
}

TEST(FairShare, AFlowTakesNoMoreThanItsLimit) {  // 12: 2 for one, 5 for each of the others
  FairShare share({12}, 1);
  const auto limited = started(share, {0}, 2), a = started(share, {0}), b = started(share, {0}, 6);
  update(share);
  EXPECT_DOUBLE_EQ(share.rate(limited), 2);
  EXPECT_DOUBLE_EQ(share.rate(a), 5);
  EXPECT_DOUBLE_EQ(share.rate(b), 5);
  share.stop(a);
  update(share);
  EXPECT_DOUBLE_EQ(share.rate(b), 6);
  share.stop(limited);
  update(share);
  EXPECT_DOUBLE_EQ(share.rate(b), 6);  // alone
}

TEST(FairShare, AFlowStartsAgainAndALinkMayChange) {
  FairShare share({10, 4}, 2);
  const auto both = started(share, {0, 1}), one = started(share, {0});
  update(share);
  EXPECT_DOUBLE_EQ(share.rate(one), 6);
  share.stop(both);
  EXPECT_EQ(started(share, {0, 1}), both);  // the number is free again
  EXPECT_THAT(update(share), testing::UnorderedElementsAre(one, both));
  EXPECT_DOUBLE_EQ(share.rate(both), 4);
  share.set_capacity(1, std::numeric_limits<double>::infinity());
  EXPECT_THAT(update(share), testing::UnorderedElementsAre(one, both));
  EXPECT_DOUBLE_EQ(share.rate(both), 5);
}

}  // namespace
}  // namespace longnet
