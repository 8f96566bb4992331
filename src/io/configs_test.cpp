// The configs that the suite ships: each loads, makes points and excludes with reasons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "io/config.h"
#include "io/expand.h"

namespace longnet {
namespace {

namespace fs = std::filesystem;

fs::path configs() {
  return fs::path(__FILE__).parent_path().parent_path().parent_path() / "configs";
}

LoadOptions known() {
  return {.known = {.algorithms = {"local", "dilated", "ring", "double_ring", "all_gather",
                                   "ulysses", "usp"},
                    .kernels = {"cpu", "reference"},
                    .layouts = {"contiguous", "zigzag", "striped"}}};
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
  EXPECT_GE(files, 5);
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
