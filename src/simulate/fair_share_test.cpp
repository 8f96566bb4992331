// Max-min fair rates of flows over shared links.
#include "simulate/fair_share.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

namespace longnet {
namespace {

using testing::ElementsAre;

FairShare::Bundle started(FairShare& share, const std::vector<int>& links, double most = 1000) {
  return share.start(links, most);
}

// The flows that are looked at again.
std::vector<FairShare::Bundle> update(FairShare& share) {
  std::vector<FairShare::Bundle> all;
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
  std::vector<std::vector<FairShare::Bundle>> apart;
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

// Rates of flows, one by one: all grow together until their limit or a full link holds them.
std::vector<double> grown(const std::vector<double>& capacities,
                          const std::vector<std::vector<int>>& links,
                          const std::vector<double>& most) {
  std::vector<double> rates(links.size(), 0);
  std::vector<bool> held(links.size(), false);
  while (std::ranges::count(held, false) > 0) {
    std::vector<double> left = capacities;
    std::vector<int> growing(capacities.size(), 0);
    for (size_t f = 0; f < links.size(); ++f)
      for (const int link : links[f]) {
        left[size_t(link)] -= rates[f];
        growing[size_t(link)] += !held[f];
      }
    double step = std::numeric_limits<double>::infinity();
    for (size_t l = 0; l < left.size(); ++l)
      if (growing[l] > 0) step = std::min(step, left[l] / growing[l]);
    for (size_t f = 0; f < links.size(); ++f)
      if (!held[f]) step = std::min(step, most[f] - rates[f]);
    for (size_t f = 0; f < links.size(); ++f) {
      if (held[f]) continue;
      rates[f] += step;
      held[f] = most[f] - rates[f] < 1e-9;
      for (const int l : links[f])
        held[f] = held[f] || left[size_t(l)] - growing[size_t(l)] * step < 1e-9;
    }
  }
  return rates;
}

TEST(FairShare, BundlesOfFlowsThatStartAndStopInTurnAreAsFlowsOneByOne) {
  // Sixteen routes over two of eight links each, every second one with a limit.
  const std::vector<double> capacities{10, 7, 12, 5, 9, 11, 6, 8};
  std::vector<std::vector<int>> routes;
  std::vector<double> limits;
  for (const int from : {0, 1, 2, 3})
    for (const int to : {4, 5, 6, 7}) {
      routes.push_back({from, to});
      limits.push_back((from + to) % 2 == 0 ? 1.5 : 1000);
    }
  FairShare share(capacities, 2);
  std::vector<FairShare::Bundle> bundles(routes.size());
  std::vector<size_t> running;  // routes of the flows
  uint32_t random = 1;
  for (int step = 0; step < 400; ++step) {
    random = random * 1664525 + 1013904223;
    if (running.size() < 40 && (random >> 30 || running.empty())) {
      const size_t route = random >> 20 & 15;
      if (std::ranges::count(running, route) > 0)
        share.add(bundles[route]);
      else
        bundles[route] = share.start(routes[route], limits[route]);
      running.push_back(route);
    } else {
      const size_t at = (random >> 10) % running.size();
      share.stop(bundles[running[at]]);
      running.erase(running.begin() + int64_t(at));
    }
    update(share);
    std::vector<std::vector<int>> links;
    std::vector<double> most;
    for (const size_t route : running) {
      links.push_back(routes[route]);
      most.push_back(limits[route]);
    }
    const std::vector<double> expected = grown(capacities, links, most);
    for (size_t f = 0; f < running.size(); ++f)
      ASSERT_NEAR(share.rate(bundles[running[f]]), expected[f], 1e-9) << step << " " << running[f];
  }
}

}  // namespace
}  // namespace longnet
