#include "run/sweep.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "core/check.h"
#include "core/testing/test_support.h"
#include "io/axes.h"
#include "run/backend.h"
#include "run/testing/points.h"

namespace longnet {
namespace {

Config config_of(const std::string& rest) {
  return parse_config(
      R"({"schema_version": 1, "name": "small", "model": {"heads": 4, "head_dim": 16},
    "sweep": {"algorithm": ["ring", "ulysses"], "seq_len": [256, 512], "ranks": [2, 4]})" +
          rest + "}",
      "small.json", {.known = known_names()});
}

TEST(SweepPoints, NamesAreThoseOfTheRegistries) {
  const KnownNames known = known_names();
  EXPECT_THAT(known.names.at("algorithm"),
              testing::IsSupersetOf({"local", "dilated", "sparse", "ring"}));
  EXPECT_THAT(known.names.at("kernel"), testing::IsSupersetOf({"cpu", "reference", "cuda"}));
  EXPECT_THAT(known.algorithms.at("ulysses").collectives,
              testing::ElementsAre("pairwise", "linear"));
  EXPECT_EQ(known.why_bad_what_if("bandwidth=0.5"), "");
  EXPECT_NE(known.why_bad_what_if("width=0.5"), "");
}

// The table of axes names algorithms as texts, because io knows no schedule.
TEST(SweepPoints, ReadersOfAxesAreRegistered) {
  const KnownNames known = known_names();
  for (const Axis& axis : axes()) {
    for (const std::string_view reader : axis.readers.algorithms)
      EXPECT_THAT(known.names.at("algorithm"), testing::Contains(reader)) << axis.key;
    if (!axis.use.swept || !known.names.contains(axis.key)) continue;
    EXPECT_THAT(known.values_of(axis), testing::Contains(to_text(axis.standard))) << axis.key;
  }
  EXPECT_THAT(known.names.at("collective"),
              testing::Contains(find_axis("node_size")->readers.collective));
}

TEST(SweepPoints, FilterAndWorldDecideWhatRuns) {
  const Config config = config_of("");
  EXPECT_EQ(read_points(config, {.world_size = 4, .max_ranks = 4}).size(), 8u);
  const auto some = read_points(
      config, {.world_size = 2, .max_ranks = 2, .filter = "algorithm==ring && seq_len<=256"});
  ASSERT_EQ(some.size(), 2u);
  EXPECT_EQ(some[0].status, PointStatus::kOk);
  EXPECT_EQ(some[1].status, PointStatus::kSkippedUnsupported);  // four ranks, there are two
  const auto unlimited =
      read_points(config, {.world_size = 2, .filter = "ranks==4", .mode = Mode::kVirtual});
  EXPECT_EQ(unlimited[0].status, PointStatus::kOk);
  EXPECT_EQ(unlimited[0].params.mode, Mode::kVirtual);
}

TEST(SweepPoints, EveryModeHasABackwardPass) {
  Config config = config_of("");
  config.sweep.axes["pass"].values = {std::string("forward"), std::string("backward")};
  for (const Mode mode : {Mode::kReal, Mode::kVirtual, Mode::kSimulated})
    EXPECT_EQ(read_points(config, {.world_size = 4, .mode = mode}).size(), 16u);
}

TEST(SweepPoints, RanksAndAlgorithmsShareAPattern) {
  const auto ids = [](std::vector<Point> points) {
    std::string text;
    for (size_t i = 0; i < points.size(); ++i) points[i].id = std::to_string(i);
    for (const Point& point : distinct_patterns(points)) text += point.id;
    return text;
  };
  const Point dense = small_point("ring", 2), dilated = small_point("dilated", 2);
  Point same = small_point("ulysses", 4), mean = dilated;
  same.params.kernel = "reference";
  mean.params.pattern.mix = MixRule::kMean;
  EXPECT_EQ(ids({dense, same, dilated, dense, mean}), "02");
  const auto differs = [&](auto&& change) {
    Point other = dilated;
    change(other.params.problem, other.params.pattern);
    return ids({dilated, other}) == "01";
  };
  EXPECT_TRUE(differs([](auto& problem, auto&) { problem.seq_len *= 2; }));
  EXPECT_TRUE(differs([](auto& problem, auto&) { problem.num_heads *= 2; }));
  EXPECT_TRUE(differs([](auto& problem, auto&) { problem.causal = true; }));
  EXPECT_TRUE(differs([](auto&, auto& pattern) { pattern.branches[0].dilation_rate = 2; }));
  EXPECT_TRUE(differs([](auto&, auto& pattern) { pattern.offset = OffsetRule::kNone; }));
  EXPECT_TRUE(differs([](auto&, auto& pattern) { pattern.phase_parts = 2; }));
  EXPECT_TRUE(differs([](auto&, auto& pattern) { pattern.branches[0].segment_length *= 2; }));
  EXPECT_TRUE(differs([](auto&, auto& pattern) { pattern.branches[0].summary_tokens = 1; }));
}

TEST(SweepPoints, PatternsOfManyLengthsKeepTheirOrder) {
  constexpr int64_t kLengths = 20000;
  std::vector<Point> points(2 * kLengths, small_point("dilated", 2));
  for (size_t i = 0; i < points.size(); ++i)
    points[i].params.problem.seq_len = kLengths - int64_t(i) % kLengths;  // each length twice
  const auto distinct = distinct_patterns(points);
  ASSERT_EQ(distinct.size(), size_t(kLengths));
  for (size_t i = 0; i < distinct.size(); ++i)
    ASSERT_EQ(distinct[i].params.problem.seq_len, kLengths - int64_t(i));
}

TEST(SweepPoints, VirtualRanksNeedNoLauncher) {
  const HostTransport mpi = mpi_transport();
  EXPECT_EQ(transport_of(config_of(""), &mpi), "mpi");
  EXPECT_EQ(transport_of(config_of(""), nullptr), "threads");
  const Config config = config_of(R"(, "run": {"mode": "virtual"})");
  EXPECT_EQ(transport_of(config, nullptr), "");
  EXPECT_THROW(transport_of(config, &mpi), UsageError);
}

TEST(SweepPoints, ADeviceTransportMovesNoHostMemory) {
  Config config = config_of(R"(, "run": {"transport": "nccl"})");
  std::vector<Point> points{small_point("ring", 2)};
  EXPECT_THROW(require_fitting_transport(config, points), UsageError);
  points[0].params.kernel = "cudnn";
  EXPECT_NO_THROW(require_fitting_transport(config, points));
}

TEST(MachineLimits, MemoryAndSpeedAreShares) {
  Config config = config_of("");
  config.memory.limit_bytes = 1000;
  config.memory.limit_fraction = 0.5;
  config.measure.point_timeout_s = 7;
  const MachineLimits limits = machine_limits(config, 1e9);
  EXPECT_EQ(limits.memory_bytes, 500);
  EXPECT_EQ(limits.flops_per_rank, kExpectedShareOfPeak * 1e9);
  EXPECT_EQ(limits.point_timeout_s, 7);
  EXPECT_TRUE(limits.device_limit_given);
  EXPECT_GE(default_world_size(config), 1);
}

TEST(MakePlan, PointsThatExceedMemoryAreSkippedOrFail) {
  World world(2, nullptr);
  Sweep sweep;
  sweep.config = config_of(R"(, "memory": {"limit_bytes": 1000})");
  sweep.points = read_points(sweep.config, {.world_size = 2, .max_ranks = 2});
  const auto status = [&] { return make_plan(sweep, world).points.front().point.status; };
  EXPECT_EQ(status(), PointStatus::kSkippedMemory);
  sweep.config.memory.on_exceed = "fail";
  EXPECT_THAT(usage_error(status),
              testing::AllOf(testing::HasSubstr("small.json: "), testing::HasSubstr(" are allowed"),
                             testing::HasSubstr("memory.on_exceed=skip")));
  sweep.config.memory.limit_bytes = int64_t{1} << 40;
  EXPECT_EQ(status(), PointStatus::kOk);
}

TEST(Backend, KernelsRunOnHostOrGpu) {
  EXPECT_FALSE(backend_of("cpu").on_gpu());
  EXPECT_FALSE(backend_of("reference").on_gpu());
  for (const char* kernel : {"cuda", "cudnn", "gather"}) EXPECT_TRUE(backend_of(kernel).on_gpu());
  PointParams p = small_point("local", 1).params;
  EXPECT_GT(backend_of("cpu").workspace_bytes(p, 2), 0);
  EXPECT_EQ(backend_of("cpu").why_kernel_unsupported(p), "");
  p.kernel = "cuda";
  EXPECT_NE(backend_of("cuda").why_kernel_unsupported(p), "");  // fp32
  EXPECT_EQ(backend_of("cuda").workspace_bytes(p, 2), 0);
  p = small_point("local", 1).params;
  p.scope = Scope::kModel;
  p.problem.dtype = DType::kBFloat16;
  p.kernel = "cuda";
  // A GPU's products take 32 MiB, and what they round to bf16: of fc1 its weights and its bias.
  const int64_t width = p.problem.num_heads * p.problem.head_dim;
  EXPECT_EQ(backend_of("cuda").workspace_bytes(p, 1),
            (int64_t{32} << 20) + 2 * (width + 1) * p.model.ffn_width);
  p.problem.head_dim = 128;
  p.problem.num_heads = p.problem.num_kv_heads = 128;
  EXPECT_EQ(backend_of("cuda").why_kernel_unsupported(p), "");
  p.problem.num_heads = p.problem.num_kv_heads = 136;
  EXPECT_NE(backend_of("cuda").why_kernel_unsupported(p).find("layer norm of 17408 columns"),
            std::string::npos);
  p.problem.dtype = DType::kFloat32;
  p.kernel = "cpu_amx";
  EXPECT_FALSE(backend_of("cpu_amx").rounds_probabilities(p));
  p.problem.dtype = DType::kBFloat16;
  EXPECT_TRUE(backend_of("cpu_amx").rounds_probabilities(p));
}

// The samples of a point take milliseconds: others are seen beside all of it and what came before.
TEST(RunPoint, ShortPointsTellWhatOthersUsed) {
  if (std::isnan(measure_busy_share(OtherLoad::kShortest_s))) GTEST_SKIP() << "no /proc/stat";
  World world(2);
  world.mark_load();
  std::this_thread::sleep_for(std::chrono::duration<double>(1.2 * OtherLoad::kShortest_s));
  RunnerOptions options;
  options.measure = {.warmup = 0, .min_samples = 1, .max_samples = 1};
  options.ablations = false;
  for (int point = 0; point < 3; ++point) {
    PointPlan plan = small_plan("ring", 1 + point % 2);
    if (point == 2) plan.point.params.mode = Mode::kVirtual, plan.batches_at_once = 1;
    const auto record = run_point(world, plan, options, {});
    EXPECT_TRUE(record->metrics.contains("busy_share")) << point;
    EXPECT_LE(record->metrics.at("busy_share"), 1);
  }
}

TEST(PointText, OnlyWhatIsNotAsUsual) {
  PointParams p = small_point("ring", 2).params;
  p.problem.head_dim = AttentionProblem{}.head_dim;
  EXPECT_EQ(options_text(p), "");
  EXPECT_EQ(describe(p), "ring N=256 P=2 batch=2");
  p.layout = LayoutKind::kZigzag;
  p.problem.causal = true;
  p.kernel = "cudnn";
  EXPECT_EQ(options_text(p), "zigzag cudnn causal");
  EXPECT_EQ(options_text(p, /*with_sections=*/false), "zigzag");
}

}  // namespace
}  // namespace longnet
