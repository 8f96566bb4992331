// Tests that calibrate turns measurements into the right cluster, and that each measurement runs.
#include "run/calibrate.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "run/testing/points.h"
#include "run/world.h"
#include "simulate/cost_model.h"

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
    const LinkMeasurement link = measure_link(
        comm, 0, 1, {.link = kOnce, .largest_message_s = 1, .max_message_bytes = 16 << 10});
    ASSERT_EQ(link.exchange.size(), 3u);  // 1, 4 and 16 KiB
    EXPECT_EQ(link.exchange.back().bytes, 16 << 10);
    for (const MessageTime& t : link.one_way) EXPECT_GT(t.seconds, 0);
    EXPECT_GE(link.overhead_s, 0);
    const OverlapMeasurement overlap =
        measure_overlap(comm, 1, {.overlap = kOnce, .overlap_rows = 64});
    EXPECT_EQ(overlap.seq_len, 128);
    EXPECT_EQ(overlap.message_bytes, 2.0 * 64 * 4 * 64 * 4);
    EXPECT_GT(overlap.full_s, 0);
    EXPECT_GT(measure_one_attend(comm, 1, {.quick = true, .kernel = kOnce}), 0);
  });
}

TEST(Calibrate, EveryOpOfAStepIsTimed) {
  run_on_threads(2, [&](Communicator& comm) {
    const ModelMeasurement m = measure_model(comm, 1, {.quick = true, .model = kOnce});
    // Two widths, one of them in head groups as well; two layers of 6 products forward, of which 2
    // are done again, and 12 backward; 3 of the loss.
    EXPECT_EQ(m.gemms.size(), 3u * (2 * (6 + 2 + 12) + 3));
    for (const GemmTime& t : m.gemms) EXPECT_GT(t.seconds, 0);
    EXPECT_EQ(m.row_wise.size(), enum_values<RowFunction>().size());
    for (const auto& [function, moved] : m.row_wise) EXPECT_GT(moved.seconds, 0);
    EXPECT_GT(m.cross_entropy.per_s(), 0);
    EXPECT_GT(m.update.per_s(), 0);
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

TEST(Calibrate, RanksTellEachOtherTheirPlaces) {
  run_on_threads(3, [](Communicator& comm) {
    const RankPlace mine{"machine", concat("clock ", comm.rank()), {comm.rank(), 7}};
    const auto all = gather(comm, mine);
    ASSERT_EQ(all.size(), 3u);
    EXPECT_EQ(all[2].machine, "machine");
    EXPECT_EQ(all[2].clock, "clock 2");
    EXPECT_EQ(all[2].cpus, (std::set<int>{2, 7}));
    EXPECT_EQ(gather(comm, std::vector<double>{0.1 * comm.rank()})[1], std::vector<double>{0.1});
  });
}

TEST(Calibrate, AClusterIsWhatWasMeasured) {
  Calibration c{.nodes = 1,
                .ranks_per_node = 2,
                .threads = 3,
                .peak = 1e11,
                .bandwidth = 2e10,
                .alone_speed = 1.5};
  c.kernel.launch_s = 1e-6;
  c.kernel.pack_bytes_per_s = 1e9, c.kernel.merge_bytes_per_s = 2e9;
  c.kernel.sum_bytes_per_s = 3e9, c.kernel.delta_bytes_per_s = 4e9;
  AttendMeasurement& attends = c.kernel.attends.emplace_back();
  for (const double n : {16, 64, 256, 512, 1024})  // a microsecond a block, a nanosecond a pair
    attends.times.push_back(
        {{.blocks = 1, .queries = n, .key_rows = n, .pairs = n * n}, 1e-6 + 1e-9 * n * n});
  c.model.gemms = {{1e9, 1e6, 0.01 + 1e-4}, {2e9, 1e6, 0.02 + 1e-4}};
  c.model.row_wise[RowFunction::kGelu] = {3e9, 0.5};
  c.model.cross_entropy = {2e9, 1}, c.model.update = {1e9, 1};
  attends.rows.push_back({.rows = 512, .head_dim = 64, .flops_per_s = 1e10});
  c.kernel.attends.push_back(attends);
  AttendMeasurement& backward = c.kernel.attends.back();
  backward.backward = backward.rows[0].backward = true;
  c.intra.overhead_s = 1e-6;
  for (const double bytes : {1e3, 1e4, 1e5, 1e6}) {
    c.intra.one_way.push_back({bytes, 5e-6 + bytes / 4e9});
    c.intra.exchange.push_back({bytes, 12e-6 + bytes / 3e9});
  }
  c.overlap = {.seq_len = 4096, .ranks = 2, .message_bytes = 1e6};
  c.overlap.compute_s = c.overlap.compute_in_full_s = 1;
  c.overlap.communication_s = 0.5, c.overlap.full_s = 1.25;
  const World world(2);
  const ClusterSpec spec = to_cluster(c, world, capture_environment(), "here");
  EXPECT_EQ(spec.num_gpus(), 2);
  EXPECT_EQ(spec.device.peak_flops.at(DType::kFloat32).value, 1e11);
  EXPECT_EQ(spec.device.alone_speed.value, 1.5);
  ASSERT_EQ(spec.device.attend_model.size(), 2u);
  EXPECT_EQ(spec.device.sum_bytes_per_s.value, 3e9);
  EXPECT_EQ(spec.device.delta_bytes_per_s.value, 4e9);
  EXPECT_NEAR(spec.device.gemm_flops.at(DType::kFloat32).value, 1e11, 1e3);
  EXPECT_NEAR(spec.device.gemm_bytes_per_s.value, 1e10, 1e2);
  EXPECT_EQ(spec.device.cross_entropy_bytes_per_s.value, 2e9);
  EXPECT_EQ(spec.device.update_bytes_per_s.value, 1e9);
  EXPECT_TRUE(spec.device.attend_model[1].backward && spec.device.attend[1].backward);
  EXPECT_EQ(spec.device.attend_model[1].block_rows, kBackwardBlockRows);
  EXPECT_NEAR(spec.device.attend_model[0].pair_s, 1e-9, 1e-12);
  EXPECT_NEAR(spec.device.attend_model[0].block_s, 1e-6, 1e-9);
  EXPECT_NEAR(spec.intra.bandwidth_bytes_per_s.value, 4e9, 1e6);
  EXPECT_NEAR(spec.intra.shared_bytes_per_s.value, 6e9, 1e6);  // both directions together
  EXPECT_NEAR(spec.intra.alpha_s.seconds[0], 10e-6, 1e-9);     // less the overhead of two posts
  EXPECT_EQ(spec.overlap_efficiency.value, 1);
  EXPECT_DOUBLE_EQ(spec.async_bytes_per_s.value, 2 * 1e6 * 0.5 / 0.5);
  EXPECT_FALSE(spec.async_progress);
  // The written cluster can be read.
  const ClusterSpec read = parse_cluster(cluster_to_json(spec), "here.json");
  EXPECT_EQ(read.device.launch_s.value, 1e-6);
  EXPECT_TRUE(read.device.attend_model[1].backward);
  ASSERT_EQ(read.device.row_wise_bytes_per_s.size(), 1u);
  EXPECT_EQ(read.device.row_wise_bytes_per_s.at(RowFunction::kGelu).value, 6e9);
  EXPECT_EQ(read.device.gemm_bytes_per_s.value, spec.device.gemm_bytes_per_s.value);
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
               {"section": "backward", "kernel": "cuda", "rows": 2048, "head_dim": 64,
                "dilation_rate": 1, "flops_per_s": 3e14},
               {"section": "backward", "kernel": "cuda", "rows": 2048, "head_dim": 64,
                "dilation_rate": 4, "flops_per_s": 1},
               {"section": "other", "kernel": "cuda", "rows": 1, "head_dim": 64,
                "flops_per_s": 1}]})");
  const ClusterSpec now = with_measured_kernels(h100(), file.path(), "cuda");
  int rows = 0;
  for (const KernelRow& row : now.device.attend)
    if (row.kernel == now.device.kernel && row.head_dim == 64 && !row.causal) {
      EXPECT_EQ(row.flops_per_s, row.backward ? 3e14 : 5e14);
      EXPECT_EQ(row.rows, row.backward ? 2048 : 4096);
      ++rows;
    }
  EXPECT_EQ(rows, 2);
  EXPECT_EQ(now.device.kernel, "cuda");
  EXPECT_EQ(now.device.backward_splits.at("cuda").value, KernelSplit::kBoth);
  EXPECT_EQ(now.merge, MergeKind::kFused);
  EXPECT_EQ(cluster_to_json(parse_cluster(cluster_to_json(now), "again")), cluster_to_json(now));
  // Two measured rows replace four of the file's.
  EXPECT_EQ(now.device.attend.size(), h100().device.attend.size() - 4 + 2);
  EXPECT_NE(now.description.find("GPU X"), std::string::npos);
  EXPECT_THROW(with_measured_kernels(h100(), file.path(), "cudnn"), UsageError);
  EXPECT_THROW(with_measured_link(h100(), file.path()), UsageError);
}

