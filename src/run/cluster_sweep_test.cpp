#include "run/cluster_sweep.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "core/check.h"
#include "run/testing/points.h"

namespace longnet {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string kShipped = LONGNET_SOURCE_DIR "/configs/clusters/h100-ndr400.json";

TEST(ClusterSweep, TheCommandsClusterElseTheConfigs) {
  Config config;
  config.path = testing::TempDir() + "a_config.json";
  EXPECT_THAT([&] { read_cluster({}, config); },
              ThrowsMessage<UsageError>(HasSubstr("no cluster to simulate")));
  EXPECT_EQ(read_cluster({.cluster = kShipped}, config).name, "h100-ndr400");
  config.cluster.file = kShipped;
  EXPECT_EQ(read_cluster({}, config).name, "h100-ndr400");
  // Beside the config, where there is none from here.
  const ClusterSpec small = apply(load_cluster(kShipped), parse_what_if("nodes=2"));
  config.cluster.file = "beside_a_config.json";
  std::ofstream(testing::TempDir() + config.cluster.file) << cluster_to_json(small);
  EXPECT_EQ(read_cluster({}, config).num_nodes(), 2);
  config.cluster.file = "h100";
  EXPECT_EQ(read_cluster({}, config).name, "h100-ndr400");
  config.cluster.file = "beside_a_config.json";
  EXPECT_GT(read_cluster({.cluster = kShipped}, config).num_nodes(), 2);
}

TEST(ClusterSweep, AVariantForEachWhatIf) {
  const ClusterSpec cluster = load_cluster(kShipped);
  Config config;
  config.memory.limit_fraction = 0.5;
  const auto plain = read_variants({}, config, cluster);
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_TRUE(plain[0].what_if.is_plain());
  EXPECT_TRUE(plain[0].collapse);
  EXPECT_FALSE(plain[0].alpha);
  EXPECT_EQ(plain[0].memory_fraction, 0.5);
  config.cluster.what_if = {"nodes=2"};
  EXPECT_EQ(read_variants({}, config, cluster).at(0).cluster.num_nodes(), 2);
  const auto asked = read_variants(
      {.what_if = {"nodes=3", ""}, .alpha = "ideal", .no_collapse = true}, config, cluster);
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0].cluster.num_nodes(), cluster.num_nodes());
  EXPECT_EQ(asked[1].cluster.num_nodes(), 3);
  EXPECT_EQ(asked[1].what_if.text(), "nodes=3");
  EXPECT_EQ(asked[1].alpha, AlphaSet::kIdeal);
  EXPECT_FALSE(asked[1].collapse);
  EXPECT_THAT(
      [&] {
        read_variants({.what_if = {"nodes=3", "nodes=3"}}, config, cluster);
      },
      ThrowsMessage<UsageError>(HasSubstr("is there twice")));
}

TEST(ClusterSweep, TimesOverThoseOfTheUnchangedCluster) {
  UnchangedTimes times;
  const WhatIf plain, slower = parse_what_if("bandwidth=0.5");
  const auto record = [](const char* algorithm, int ranks, double seconds, const char* cluster) {
    PointRecord r = make_record(small_point(algorithm, ranks));
    r.params.cluster = cluster;
    r.timing.median_s = seconds;
    return r;
  };
  const auto ratio = [&](PointRecord r, const WhatIf& what_if) -> std::optional<double> {
    times.compare(r, what_if);
    return r.metrics.empty() ? std::nullopt : std::optional(r.metrics.at("ratio_to_unchanged"));
  };
  EXPECT_FALSE(ratio(record("ring", 4, 2, "h100"), plain));
  EXPECT_EQ(ratio(record("ring", 4, 3, "h100 bandwidth=0.5"), slower), 1.5);
  EXPECT_FALSE(ratio(record("ring", 2, 3, "h100 bandwidth=0.5"), slower));
  EXPECT_FALSE(ratio(record("usp", 4, 3, "h100 bandwidth=0.5"), slower));
  PointRecord skipped = record("ring", 4, 3, "h100 bandwidth=0.5");
  skipped.status = PointStatus::kSkippedMemory;
  EXPECT_FALSE(ratio(skipped, slower));
}

TEST(ClusterSweep, GpuHoursAreOfAllRunsOnAllRanks) {
  PointRecord r = make_record(small_point("ring", 4));
  r.timing.median_s = 0.25;
  const PointCost few = cost_on_cluster(r, {.warmup = 1, .min_samples = 3}),
                  many = cost_on_cluster(r, {.warmup = 1, .min_samples = 13});
  EXPECT_GT(few.runs, 4);
  EXPECT_EQ(few.run_s, 0.25);
  EXPECT_GT(few.other_s, 0);
  EXPECT_DOUBLE_EQ(many.seconds() - few.seconds(), 10 * 0.25);
  // A job for both points holds the ranks of the larger one all the time.
  ClusterCost all;
  EXPECT_DOUBLE_EQ(all.add(few, 4), (few.runs * 0.25 + few.other_s) * 4 / 3600);
  const double large = all.add({.runs = 10, .run_s = 9, .other_s = 10}, 8);
  EXPECT_DOUBLE_EQ(large, 100 * 8 / 3600.0);
  EXPECT_DOUBLE_EQ(all.seconds, few.seconds() + 100);
  EXPECT_DOUBLE_EQ(all.gpu_hours, few.seconds() * 4 / 3600 + large);
  EXPECT_DOUBLE_EQ(all.gpu_hours_of_one_job(), all.seconds * 8 / 3600);
}

}  // namespace
}  // namespace longnet
