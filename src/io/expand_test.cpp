#include "io/expand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "io/test_support.h"

namespace longnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr SegmentSpec kPerRank{SegmentSpec::Kind::kPerRank, 0},
    kSequence{SegmentSpec::Kind::kSequence, 0};
constexpr SegmentSpec tokens(int64_t n) { return {SegmentSpec::Kind::kTokens, n}; }

std::vector<DilatedBranch> resolve(RatioRule rule, std::vector<SegmentSpec> segments, int64_t n,
                                   int64_t ranks, std::vector<int64_t> ratios = {},
                                   int64_t heads = 12) {
  DilatedConfig d;
  d.segments = std::move(segments);
  d.ratio_rule = rule;
  d.ratios = std::move(ratios);
  return resolve_branches(d, n, ranks, heads);
}

using B = DilatedBranch;

TEST(ResolveBranches, FigureFive) {
  const std::vector<SegmentSpec> figure{tokens(2048), kPerRank, kSequence};
  EXPECT_THAT(resolve(RatioRule::kGeometric, figure, 65536, 4),
              ElementsAre(B{2048, 1}, B{16384, 8}, B{65536, 32}));
  // One rank: per_rank and sequence are the same branch.
  EXPECT_THAT(resolve(RatioRule::kGeometric, figure, 65536, 1),
              ElementsAre(B{2048, 1}, B{65536, 32}));
  // Two ranks and 4096 tokens: per_rank is no longer than w_0.
  EXPECT_THAT(resolve(RatioRule::kGeometric, figure, 4096, 2), ElementsAre(B{2048, 1}, B{4096, 2}));
  EXPECT_THAT(resolve(RatioRule::kGeometric, figure, 2048, 1), ElementsAre(B{2048, 1}));
  // Short sequences clip w_0 itself.
  EXPECT_THAT(resolve(RatioRule::kGeometric, figure, 100, 8), ElementsAre(B{100, 1}));
  // More ranks than w_0 has room for: per_rank is dropped, sequence stays.
  EXPECT_THAT(resolve(RatioRule::kGeometric, figure, 65536, 64),
              ElementsAre(B{2048, 1}, B{65536, 32}));
}

TEST(ResolveBranches, PerRankRoundsUpAndRatiosRound) {
  EXPECT_THAT(resolve(RatioRule::kGeometric, {tokens(4), kPerRank}, 19, 3),
              ElementsAre(B{4, 1}, B{7, 2}));  // 1.75
  EXPECT_THAT(resolve(RatioRule::kGeometric, {tokens(4), tokens(9)}, 19, 3),
              ElementsAre(B{4, 1}, B{9, 2}));  // 2.25
  EXPECT_THAT(resolve(RatioRule::kGeometric, {tokens(4), tokens(10)}, 19, 3),
              ElementsAre(B{4, 1}, B{10, 3}));  // 2.5
  EXPECT_THAT(resolve(RatioRule::kGeometric, {tokens(8), tokens(2)}, 19, 3),
              ElementsAre(B{8, 1}, B{2, 1}));
  EXPECT_THAT(resolve(RatioRule::kGeometric, {kSequence}, 19, 3), ElementsAre(B{19, 1}));
}

TEST(ResolveBranches, SqrtRoundsUpToAPowerOfTwo) {
  EXPECT_THAT(
      resolve(RatioRule::kSqrt, {tokens(2048), tokens(4096), tokens(8192), tokens(8193), kSequence},
              1 << 30, 1),
      ElementsAre(B{2048, 1}, B{4096, 2}, B{8192, 2}, B{8193, 4}, B{1 << 30, 1024}));
  EXPECT_THAT(resolve(RatioRule::kSqrt, {tokens(1), tokens(int64_t{1} << 40)}, int64_t{1} << 40, 1),
              ElementsAre(B{1, 1}, B{int64_t{1} << 40, 1 << 20}));
}

TEST(ResolveBranches, CappedStopsAtTheHeads) {
  EXPECT_THAT(
      resolve(RatioRule::kCapped, {tokens(2048), tokens(8192), kSequence}, 1 << 20, 1, {}, 12),
      ElementsAre(B{2048, 1}, B{8192, 4}, B{1 << 20, 12}));
}

