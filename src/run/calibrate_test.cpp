// What calibrate makes of measurements, and that each of them runs.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "run/calibrate_gpu.h"
#include "run/calibrate_kernel.h"
#include "run/calibrate_links.h"
#include "run/machine.h"
#include "run/world.h"

namespace longnet {
namespace {

constexpr Effort kOnce{.seconds = 0.001, .min_runs = 1, .max_runs = 2};

TEST(Calibrate, WhatOfTheMessagesHidesBehindCompute) {
  OverlapMeasurement m{.ranks = 4, .message_bytes = 1000};
  m.compute_s = 10, m.compute_in_full_s = 12, m.communication_s = 4, m.full_s = 13;
  EXPECT_EQ(m.hidden_s(), 3);
  // Two ways, three messages, three quarters of them hidden, during three of four attends.
  EXPECT_DOUBLE_EQ(m.bytes_per_s_without_progress(), 2 * 3 * 1000 * 0.75 / (12 * 0.75));
  EXPECT_DOUBLE_EQ(m.efficiency(), 10.0 / 12);
  m.communication_s = 0.4;  // lost in the noise
  EXPECT_TRUE(m.too_short());
  EXPECT_EQ(m.efficiency(), 1);
  EXPECT_EQ(m.bytes_per_s_without_progress(), 0);
}

TEST(Calibrate, LinksAndKernelsAreMeasured) {
  run_on_threads(2, [&](Communicator& comm) {
    const LinkMeasurement link =
        measure_link(comm, 0, 1, {.effort = kOnce, .largest_message_s = 1, .max_bytes = 16 << 10});
    ASSERT_EQ(link.exchange.size(), 3u);  // 1, 4 and 16 KiB
    EXPECT_EQ(link.exchange.back().bytes, 16 << 10);
    for (const MessageTime& t : link.one_way) EXPECT_GT(t.seconds, 0);
    EXPECT_GE(link.overhead_s, 0);
    const OverlapMeasurement overlap = measure_overlap(comm, 1, 64, kOnce);
    EXPECT_EQ(overlap.seq_len, 128);
    EXPECT_EQ(overlap.message_bytes, 2.0 * 64 * 4 * 64 * 4);
    EXPECT_GT(overlap.full_s, 0);
    EXPECT_GT(measure_one_attend(comm, 1, {.effort = kOnce, .quick = true}), 0);
  });
}

TEST(Calibrate, AWorldOfThreadsKnowsItsRanks) {
  World world(3);
  EXPECT_TRUE(world.is_root());
  EXPECT_EQ(world.size(), 3);
  EXPECT_EQ(world.transport(), "threads");
  EXPECT_EQ(world.ranks_on_this_machine(), 3);
  std::atomic<int> ran = 0;
  world.run(2, [&](Communicator& comm) { ran += 1 + comm.rank(); });
  EXPECT_EQ(ran, 3);
  EXPECT_THROW(world.run(4, [](Communicator&) {}), Error);
  const auto ranks = describe_ranks(world, 5, false);
  ASSERT_EQ(ranks.size(), 3u);
  EXPECT_EQ(ranks[2].rank, 2);
  EXPECT_EQ(ranks[2].cores, 5);
  EXPECT_EQ(ranks[2].device, "");
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              concat("calibrate_test_", std::to_string(::getpid()), ".json")) {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

ClusterSpec h100() { return load_cluster(LONGNET_SOURCE_DIR "/configs/clusters/h100-ndr400.json"); }

TEST(Calibrate, MeasuredAttentionReplacesPublishedRows) {
  const TemporaryFile file(R"({"program": "gpu_kernels_benchmark", "device": {"name": "GPU X"},
    "points": [{"section": "sweep", "kernel": "cuda", "rows": 4096, "head_dim": 64,
                "causal": false, "flops_per_s": 5e14},
               {"section": "sweep", "kernel": "cuda", "default": false, "rows": 1, "head_dim": 64,
                "flops_per_s": 1},
               {"section": "other", "kernel": "cuda", "rows": 1, "head_dim": 64,
                "flops_per_s": 1}]})");
  const ClusterSpec now = with_measured_attention(h100(), file.path(), "cuda");
  int rows = 0;
  for (const KernelRow& row : now.device.attend)
    if (row.dtype == DType::kBFloat16 && row.head_dim == 64 && !row.causal) {
      EXPECT_EQ(row.flops_per_s, 5e14);
      EXPECT_EQ(row.rows, 4096);
      ++rows;
    }
  EXPECT_EQ(rows, 1);
  EXPECT_NE(now.description.find("GPU X"), std::string::npos);
  EXPECT_THROW(with_measured_attention(h100(), file.path(), "cudnn"), UsageError);
  EXPECT_THROW(with_measured_link(h100(), file.path()), UsageError);
}

TEST(Calibrate, AMeasuredLinkIsThatOfItsHosts) {
  const auto text = [](const std::string& host, const std::string& gpu) {
    return R"({"program": "lnbench comm", "transport": "nccl", "places": [
      {"hostname": "a", "device": "0: X", "gpu": "g0"},
      {"hostname": ")" +
           host + R"(", "device": "0: X", "gpu": ")" + gpu + R"("}], "rows": [
      {"operation": "exchange", "bytes": 1000, "median_s": 11e-6},
      {"operation": "exchange", "bytes": 1000000, "median_s": 1010e-6}]})";
  };
  const TemporaryFile inside(text("a", "g1"));
  EXPECT_NEAR(with_measured_link(h100(), inside.path()).intra.bandwidth_bytes_per_s.value, 1e9,
              1e6);
  const TemporaryFile between(text("b", "g1"));
  const ClusterSpec now = with_measured_link(h100(), between.path());
  EXPECT_NEAR(now.inter.alpha_s.seconds[1], 10e-6, 1e-8);
  EXPECT_EQ(now.intra.bandwidth_bytes_per_s.value, h100().intra.bandwidth_bytes_per_s.value);
  const TemporaryFile one_gpu(text("a", "g0"));
  EXPECT_THROW(with_measured_link(h100(), one_gpu.path()), UsageError);
}

}  // namespace
}  // namespace longnet
