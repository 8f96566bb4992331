// NCCL's ring and PAT.
#include "simulate/collective_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulate/closed_form_times.h"

namespace longnet {
namespace {

TEST(CollectiveModel, NcclsRingAtItsPublishedFigures) {  // 6.29 MB; about 400 GB/s
  const ClusterSpec c = plain_cluster({.nodes = 512, .gpus_per_node = 8});
  const auto seconds = [&](int ranks) {
    return nccl_ring_s(c, {ranks, ranks / 8, 6.29e6}, AlphaSet::kNcclLl);
  };
  const auto expect_close = [](double actual, double published) {
    EXPECT_NEAR(actual / published, 1, 0.05);  // they do not say at which bandwidth
  };
  expect_close(seconds(8), 43e-6);
  expect_close(seconds(64), 166e-6);
  expect_close(seconds(512), 0.93e-3);
  expect_close(seconds(4096), 5.3e-3);
  const ClusterSpec slow = apply(c, parse_what_if("latency=2"));
  EXPECT_GT(nccl_ring_s(slow, {4096, 512, 6.29e6}, AlphaSet::kNcclLl), 1.8 * seconds(4096));
  // Simple alone is slower there, and no latency at all leaves the bytes.
  EXPECT_GT(nccl_ring_s(c, {4096, 512, 6.29e6}, AlphaSet::kNcclSimple), 15e-3);
  EXPECT_EQ(multi_channel_ring_s(c, {1, 1, 6.29e6}, AlphaSet::kIdeal), 0);
}

TEST(CollectiveModel, AGatherCostsACallOfItsLinks) {
  ClusterSpec c = plain_cluster({.nodes = 2, .gpus_per_node = 8});
  const auto seconds = [&](int nodes) {
    return nccl_ring_s(c, {8 * nodes, nodes, 1e5}, AlphaSet::kNcclLl);
  };
  const double inside = seconds(1), over = seconds(2);
  c.intra.call_s.value = 1e-6;
  c.inter.call_s.value = 1e-5;
  EXPECT_DOUBLE_EQ(seconds(1), inside + 1e-6);
  EXPECT_DOUBLE_EQ(seconds(2), over + 1e-5);
}

// src/graph/tuning.cc: 8 + floor(log2 nodes) 14 / 3.5 + 2.8 P us, bytes at 0.75 of a card.
TEST(CollectiveModel, NcclsPatByItsTuningModel) {
  const ClusterSpec c = plain_cluster({.nodes = 4096, .gpus_per_node = 1});
  const auto seconds = [&](int ranks, AlphaSet set) {
    return nccl_pat_s(c, {ranks, ranks, 6.29e6}, set);
  };
  EXPECT_DOUBLE_EQ(seconds(64, AlphaSet::kNcclSimple),
                   8e-6 + 6 * 4e-6 + 64 * 2.8e-6 + 6.29e6 / 37.5e9);
  EXPECT_EQ(seconds(64, AlphaSet::kNcclLl), seconds(64, AlphaSet::kNcclSimple));
  EXPECT_NEAR(seconds(65, AlphaSet::kNcclLl) - seconds(64, AlphaSet::kNcclLl), 2.8e-6, 1e-15);
  EXPECT_EQ(seconds(1, AlphaSet::kNcclLl), 0);
  // 65 ranks double what they know seven times.
  EXPECT_DOUBLE_EQ(seconds(65, AlphaSet::kIdeal),
                   7 * c.inter.alpha_s.of(AlphaSet::kIdeal) + 6.29e6 * 64 / 65 / 50e9);
  // At 4096 nodes the ring's exposed network steps cost more.
  EXPECT_GT(nccl_ring_s(c, {4096, 4096, 6.29e6}, AlphaSet::kNcclLl),
            1.5 * seconds(4096, AlphaSet::kNcclLl));
}

TEST(CollectiveModel,
     LlMovesNoMoreThanItsCapInOneNode) {  // 1 MB on 8 GPUs: 6.6 + 7 x 0.6 us, bytes
  ClusterSpec c = plain_cluster({.nodes = 1, .gpus_per_node = 8});
  for (const double most : {141e9, 87.7e9}) {
    c.intra.ll_bytes_per_s.value = most;
    EXPECT_NEAR(nccl_ring_s(c, {8, 1, 1e6}, AlphaSet::kNcclLl), 10.8e-6 + 0.875e6 / most, 1e-12);
  }
}

// perChMaxRingLL128Bws a channel, of which a ring has one a card; 0.7 where a node has one rank.
TEST(CollectiveModel, Ll128MovesNoMoreThanItsCapOverACard) {
  ClusterSpec c = plain_cluster({.nodes = 2, .gpus_per_node = 8});
  const auto seconds = [&](int ranks) {
    return nccl_ring_s(c, {ranks, 2, 16e6}, AlphaSet::kNcclLl);
  };
  const double latency = 14e-6 + 14 * 1.9e-6 + 4e-6, moved = 16e6 * 15 / 16;
  EXPECT_NEAR(seconds(16), latency + moved / (0.92 * 4e11), 1e-12);
  c.inter.ll128_bytes_per_s.value = 36.7e9;
  EXPECT_NEAR(seconds(16), latency + moved / (8 * 36.7e9), 1e-12);
  c.inter.ll128_bytes_per_s.value = 49e9;  // more than 0.92 of a card
  EXPECT_NEAR(seconds(16), latency + moved / (0.92 * 4e11), 1e-12);
  // One rank a node: 14 + 3 x 8.5 us, three quarters of the bytes at 0.7 of a card.
  EXPECT_NEAR(nccl_ring_s(c, {4, 4, 1.5e6}, AlphaSet::kNcclLl), 39.5e-6 + 1.125e6 / 35e9, 1e-12);
}

TEST(CollectiveModel, PatNeedsANodeForEachRank) {
  const ClusterSpec c = plain_cluster({.nodes = 8, .gpus_per_node = 8});
  EXPECT_NE(why_not_formula(c, "nccl_pat").find("one GPU per node"), std::string::npos);
  EXPECT_EQ(why_not_formula(c, "nccl_ring"), "");
  EXPECT_EQ(why_not_formula(apply(c, parse_what_if("gpus_per_node=1")), "nccl_pat"), "");
  EXPECT_ANY_THROW(nccl_pat_s(c, {64, 8, 1e6}, AlphaSet::kNcclSimple));
}

TEST(CollectiveModel, OneCardPerNodeIsTheLimitOfARingOverNodes) {
  const ClusterSpec c = plain_cluster({.nodes = 4, .gpus_per_node = 4});
  EXPECT_EQ(ring_bandwidth(c, {4, 1, 0}), 4e11);  // a port
  EXPECT_EQ(ring_bandwidth(c, {8, 2, 0}), 2e11);  // four cards
  EXPECT_EQ(ring_bandwidth(c, {4, 4, 0}), 5e10);  // one rank a node: one card
}

}  // namespace
}  // namespace longnet
