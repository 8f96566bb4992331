// Routes, capacities and shifts of each topology.
#include "simulate/topology.h"

#include <gmock/gmock.h>

#include "core/testing/test_support.h"
#include "simulate/closed_form_times.h"

namespace longnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<double> capacities_on(const Topology& t, Rank from, Rank to) {
  std::vector<double> out;
  for (const int link : t.route(from, to)) out.push_back(t.capacity(link));
  return out;
}

Quantity q(double v) { return {v, "test"}; }

TEST(Topology, InsideANodeAndBetweenNodes) {  // 4 GPUs a node, two cards: GPUs 0 1 share the first
  const Topology t(plain_cluster({.nodes = 4, .cards = 2}), 16);
  EXPECT_THAT(capacities_on(t, 0, 3), ElementsAre(4e11, 4e11));
  EXPECT_THAT(capacities_on(t, 0, 4), ElementsAre(5e10, 5e10));
  EXPECT_EQ(t.route(0, 4).links[0], t.route(1, 8).links[0]);
  EXPECT_NE(t.route(0, 4).links[0], t.route(2, 8).links[0]);
  EXPECT_DOUBLE_EQ(t.alpha_s(t.route(0, 3), AlphaSet::kIdeal), 1e-6);
  EXPECT_DOUBLE_EQ(t.alpha_s(t.route(0, 4), AlphaSet::kIdeal), 2e-6);
  EXPECT_EQ(t.period(), 4);
  EXPECT_EQ(Topology(plain_cluster(), 4).period(), 1);    // one node looks the same from everywhere
  EXPECT_EQ(Topology(plain_cluster(), 10).period(), 10);  // a part of a node at the end
  EXPECT_THAT(usage_error([] { Topology(plain_cluster(), 17); }), HasSubstr("nodes=5"));
}

TEST(Topology, ATaperedTreeHasOneLinkUpAndDownForEachLeaf) {
  // 2 nodes of 4 cards below a leaf, taper 4: 8 cards' 400 GB/s become 100.
  const TopologySpec tree{
      .kind = TopologyKind::kFatTree, .nodes_per_leaf = q(2), .taper = q(4), .hop_s = q(1e-7)};
  const Topology t(plain_cluster({.nodes = 8, .topology = tree}), 32);
  EXPECT_THAT(capacities_on(t, 0, 4), ElementsAre(5e10, 5e10));
  EXPECT_THAT(capacities_on(t, 0, 8), ElementsAre(5e10, 1e11, 1e11, 5e10));
  EXPECT_EQ(t.route(0, 8).links[1], t.route(5, 20).links[1]);
  EXPECT_DOUBLE_EQ(t.alpha_s(t.route(0, 8), AlphaSet::kIdeal), 2e-6 + 2e-7);
  EXPECT_EQ(t.period(), 8);
  EXPECT_EQ(t.representative(t.route(8, 16).links[1], 8), t.route(0, 8).links[1]);
}

TEST(Topology, RailsAreConnectedOnlyAboveTheirLeaves) {
  const TopologySpec rails{
      .kind = TopologyKind::kRailOptimised, .nodes_per_leaf = q(4), .taper = q(2)};
  const Topology t(plain_cluster({.nodes = 8, .topology = rails}), 32);
  EXPECT_THAT(capacities_on(t, 1, 5), ElementsAre(5e10, 5e10));              // the same rail
  EXPECT_THAT(capacities_on(t, 1, 6), ElementsAre(5e10, 1e11, 1e11, 5e10));  // another: over spines
  EXPECT_THAT(capacities_on(t, 1, 17), ElementsAre(5e10, 1e11, 1e11, 5e10));
  EXPECT_NE(t.route(1, 17).links[1], t.route(2, 18).links[1]);
}

TEST(Topology, ATorusGoesTheShorterWay) {  // 4 x 2 nodes of one GPU
  const TopologySpec torus{
      .kind = TopologyKind::kTorus, .dimensions = {4, 2}, .link_bytes_per_s = q(3e10)};
  const Topology t(plain_cluster({.nodes = 8, .gpus_per_node = 1, .topology = torus}), 8);
  EXPECT_EQ(t.route(0, 1).count, 3);
  EXPECT_EQ(t.route(0, 3).count, 3);  // one step back, around the end
  EXPECT_EQ(t.route(0, 2).count, 4);
  EXPECT_EQ(t.route(0, 6).count, 5);  // two along, one across
  EXPECT_EQ(t.route(0, 2).extra_hops, 1);
  EXPECT_EQ(t.period(), 4);
  EXPECT_EQ(t.representative(t.route(4, 5).links[1], 4), t.route(0, 1).links[1]);
  EXPECT_EQ(
      Topology(plain_cluster({.nodes = 8, .gpus_per_node = 1, .topology = torus}), 4).period(), 4);
}

TEST(Topology, GroupsOfADragonflyShareOneLink) {
  const TopologySpec fly{
      .kind = TopologyKind::kDragonfly, .nodes_per_group = q(2), .global_bytes_per_s = q(6e10)};
  const Topology t(plain_cluster({.nodes = 8, .topology = fly}), 32);
  EXPECT_THAT(capacities_on(t, 0, 4), ElementsAre(5e10, 5e10));
  EXPECT_THAT(capacities_on(t, 0, 8), ElementsAre(5e10, 6e10, 5e10));
  EXPECT_EQ(t.route(0, 8).links[1], t.route(7, 15).links[1]);
  EXPECT_NE(t.route(0, 8).links[1], t.route(8, 0).links[1]);
  EXPECT_EQ(t.period(), 32);
}

}  // namespace
}  // namespace longnet
