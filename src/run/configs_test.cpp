// The configs that the suite ships: each loads, makes points and excludes with reasons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/check.h"
#include "io/config.h"
#include "io/expand.h"
#include "io/filter.h"
#include "measure/statistics.h"
#include "pattern/dependency_depth.h"
#include "run/sweep.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

namespace fs = std::filesystem;

fs::path configs() { return fs::path(LONGNET_SOURCE_DIR) / "configs"; }

LoadOptions known() { return {.known = known_names()}; }

int64_t pairs(const Point& p) {
  int64_t sum = 0;
  for (int b = 0; b < int(p.params.pattern.branches.size()); ++b)
    sum += branch_pairs(p.params.problem, p.params.pattern, b);
  return sum;
}

struct Preset {
  Config config;
  std::vector<Point> points;
  int64_t count(const std::string& filter) const {
    const Filter wanted = parse_filter(filter);
    return std::count_if(points.begin(), points.end(), [&](const Point& p) { return wanted(p); });
  }
  // Every sample of every point and the runs of its ablations (at most 11 on several ranks, 1 on
  // one), at 80 GFLOP/s a core, one core a rank and two cores at most.
  double seconds() const {
    double total = 0;
    for (const Point& p : points) {
      if (p.status != PointStatus::kOk) continue;
      const AttentionProblem& q = p.params.problem;
      total += pair_flops(pairs(p), q.head_dim) * double(q.batch) /
               (80e9 * std::min(2, p.params.ranks)) *
               double(config.measure.warmup + config.measure.max_samples +
                      (p.params.ranks > 1 ? 11 : 1));
    }
    return total;
  }
};

Preset preset(const char* name) {
  const Config c = load_config((configs() / name).string(), known());
  return {c, expand(c, {.world_size = 8, .known = known().known})};
}

double flops(const Point& p) {
  double pairs = 0;
  for (const DilatedBranch& b : p.params.pattern.branches)
    pairs += double(p.params.problem.seq_len) * double(b.segment_length) /
             double(b.dilation_rate * b.dilation_rate);
  const AttentionProblem& q = p.params.problem;
  return 4 * pairs * double(q.head_dim * q.num_heads * q.batch) / (q.causal ? 2 : 1);
}

TEST(Configs, AllLoadAndExpand) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(configs())) {
    if (entry.path().extension() != ".json") continue;
    ++files;
    const Config c = load_config(entry.path().string(), known());
    EXPECT_FALSE(c.description.empty()) << entry.path();
    EXPECT_EQ(c.name, entry.path().stem().string());
    EXPECT_FALSE(expand(c, {.world_size = 8}).empty()) << entry.path();
  }
  EXPECT_GE(files, 9);
}

// Every sample at 100 GFLOP/s a core, one core a rank.
TEST(Configs, QuickTakesFourMinutes) {
  const Config c = load_config((configs() / "quick.json").string(), known());
  double total_s = 0;
  for (const Point& p : expand(c, {.world_size = 2})) {
    if (p.status != PointStatus::kOk) continue;
    const double step_s = flops(p) / (100e9 * p.params.ranks);
    EXPECT_LT((1 + double(c.measure.warmup)) * step_s, c.measure.point_timeout_s)
        << p.params.problem.seq_len;
    total_s += std::min(c.measure.point_timeout_s,
                        step_s * double(c.measure.warmup + c.measure.max_samples));
  }
  EXPECT_LT(total_s, 270);
  EXPECT_GT(total_s, 30);
}

TEST(Configs, OpponentsHoldEveryAlgorithm) {
  const Preset p = preset("opponents-cpu.json");
  const auto names = known().known.names;
  for (const std::string& name : names.at("algorithm")) {
    const bool left_out = name == "local" || !find_algorithm(name).forward_of.empty();
    EXPECT_EQ(p.count(concat("algorithm == ", name, " && ranks == 8 && seq_len == 4K && ",
                             "head_slice == 0 && collective == native")),
              left_out ? 0 : 1)
        << name;
  }
  EXPECT_EQ(p.count("algorithm == local && ranks == 1"), 3);
  EXPECT_EQ(p.count("ranks == 1 && algorithm == ring"), 3);
  EXPECT_EQ(p.count("ranks == 1 && algorithm == ulysses"), 0);
  EXPECT_EQ(p.count("head_slice == 2"), 9);
  // Neither ring nor ulysses in another name.
  EXPECT_EQ(
      p.count("algorithm == usp && ranks == 8 && ulysses_degree == 2 && collective == native"), 3);
  EXPECT_GT(p.count("collective != native"), 8);
  EXPECT_GT(p.seconds(), 60);
  EXPECT_LT(p.seconds(), 420);
}

