#include "run/simulate_point.h"

#include <gmock/gmock.h>

#include "run/plan_point.h"
#include "run/testing/points.h"

namespace longnet {
namespace {

SimulatePoint on_h100() {
  return {.cluster = load_cluster(LONGNET_SOURCE_DIR "/configs/clusters/h100-ndr400.json")};
}

Point cluster_point(const std::string& algorithm, int ranks) {
  Point point = small_point(algorithm, ranks, 8192);
  point.params.problem.dtype = DType::kBFloat16;
  point.params.problem.head_dim = 64;
  return point;
}

TEST(SimulatePoint, ARecordHasWhatWasPredicted) {
  const SimulatePoint how = on_h100();
  const Point point = on_cluster({cluster_point("ring", 4)}, how).at(0);
  EXPECT_EQ(point.params.kernel, "modelled");
  const SimulatedPoint done = simulate_point(point, how);
  const PointRecord& r = done.record;
  EXPECT_EQ(r.status, PointStatus::kOk) << r.reason;
  EXPECT_EQ(r.source, Source::kSimulated);
  EXPECT_EQ(r.comm.predicted_messages_per_rank, 3);
  EXPECT_EQ(r.comm.predicted_bytes_per_rank, 3 * 2 * 2 * 2048 * 4 * 64 * 2);
  EXPECT_EQ(r.work.tokens, 2 * 8192);
  EXPECT_EQ(r.work.flops, 4.0 * 64 * 2 * 4 * 8192 * 8192);
  EXPECT_EQ(r.work.balance, 1);
  EXPECT_EQ(r.work.coverage, std::vector<double>{1});
  EXPECT_GT(r.work.share_of_peak, 0);
  EXPECT_EQ(r.per_rank.size(), 4u);
  EXPECT_LE(r.timing.ci_low_s, r.timing.median_s);
  EXPECT_GE(r.timing.ci_high_s, r.timing.median_s);
  EXPECT_NEAR(r.phases.compute_s + r.phases.merge_s + r.phases.exposed_communication_s,
              r.timing.median_s, 1e-12);
  EXPECT_FALSE(r.timeline.empty());
  EXPECT_THAT(chrome_trace(done.run, "ring"), testing::HasSubstr("traceEvents"));
}

Point model_point(const std::string& algorithm, int ranks) {
  Point point = cluster_point(algorithm, ranks);
  point.params.scope = Scope::kModel, point.params.pass = Pass::kStep;
  point.params.model = {.layers = 3, .ffn_width = 1024, .vocabulary = 512};
  return point;
}

TEST(SimulatePoint, AModelsStepIsTheSumOfItsParts) {
  const SimulatePoint how = on_h100();
  const PointRecord one =
      simulate_point(on_cluster({model_point("local", 1)}, how).at(0), how).record;
  EXPECT_EQ(one.status, PointStatus::kOk) << one.reason;
  const auto& m = one.metrics;
  EXPECT_GT(m.at("gemm_s"), 0);
  EXPECT_NEAR(one.phases.compute_s, one.timing.median_s, 1e-12);  // no messages
  EXPECT_LT(m.at("gemm_s") + m.at("row_wise_s") + m.at("update_s"), one.phases.compute_s);
  // Products: 6 FLOP per weight and token; those of a layer but fc2, once more. Attention: forward
  // and backward.
  const double d = 4 * 64, tokens = 2 * 8192, layer = 4 * d * d + 2 * d * 1024;
  EXPECT_DOUBLE_EQ(one.work.flops,
                   tokens * (6 * (3 * layer + 512 * d) + 2 * 3 * (d * d + d * 1024)) +
                       3 * 3.5 * 4.0 * 64 * 2 * 4 * 8192 * 8192);
  // On more ranks: less memory, the same work, and messages.
  const PointRecord four =
      simulate_point(on_cluster({model_point("ring", 4)}, how).at(0), how).record;
  EXPECT_DOUBLE_EQ(four.work.flops, one.work.flops);
  EXPECT_LT(*four.memory.predicted_peak_bytes, *one.memory.predicted_peak_bytes);
  EXPECT_GT(four.comm.predicted_bytes_per_rank, 3 * 2 * 3 * 2 * 2 * 2048 * 4 * 64 * 2);
}

TEST(SimulatePoint, ReplicasOfAModelExchangeGradients) {
  const SimulatePoint how = on_h100();
  const PointRecord one =
      simulate_point(on_cluster({model_point("local", 1)}, how).at(0), how).record;
  for (const char* algorithm : {"ring", "dilated"})
    for (const char* collective : {"native", "ring", "recursive_doubling"}) {
      Point point = model_point(algorithm, 8);
      point.params.replicas = 2, point.params.collective = collective;
      point = on_cluster({point}, how).at(0);
      const SimulatedPoint done = simulate_point(point, how);
      const PointRecord& r = done.record;
      EXPECT_EQ(r.status, PointStatus::kOk) << r.reason;
      if (std::string(algorithm) == "ring") {
        EXPECT_NEAR(r.work.flops / one.work.flops, 1, 1e-12);
      }
      // Ranks that do the same as others have their times.
      const ProgramSet all = compile(unlowered_schedule(point.params), {8, 8}, how.cluster,
                                     plan_collectives(how.cluster, collective, 8));
      const Topology topology(how.cluster, 8);
      EXPECT_DOUBLE_EQ(
          simulate(all, topology, how.cluster, {.alpha = AlphaSet::kNcclLl}).makespan_s,
          done.run.makespan_s)
          << algorithm << " " << collective;
      // A step beside a pass without an update: gradients are summed and gathered over all ranks.
      point.params.pass = Pass::kForwardBackward;
      const PointRecord without = simulate_point(point, how).record;
      const double weights =
          3 * (4 * 256 * 256 + 2 * 256 * 1024 + 9 * 256 + 3 * 1024 + 2 * 256) + 514 * 256;
      EXPECT_NEAR(double(*r.comm.predicted_bytes_per_rank - *without.comm.predicted_bytes_per_rank),
                  2 * 7.0 / 8 * 4 * weights, 0.01 * weights)
          << algorithm << " " << collective;
    }
  Point layer = model_point("ring", 8);
  layer.params.scope = Scope::kLayer, layer.params.pass = Pass::kForwardBackward;
  layer.params.replicas = 2;
  const PointRecord alone = simulate_point(on_cluster({layer}, how).at(0), how).record;
  EXPECT_EQ(alone.status, PointStatus::kOk) << alone.reason;
  EXPECT_GT(alone.metrics.at("gemm_s"), 0);
  EXPECT_LT(3 * alone.timing.median_s, 1.2 * one.timing.median_s);
}

TEST(SimulatePoint, RanksThatSplitHeadsAreMerged) {
  const SimulatePoint how = on_h100();
  const PointRecord one =
      simulate_point(on_cluster({model_point("local", 1)}, how).at(0), how).record;
  for (const int replicas : {1, 2})
    for (const char* algorithm : {"ring", "dilated"}) {
      Point point = model_point(algorithm, 16);
      point.params.replicas = replicas, point.params.head_groups = 2;
      if (std::string(algorithm) == "dilated")
        point.params.problem.num_heads = point.params.problem.num_kv_heads = 8;
      point = on_cluster({point}, how).at(0);
      const SimulatedPoint done = simulate_point(point, how);
      EXPECT_EQ(done.record.status, PointStatus::kOk) << done.record.reason;
      const ProgramSet all = compile(unlowered_schedule(point.params), {16, 16}, how.cluster,
                                     plan_collectives(how.cluster, "native", 16));
      const Topology topology(how.cluster, 16);
      // The last rank's part of the weights ends with a matrix more to update: a launch.
      EXPECT_NEAR(simulate(all, topology, how.cluster, {.alpha = AlphaSet::kNcclLl}).makespan_s,
                  done.run.makespan_s, how.cluster.device.launch_s.value)
          << algorithm << " " << replicas;
      if (std::string(algorithm) == "dilated") continue;
      // All but the logits, which both ranks with the same tokens compute.
      EXPECT_GE(done.record.work.flops / one.work.flops, 1);
      EXPECT_LT(done.record.work.flops / one.work.flops, 1.2);
    }
}

// K and V move around the ring, weights and their gradients by doubling: neither a shift nor an
// exclusive or alone moves both.
TEST(SimulatePoint, RanksOfAStepAreMergedWhereItsCollectivesDouble) {
  SimulatePoint how = on_h100();
  for (const char* algorithm : {"ring", "usp"}) {
    Point point = model_point(algorithm, 64);
    point.params.layout = LayoutKind::kZigzag, point.params.problem.causal = true;
    point.params.collective = "recursive_doubling";
    point = on_cluster({point}, how).at(0);
    const SimulatedPoint few = simulate_point(point, how);
    how.collapse = false;
    const SimulatedPoint all = simulate_point(point, how);
    how.collapse = true;
    EXPECT_EQ(few.record.status, PointStatus::kOk) << few.record.reason;
    EXPECT_EQ(few.run.ranks.size(), 8u) << algorithm;
    EXPECT_EQ(all.run.ranks.size(), 64u);
    EXPECT_DOUBLE_EQ(few.run.makespan_s, all.run.makespan_s) << algorithm;
    for (size_t p = 0; p < 64; ++p)
      EXPECT_DOUBLE_EQ(all.run.ranks[p].finish_s, few.run.ranks[p % 8].finish_s);
  }
}

TEST(SimulatePoint, PassesAndScopesThatHaveNoProgramSaySo) {
  const SimulatePoint how = on_h100();
  Point point = model_point("ring", 4);
  point.params.pass = Pass::kBackward;
  EXPECT_THAT(on_cluster({point}, how).at(0).reason, testing::HasSubstr("forward_backward"));
  point.params.pass = Pass::kStep, point.params.scope = Scope::kAttention;
  EXPECT_THAT(on_cluster({point}, how).at(0).reason, testing::HasSubstr("sweep.scope model"));
}

TEST(SimulatePoint, WhatTheClusterCannotDoIsSkipped) {
  SimulatePoint how = on_h100();
  const int gpus = how.cluster.num_gpus();
  const auto points = on_cluster({cluster_point("ring", 2 * gpus), cluster_point("ring", 4)}, how);
  EXPECT_EQ(points[0].status, PointStatus::kSkippedUnsupported);
  EXPECT_EQ(on_cluster({points[1], points[1]}, how).size(), 1u);
  how.memory_fraction = 1e-6;
  const PointRecord full = simulate_point(points[1], how).record;
  EXPECT_EQ(full.status, PointStatus::kSkippedMemory);
  EXPECT_THAT(full.reason, testing::HasSubstr("are allowed on"));
  how.memory_fraction = 1;
  const PointRecord fits = simulate_point(points[1], how).record;
  EXPECT_GT(full.memory.predicted_peak_bytes, 0);
  EXPECT_EQ(full.memory.predicted_peak_bytes, fits.memory.predicted_peak_bytes);
}

// 2^30 tokens on more ranks than anyone has, and 2^24 GPUs for them.
std::pair<SimulatePoint, Point> on_very_many(const std::string& algorithm, int ranks) {
  SimulatePoint how = on_h100();
  how.cluster = apply(how.cluster, parse_what_if("nodes=2097152"));
  Point point = cluster_point(algorithm, ranks);
  point.params.problem.seq_len = int64_t{1} << 30;
  return {how, point};
}

TEST(SimulatePoint, AProgramThatIsRefusedIsAPointThatIsSkipped) {
  auto [how, point] = on_very_many("ring", 1 << 24);
  const PointRecord r = simulate_point(on_cluster({point}, how).at(0), how).record;
  EXPECT_EQ(r.status, PointStatus::kSkippedUnsupported);
  EXPECT_THAT(r.reason, testing::HasSubstr("use fewer ranks"));
  // Where a collective has a name, its program is made before.
  point.params.collective = "recursive_doubling";
  const std::vector<Point> points = on_cluster({point, cluster_point("ring", 8)}, how);
  EXPECT_EQ(points.at(0).status, PointStatus::kSkippedUnsupported);
  EXPECT_THAT(points.at(0).reason, testing::HasSubstr("use fewer ranks"));
  EXPECT_EQ(points.at(1).status, PointStatus::kOk);
}

TEST(SimulatePoint, ARunThatTakesTooLongIsAPointThatIsSkipped) {
  SimulatePoint how = on_h100();
  how.collapse = false, how.most_cpu_s = 0;
  Point point = cluster_point("ulysses", 64);
  point.params.problem.num_heads = point.params.problem.num_kv_heads = 64;
  const PointRecord r = simulate_point(on_cluster({point}, how).at(0), how).record;
  EXPECT_EQ(r.status, PointStatus::kSkippedUnsupported);
  EXPECT_THAT(r.reason, testing::HasSubstr("takes more than 0 s to simulate: 64 ranks"));
  EXPECT_EQ(r.params.algorithm, "ulysses");
}

TEST(SimulatePoint, MoreLinksThanMemoryHoldsAreAPointThatIsSkipped) {
  const auto [how, point] = on_very_many("dilated", 1 << 23);
  const PointRecord r = simulate_point(on_cluster({point}, how).at(0), how).record;
  EXPECT_EQ(r.status, PointStatus::kSkippedUnsupported);
  EXPECT_THAT(r.reason, testing::HasSubstr("fewer ports_per_node"));
}

TEST(SimulatePoint, WhatIfChangesTheNameAndTheTime) {
  SimulatePoint how = on_h100();
  const Point plain = on_cluster({cluster_point("all_gather", 16)}, how).at(0);
  const double base = simulate_point(plain, how).record.timing.median_s;
  how.what_if = parse_what_if("bandwidth=0.01");
  how.cluster = apply(how.cluster, how.what_if);
  const Point slow = on_cluster({cluster_point("all_gather", 16)}, how).at(0);
  EXPECT_NE(slow.id, plain.id);
  EXPECT_THAT(slow.params.cluster, testing::EndsWith("bandwidth=0.01"));
  const PointRecord r = simulate_point(slow, how).record;
  EXPECT_GT(r.timing.median_s, base);
  EXPECT_EQ(r.metrics.at("what_if_bandwidth"), 0.01);
}

}  // namespace
}  // namespace longnet