// All rows of an op together. Products as a step has them go before plain ones, of their type.
TEST(Calibrate, MeasuredOpsOfModelsArePricedByTheSimulator) {
  const TemporaryFile file(R"({"program": "gpu_kernels_benchmark", "device": {"name": "GPU X"},
    "points": [{"section": "gemm", "dtype": "bf16", "m": 10, "n": 10, "k": 5, "flops_per_s": 1e3},
               {"section": "gemm", "dtype": "fp32", "m": 10, "n": 10, "k": 5, "flops_per_s": 5e12},
               {"section": "model", "op": "gemm", "flops": 6e12, "flops_per_s": 6e14},
               {"section": "model", "op": "gemm", "flops": 2e12, "flops_per_s": 1e14},
               {"section": "model", "op": "gemm", "flops": 2e12, "status": "error"},
               {"section": "model", "op": "layer_norm", "bytes": 3e9, "bytes_per_s": 3e12},
               {"section": "model", "op": "layer_norm", "bytes": 1e9, "bytes_per_s": 1e12},
               {"section": "model", "op": "rotate_backward", "bytes": 1, "bytes_per_s": 5e11},
               {"section": "model", "op": "cross_entropy", "bytes": 1, "bytes_per_s": 7e11},
               {"section": "model", "op": "update", "bytes": 1, "bytes_per_s": 9e11}]})");
  const ClusterSpec now = with_measured_kernels(h100(), file.path(), "cuda");
  EXPECT_NEAR(now.device.gemm_flops.at(DType::kBFloat16).value, 8e12 / 0.03, 1e3);
  EXPECT_NEAR(now.device.gemm_flops.at(DType::kFloat32).value, 5e12, 1);
  ASSERT_EQ(now.device.row_wise_bytes_per_s.size(), 2u);
  EXPECT_NEAR(now.device.row_wise_bytes_per_s.at(RowFunction::kLayerNorm).value, 2e12, 1);
  EXPECT_EQ(now.device.row_wise_bytes_per_s.at(RowFunction::kRotateBackward).value, 5e11);
  EXPECT_EQ(now.device.cross_entropy_bytes_per_s.value, 7e11);
  EXPECT_EQ(now.device.update_bytes_per_s.value, 9e11);
  // Without rows of attention the cluster keeps its kernel's.
  EXPECT_EQ(now.device.kernel, h100().device.kernel);
  EXPECT_EQ(now.device.attend.size(), h100().device.attend.size());
  EXPECT_EQ(cluster_to_json(parse_cluster(cluster_to_json(now), "again")), cluster_to_json(now));
  PointParams p = small_point("ring", 1).params;
  p.problem.dtype = DType::kBFloat16;
  const CostModel model(now, sharded_problem(p));
  EXPECT_NEAR(model.row_wise(RowFunction::kLayerNorm, 2000000000).seconds,
              now.device.launch_s.value + 1e-3, 1e-9);
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
  const LinkSpec nvlink = with_measured_link(h100(), inside.path()).intra;
  EXPECT_NEAR(nvlink.bandwidth_bytes_per_s.value, 1e9, 1e6);
  EXPECT_NEAR(nvlink.call_s.value + nvlink.alpha_s.seconds[1], 10e-6, 1e-8);
  EXPECT_EQ(nvlink.channels.value, h100().intra.channels.value);  // more ranks have fewer each
  const TemporaryFile between(text("b", "g1"));
  const ClusterSpec now = with_measured_link(h100(), between.path());
  EXPECT_NEAR(now.inter.call_s.value + now.inter.alpha_s.seconds[1], 10e-6, 1e-8);
  EXPECT_EQ(now.intra.bandwidth_bytes_per_s.value, h100().intra.bandwidth_bytes_per_s.value);
  const TemporaryFile one_gpu(text("a", "g0"));
  EXPECT_THROW(with_measured_link(h100(), one_gpu.path()), UsageError);
}

}  // namespace
}  // namespace longnet