TEST(Configs, BackwardHoldsEveryAlgorithm) {
  const Preset p = preset("backward-cpu.json");
  for (const AlgorithmInfo& info : algorithms())
    EXPECT_GT(p.count(concat("pass == backward && algorithm == ", info.name)), 0) << info.name;
}

TEST(Configs, BalanceHoldsTheLayouts) {
  const Preset p = preset("balance-causal.json");
  EXPECT_EQ(p.points.size(), 2u * 3u * 4u);
  EXPECT_EQ(p.count("causal && ranks > 1"), int64_t(p.points.size()));
  for (const char* layout : {"contiguous", "zigzag", "striped"})
    EXPECT_EQ(p.count(concat("algorithm == ring && layout == ", layout)), 6);
  EXPECT_EQ(p.count("algorithm == all_gather"), 6);
  EXPECT_LT(p.seconds(), 180);
}

TEST(Configs, SlurmHoldsExactAlgorithmsOnNodes) {
  const Preset p = preset("slurm-64.json");
  const auto count = [&](const std::string& algorithm, int ranks, const char* more) {
    return p.count(
        concat("algorithm == ", algorithm, " && ranks == ", ranks,
               " && seq_len == 1M && heads == 32 && kv_heads == 8 && head_dim == 128 && ", more));
  };
  for (const char* algorithm : {"ring", "ulysses", "double_ring", "usp"})
    for (const int ranks : {8, 16, 32}) {
      EXPECT_EQ(count(algorithm, ranks, "causal && layout == zigzag"), 1) << algorithm << ranks;
      EXPECT_EQ(count(algorithm, ranks, "!causal && layout == contiguous"), 1)
          << algorithm << ranks;
    }
  EXPECT_EQ(count("dilated", 8, "causal") + count("dilated", 32, "!causal"), 2);
}

// Bytes are constant in N at one number of ranks: three lengths over a factor of 4 (a claim's).
TEST(Configs, Figure5BackwardHasLengthsAtOneNumberOfRanks) {
  const Preset p = preset("figure5-backward-cluster.json");
  for (const char* pass : {"forward", "backward", "forward_backward"})
    for (const char* seq_len : {"1M", "32M", "1B"})
      EXPECT_GE(p.count(concat("algorithm == dilated && ranks == 512 && replicas == 1 && pass == ",
                               pass, " && seq_len == ", seq_len)),
                1)
          << pass << " " << seq_len;
  EXPECT_EQ(p.count("replicas == 1 && seq_len < 1B && algorithm != dilated"), 0);
}

TEST(Configs, GqaGoesDownToOneKvHead) {
  const Preset p = preset("gqa.json");
  EXPECT_EQ(p.count("kv_heads == 1"), p.count("kv_heads == 8"));
  EXPECT_EQ(p.count("kv_heads == 2"), 2 * (1 + 5 * 3 + 2));  // usp not on two ranks
  // Left to itself, usp with one K/V head is the ring.
  EXPECT_EQ(p.count("algorithm == usp && ulysses_degree == 2"), p.count("algorithm == usp"));
  EXPECT_EQ(p.count("algorithm == usp && kv_heads == 1"), 2 * 2);
  EXPECT_EQ(p.count("algorithm == local && ranks > 1"), 0);
  EXPECT_LT(p.seconds(), 180);
}