TEST(ResolveBranches, ListKeepsItsRatiosAndClips) {
  const std::vector<SegmentSpec> lm{tokens(2048), tokens(4096), tokens(8192), tokens(16384),
                                    tokens(32768)};
  EXPECT_THAT(resolve(RatioRule::kList, lm, 32768, 1, {1, 2, 4, 6, 12}),
              ElementsAre(B{2048, 1}, B{4096, 2}, B{8192, 4}, B{16384, 6}, B{32768, 12}));
  EXPECT_THAT(resolve(RatioRule::kList, lm, 8192, 1, {1, 2, 4, 6, 12}),
              ElementsAre(B{2048, 1}, B{4096, 2}, B{8192, 4}, B{8192, 6}, B{8192, 12}));
  EXPECT_THAT(resolve(RatioRule::kList, lm, 8192, 1, {1, 2, 4, 4, 4}),
              ElementsAre(B{2048, 1}, B{4096, 2}, B{8192, 4}));
  // A dropped symbolic segment takes its ratio along.
  EXPECT_THAT(resolve(RatioRule::kList, {tokens(2048), kPerRank, kSequence}, 8192, 8, {1, 3, 5}),
              ElementsAre(B{2048, 1}, B{8192, 5}));
}

Config config(const std::string& sweep, const std::string& rest = "") {
  return parse_config(concat("{ \"schema_version\": 1, \"sweep\": { ", sweep, " }",
                             rest.empty() ? "" : ", ", rest, " }"),
                      "t.json");
}

std::vector<std::string> names(const std::vector<Point>& points) {
  std::vector<std::string> all;
  for (const Point& p : points)
    all.push_back(concat(p.params.algorithm, ":", p.params.ranks, ":", p.params.problem.seq_len));
  return all;
}

TEST(Expand, OrderIsFixed) {
  const Config c =
      config(R"("algorithm": ["dilated", "ring"], "seq_len": [64, 32], "ranks": [2, 1])");
  EXPECT_THAT(names(expand(c)),
              ElementsAre("dilated:2:64", "dilated:2:32", "dilated:1:64", "dilated:1:32",
                          "ring:2:64", "ring:2:32", "ring:1:64", "ring:1:32"));
}

TEST(Expand, PatternsFollowTheAlgorithm) {
  const auto points =
      expand(config(R"("algorithm": ["dilated", "ring", "sparse"], "seq_len": "8K", "ranks": 2)",
                    R"("dilated": {"phase": "shard", "mix": "mean", "gather_scope": "world"})"),
             {.known = {.dilated_algorithms = {"dilated", "sparse"}}});
  EXPECT_THAT(points[0].params.pattern.branches, ElementsAre(B{2048, 1}, B{4096, 2}, B{8192, 4}));
  EXPECT_EQ(points[0].params.pattern.phase_parts, 2);
  EXPECT_EQ(points[0].params.pattern.mix, MixRule::kMean);
  EXPECT_EQ(points[0].params.gather_scope, "world");
  EXPECT_EQ(points[1].params.pattern, dense_pattern(8192));
  EXPECT_EQ(points[1].params.gather_scope, "segment_group");
  EXPECT_EQ(points[2].params.pattern, points[0].params.pattern);
}

