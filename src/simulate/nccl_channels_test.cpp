#include "simulate/nccl_channels.h"

#include <gtest/gtest.h>

#include "simulate/closed_form_times.h"
#include "simulate/engine.h"

namespace longnet {
namespace {

constexpr double kMiB = 1 << 20;

ClusterSpec cluster_of(int most_in_a_node) {  // 64 nodes of 8
  ClusterSpec c = plain_cluster({.nodes = 64, .gpus_per_node = 8});
  c.intra.channels = {double(most_in_a_node), "test"};
  c.intra.channel_bytes_per_s = {2e10, "test"};
  c.inter.channel_bytes_per_s = {1e10, "test"};
  return c;
}

// A B200's 32, of which 8 ranks have 4 up to 64 MiB (measured: docs/simulator-accuracy.md).
TEST(NcclChannels, InANodeGrowWithTheTensor) {
  const ClusterSpec c = cluster_of(32);
  const auto count = [&](int ranks, double mib) {
    return nccl_channels(c, {ranks}, 0, 1, mib * kMiB).count;
  };
  EXPECT_EQ(count(8, 1), 4);
  EXPECT_EQ(count(8, 64), 4);
  EXPECT_EQ(count(8, 65), 8);
  EXPECT_EQ(count(8, 512), 32);
  EXPECT_EQ(count(8, 1e5), 32);
  EXPECT_EQ(count(2, 1), 16);
  EXPECT_EQ(count(5, 1), 4);  // as 8
  EXPECT_DOUBLE_EQ(nccl_channels(c, {8}, 0, 1, kMiB).bytes_per_s, 8e10);
  const ClusterSpec few = cluster_of(4);
  EXPECT_EQ(nccl_channels(few, {8}, 0, 1, kMiB).count, 1);
  EXPECT_EQ(nccl_channels(cluster_of(0), {8}, 0, 1, kMiB).bytes_per_s, 0);
}

// NCCL up to 2.28 and from 2.29: the largest numbers of ranks whose pairs have so many channels.
TEST(NcclChannels, OverNodesAreFewerAmongMoreRanks) {
  ClusterSpec c = cluster_of(32);
  const auto count = [&](int ranks) { return nccl_channels(c, {ranks}, 7, 8, kMiB).count; };
  EXPECT_EQ(count(32), 2);
  EXPECT_EQ(count(33), 1);
  EXPECT_EQ(count(256), 1);
  c.inter.channels = {4, "test"};
  EXPECT_EQ(count(32), 4);
  EXPECT_EQ(count(33), 2);
  EXPECT_EQ(count(64), 2);
  EXPECT_EQ(count(65), 1);
  EXPECT_EQ(count(256), 1);
  EXPECT_DOUBLE_EQ(nccl_channels(c, {32}, 7, 8, kMiB).bytes_per_s, 4e10);
  EXPECT_DOUBLE_EQ(nccl_channels(c, {32}, 0, 1, kMiB).bytes_per_s, 8e10);  // inside a node
}

// A double ring of 32: rings of 8 inside nodes, rings of 4 across them.
TEST(NcclChannels, InnerGroupsHaveCommunicatorsOfTheirOwn) {
  const ClusterSpec c = cluster_of(32);
  const auto count = [&](const Communicators& all, Rank to) {
    return nccl_channels(c, all, 0, to, kMiB).count;
  };
  EXPECT_EQ(count({32, 8}, 1), 4);
  EXPECT_EQ(count({32, 4}, 1), 8);
  EXPECT_EQ(count({32, 8}, 8), 2);
  EXPECT_EQ(count({32, 16}, 1), 2);  // over two nodes
  EXPECT_EQ(count({256, 8}, 8), 2);  // 32 ranks across
  EXPECT_EQ(count({512, 8}, 8), 1);
  EXPECT_EQ(count({8, 4}, 4), 16);  // two ranks across
}

TEST(NcclChannels, SoDoReplicasAndHeadGroups) {
  const ClusterSpec c = cluster_of(32);
  const auto count = [&](const Communicators& all, Rank to) {
    return nccl_channels(c, all, 0, to, kMiB).count;
  };
  const Communicators replicas{.ranks = 64, .replicas = 8};  // a node each
  EXPECT_EQ(count(replicas, 1), 4);
  EXPECT_EQ(count(replicas, 8), 1);  // gradients of weights, among 64
  const Communicators heads{.ranks = 64, .inner_group = 4, .replicas = 2, .head_groups = 2};
  EXPECT_EQ(count(heads, 1), 16);  // two ranks of the same tokens
  EXPECT_EQ(count(heads, 2), 8);   // four of an inner group, in a node
  EXPECT_EQ(count(heads, 8), 2);   // four across, in four nodes
  EXPECT_EQ(count(heads, 32), 2);  // 32 of the same heads
}

TEST(NcclChannels, LargeTensorsGoBySimple) {
  const ClusterSpec c = cluster_of(32);
  const auto simple = [&](int ranks, Rank to, double bytes) {
    return nccl_channels(c, {ranks}, 0, to, bytes).by_simple;
  };
  EXPECT_FALSE(simple(8, 1, 32 * 16384));
  EXPECT_TRUE(simple(8, 1, 32 * 16384 + 1));
  EXPECT_FALSE(simple(16, 8, 2 * 16384));
  EXPECT_TRUE(simple(16, 8, 2 * 16384 + 1));
  EXPECT_TRUE(simple(64, 8, 16385));
}

// A message of 128 MiB from rank 0 to its neighbour in a node of 8.
TEST(NcclChannels, LimitMessagesOfTheEngine) {
  ClusterSpec c = cluster_of(32);
  c.intra.alpha_s.seconds = {1e-6, 2e-6, 3e-6};
  const auto seconds = [&](int tensors) {
    std::vector<LooseProgram> p{size_t{8}};
    p[0].add(OpKind::kSend, 1, 128 * kMiB);
    p[0].ops.back().tensors = tensors;
    p[1].add(OpKind::kRecv, 0, 128 * kMiB);
    const ProgramSet set = pack_all(p, c.execution);
    return simulate(set, Topology(c, 8), c, {.alpha = AlphaSet::kNcclLl}).makespan_s;
  };
  EXPECT_DOUBLE_EQ(seconds(1), 3e-6 + 128 * kMiB / 16e10);    // 8 channels, by Simple
  EXPECT_DOUBLE_EQ(seconds(2), 3e-6 + 128 * kMiB / 8e10);     // 4 for K and V, one after the other
  EXPECT_DOUBLE_EQ(seconds(1024), 2e-6 + 128 * kMiB / 8e10);  // by LL
}

}  // namespace
}  // namespace longnet