// The exponents that the report's fits are held against, from the pairs alone.
TEST(Configs, ComplexityHasTheExponentsOfThePaper) {
  const Preset p = preset("complexity.json");
  const auto exponent = [&](const std::string& algorithm) {
    std::vector<double> n, work;
    for (const Point& point : p.points) {
      if (point.params.algorithm != algorithm || point.status != PointStatus::kOk) continue;
      n.push_back(double(point.params.problem.seq_len));
      work.push_back(double(pairs(point)));
    }
    EXPECT_GE(n.size(), 4u) << algorithm;  // as many as the report's claim needs
    return fit_power_law(n, work).exponent;
  };
  EXPECT_NEAR(exponent("local"), 2, 1e-9);
  EXPECT_NEAR(exponent("sparse"), 1.5, 0.01);
  EXPECT_NEAR(exponent("dilated"), 1, 0.05);
  EXPECT_LT(p.seconds(), 270);
}

// A report's claims on 1B tokens need patterns in which every token hears from every other within
// the base model's 12 layers.
TEST(Configs, FlagshipsReachEveryToken) {
  for (const char* name :
       {"one-billion-cpu.json", "one-billion-gpu.json", "sixteen-million.json",
        "constant-latency-cpu.json", "constant-latency-equal-cpu.json",
        "constant-latency-shared-cpu.json", "complexity.json", "figure5-cpu.json",
        "figure5-gpu.json", "figure5-virtual.json", "quick.json"})
    for (const Point& p : preset(name).points) {
      if (p.params.algorithm != "dilated") continue;
      const DependencyDepth depth = dependency_depth(p.params.problem, p.params.pattern);
      EXPECT_GE(depth.layers, 1) << name << " " << p.params.problem.seq_len;
      EXPECT_LE(depth.layers, 5) << name << " " << p.params.problem.seq_len;
    }
}

// Work per token is the same at every length; beyond the first segment it is nothing in one config,
// 60 % in another, and exactly as much in the third.
TEST(Configs, ConstantLatencyWithAndWithoutSharedWork) {
  const auto check_shares = [](const char* name, double low, double high) {
    const Preset preset_of = preset(name);
    const auto per_token = [](const Point& p) {
      return double(pairs(p)) / double(p.params.problem.seq_len);
    };
    for (const Point& p : preset_of.points) {
      const double first = double(branch_pairs(p.params.problem, p.params.pattern, 0));
      EXPECT_GE(1 - first / double(pairs(p)), low) << name << " " << p.params.problem.seq_len;
      EXPECT_LE(1 - first / double(pairs(p)), high) << name << " " << p.params.problem.seq_len;
      EXPECT_NEAR(per_token(p) / per_token(preset_of.points[0]), 1, 0.001);
    }
    EXPECT_GE(preset_of.points.size(), 4u);
  };
  check_shares("constant-latency-cpu.json", 0, 0.0005);
  check_shares("constant-latency-shared-cpu.json", 0.6, 0.6);
  check_shares("constant-latency-equal-cpu.json", 0.5, 0.5);
  for (const char* name : {"constant-latency-shared-cpu.json", "constant-latency-equal-cpu.json"})
    EXPECT_LT(preset(name).seconds(), 420) << name;
}

TEST(Configs, PublishedPresets) {
  using testing::ElementsAre;
  using B = DilatedBranch;
  const auto last = [](const char* name) {
    return expand(load_config((configs() / name).string(), known()),
                  {.filter = "algorithm == dilated"})
        .back()
        .params;
  };
  const PointParams vit = last("longvit-1m.json"), giga = last("gigapath.json"),
                    lm = last("lm-32k.json");
  EXPECT_THAT(vit.pattern.branches,
              ElementsAre(B{1024, 1}, B{4096, 2}, B{32768, 4}, B{262144, 8}, B{1048576, 16}));
  EXPECT_EQ(vit.ranks, 8);
  EXPECT_EQ(vit.problem.num_heads, 16);
  EXPECT_EQ(vit.problem.head_dim, 24);
  EXPECT_THAT(giga.pattern.branches,
              ElementsAre(B{1024, 1}, B{5792, 2}, B{32768, 4}, B{185363, 8}, B{262144, 16}));
  EXPECT_EQ(giga.problem.head_dim, 48);
  EXPECT_THAT(lm.pattern.branches,
              ElementsAre(B{2048, 1}, B{4096, 2}, B{8192, 4}, B{16384, 6}, B{32768, 12}));
  EXPECT_TRUE(lm.problem.causal);
}

}  // namespace
}  // namespace longnet