TEST(Expand, ConstantTokensSetTheBatch) {
  const auto points = expand(config(
      R"("algorithm": "ring", "seq_len": [8, 24, 64, 65],
          "batch": {"rule": "constant_tokens", "tokens_per_batch": 64})"));
  std::vector<int64_t> batches;
  for (const Point& p : points) batches.push_back(p.params.problem.batch);
  EXPECT_THAT(batches,
              ElementsAre(8, 2, 1, 1));  // longer than tokens_per_batch: still one sequence
}

TEST(Expand, KvHeadsFollowHeads) {
  const auto points = expand(config(R"("algorithm": "ring", "seq_len": 8, "heads": [4, 6])"));
  EXPECT_EQ(points[0].params.problem.num_kv_heads, 4);
  EXPECT_EQ(points[1].params.problem.num_kv_heads, 6);
}

TEST(Expand, IdsAreStableAndIgnoreTheTransport) {
  const Config c =
      config(R"("algorithm": ["dilated", "ring"], "seq_len": ["8K", "16K"], "ranks": [1, 2])");
  const auto threads = expand(c), mpi = expand(c, {.world_size = 2, .transport = "mpi"});
  std::set<std::string> ids;
  for (size_t i = 0; i < threads.size(); ++i) {
    EXPECT_EQ(threads[i].id, mpi[i].id);
    EXPECT_EQ(mpi[i].params.transport, "mpi");
    EXPECT_EQ(threads[i].id.size(), 8u);
    EXPECT_EQ(threads[i].id.find_first_not_of("0123456789abcdef"), std::string::npos);
    ids.insert(threads[i].id);
  }
  EXPECT_EQ(ids.size(), threads.size());
}

TEST(Expand, IdOfAKnownPointNeverChanges) {
  PointParams p;
  p.algorithm = "ring";
  p.problem = {.seq_len = 8192, .num_heads = 12, .num_kv_heads = 12};
  p.pattern = dense_pattern(8192);
  EXPECT_EQ(
      canonical_params_json(p),
      R"({"algorithm":"ring","batch":1,"branches":[{"dilation_rate":1,"segment_length":8192}],)"
      R"("causal":false,)"
      R"("dtype":"fp32","gather_scope":"segment_group","head_dim":64,"heads":12,)"
      R"("kernel":"cpu","kv_heads":12,)"
      R"("layout":"contiguous","mix":"lse","offset":"paper","phase_parts":1,"ranks":1,"seed":1,)"
      R"("seq_len":8192,)"
      R"("threads":1})");
  const std::string id = point_id(p);
  p.transport = "mpi";
  EXPECT_EQ(point_id(p), id);
  p.problem.seed = 2;
  EXPECT_NE(point_id(p), id);
}

TEST(Expand, ExcludeKeepsAPointWithItsReason) {
  const auto points =
      expand(config(R"("algorithm": "ring", "seq_len": [8, 16], "ranks": [1, 2])",
                    R"("exclude": [{"where": "ranks == 2 && seq_len > 8", "reason": "slow"}])"));
  ASSERT_EQ(points.size(), 4u);
  EXPECT_EQ(points[3].status, PointStatus::kSkippedExcluded);
  EXPECT_EQ(points[3].reason, "slow");
  EXPECT_EQ(points[2].status, PointStatus::kOk);
}

TEST(Expand, FilterDropsAndMaxRanksSkips) {
  const Config c = config(R"("algorithm": "ring", "seq_len": [8, 16], "ranks": [1, 2, 4])");
  const auto points = expand(c, {.max_ranks = 2, .filter = "seq_len == 8"});
  EXPECT_THAT(names(points), ElementsAre("ring:1:8", "ring:2:8", "ring:4:8"));
  EXPECT_EQ(points[2].status, PointStatus::kSkippedUnsupported);
  EXPECT_EQ(points[2].reason, "needs 4 ranks, there are 2");
}

TEST(Expand, EqualPointsAppearOnce) {
  EXPECT_EQ(
      expand(config(R"("algorithm": ["ring", "ring"], "seq_len": 8, "ranks": [1, "world", 1])"))
          .size(),
      1u);
}

TEST(Expand, NothingLeftSaysWhatRemovedIt) {
  const Config c = config(R"("algorithm": "ring", "seq_len": [8, 16], "ranks": [1, 4])",
                          R"("exclude": [{"where": "seq_len == 8", "reason": "too short"}])");
  const std::string error =
      usage_error([&] { expand(c, {.max_ranks = 2, .filter = "ranks == 4"}); });
  EXPECT_THAT(error, HasSubstr("t.json: no point left to run out of 4"));
  EXPECT_THAT(error, HasSubstr("--filter 'ranks == 4' removed 2"));
  EXPECT_THAT(error, HasSubstr("exclude[0] (seq_len == 8: too short) removed 1"));
  EXPECT_THAT(error, HasSubstr("1 need more than the 2 ranks"));
  EXPECT_THAT(error, HasSubstr("hint: "));
  const Config empty = config(
      R"("algorithm": "ring", "seq_len": 8, "ranks": {"from": 4, "to": "world", "factor": 2})");
  EXPECT_THAT(usage_error([&] { expand(empty, {.world_size = 2}); }),
              HasSubstr("an axis of the sweep has no value"));
  EXPECT_THAT(usage_error([&] { expand(c, {.filter = "rank == 4"}); }),
              HasSubstr("did you mean 'ranks'?"));
}

}  // namespace
}  // namespace longnet
