#include "io/expand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/testing/test_support.h"

namespace longnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Value tokens(int64_t n) { return n; }

std::vector<DilatedBranch> resolve(RatioRule rule, std::vector<Value> segments, int64_t n,
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
  const std::vector<Value> figure{tokens(2048), kPerRank, kSequence};
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
  const std::vector<Value> lm{tokens(2048), tokens(4096), tokens(8192), tokens(16384),
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
      expand(config(R"("algorithm": ["dilated", "ring", "sparse", "other"],
                        "seq_len": "8K", "ranks": 2)",
                    R"("dilated": {"phase": "shard", "mix": "mean", "gather_scope": "world"},
                       "sparse": {"segment": 100, "summary": 7})"),
             {.known = {.patterns = {{"dilated", PatternKind::kDilated},
                                     {"other", PatternKind::kDilated},
                                     {"sparse", PatternKind::kSparse}}}});
  EXPECT_THAT(points[0].params.pattern.branches, ElementsAre(B{2048, 1}, B{4096, 2}, B{8192, 4}));
  EXPECT_EQ(points[0].params.pattern.phase_parts, 2);
  EXPECT_EQ(points[0].params.pattern.mix, MixRule::kMean);
  EXPECT_EQ(points[0].params.gather_scope, "world");
  EXPECT_EQ(points[1].params.pattern, dense_pattern(8192));
  EXPECT_EQ(points[1].params.gather_scope, "segment_group");
  EXPECT_EQ(points[2].params.pattern, sparse_pattern(100, 7));
  EXPECT_EQ(points[2].params.gather_scope, "segment_group");
  EXPECT_EQ(points[3].params.pattern, points[0].params.pattern);
}

int64_t pairs_of(const AttentionProblem& problem, const DilatedPattern& pattern) {
  int64_t pairs = 0;
  for (int b = 0; b < int(pattern.branches.size()); ++b) pairs += branch_pairs(problem, pattern, b);
  return pairs;
}

TEST(ResolveSparse, SqrtIsTheNearestPowerOfTwo) {
  const auto segment = [](int64_t n) {
    return resolve_sparse({.segment = {}, .summary = 1}, {.seq_len = n}, {})
        .branches[0]
        .segment_length;
  };
  EXPECT_EQ(segment(1), 1);
  EXPECT_EQ(segment(2), 1);  // 1.41
  EXPECT_EQ(segment(3), 2);  // 1.73
  EXPECT_EQ(segment(9), 4);  // 3 is halfway between 2 and 4
  EXPECT_EQ(segment(8), 2);  // 2.83
  EXPECT_EQ(segment(16384), 128);
  EXPECT_EQ(segment(36863), 128);  // just below 192^2
  EXPECT_EQ(segment(36864), 256);
  EXPECT_EQ(segment(kMaxSeqLen), 1 << 20);
}

TEST(ResolveSparse, NumbersAreClipped) {
  const auto resolved = [](int64_t segment, int64_t summary, int64_t n) {
    return resolve_sparse({.segment = segment, .summary = summary}, {.seq_len = n}, {});
  };
  EXPECT_EQ(resolved(64, 8, 1000), sparse_pattern(64, 8));
  EXPECT_EQ(resolved(2000, 8, 1000), sparse_pattern(1000, 8));
  EXPECT_EQ(resolved(2000, 1500, 1000), sparse_pattern(1000, 1000));
}

// The c that bisection finds is the one that trying all of them finds.
TEST(ResolveSparse, MatchesThePairsOfDilated) {
  for (const int64_t n : {64, 256, 1000, 1024, 4096})
    for (const int64_t heads : {1, 3, 8})
      for (const bool causal : {false, true})
        for (const int64_t w0 : {1, 16, 64, 512}) {
          const AttentionProblem problem{
              .seq_len = n, .num_heads = heads, .num_kv_heads = heads, .causal = causal};
          const DilatedPattern dilated{
              .branches = resolve(RatioRule::kGeometric, {tokens(w0), kSequence}, n, 1)};
          const int64_t target = pairs_of(problem, dilated);
          const DilatedPattern found = resolve_sparse({}, problem, dilated);
          const int64_t w = found.branches[0].segment_length, c = found.branches[1].summary_tokens;
          ASSERT_GE(c, 1);
          ASSERT_LE(c, w);
          int64_t best = std::abs(pairs_of(problem, found) - target);
          for (int64_t other = 1; other <= w; ++other)
            EXPECT_LE(best, std::abs(pairs_of(problem, sparse_pattern(w, other)) - target))
                << "N=" << n << " H=" << heads << " w0=" << w0 << " w=" << w << " c=" << c
                << " other=" << other << " causal=" << causal;
        }
  // Fewer pairs than one summary token makes, and more than whole segments make.
  const AttentionProblem problem{.seq_len = 4096};
  EXPECT_EQ(resolve_sparse({}, problem, {.branches = {{1, 1}}}), sparse_pattern(64, 1));
  EXPECT_EQ(resolve_sparse({.segment = 16}, problem, dense_pattern(4096)), sparse_pattern(16, 16));
}

std::vector<std::string> options_of(const std::vector<Point>& points) {
  std::vector<std::string> all;
  for (const Point& p : points)
    all.push_back(concat(p.params.algorithm, ":", p.params.ranks, ":", p.params.layout, ":",
                         p.params.collective, ":", p.params.options.ulysses_degree, ":",
                         p.params.options.ring_inner, ":", p.params.options.head_slice));
  return all;
}

TEST(Expand, LayoutsConcernDenseAlgorithmsOnSeveralRanks) {
  EXPECT_THAT(options_of(expand(config(
                  R"("algorithm": ["local", "ring", "dilated", "sparse"], "seq_len": 64,
                     "layout": ["zigzag", "striped"])"))),
              ElementsAre("local:1:contiguous:native:0:0:0", "ring:1:zigzag:native:0:0:0",
                          "ring:1:striped:native:0:0:0", "dilated:1:contiguous:native:0:0:0",
                          "sparse:1:contiguous:native:0:0:0"));
}

TEST(Expand, CollectivesConcernTheAlgorithmsThatHaveThem) {
  const Config c = config(R"("algorithm": ["ring", "all_gather", "ulysses"], "seq_len": 64,
                             "collective": ["bruck", "pairwise", "native"])");
  const KnownNames known{
      .collectives_of = {{"ring", {"native"}}, {"all_gather", {"bruck"}}, {"ulysses", {"linear"}}}};
  EXPECT_THAT(
      options_of(expand(c, {.known = known})),
      ElementsAre("ring:1:contiguous:native:0:0:0", "all_gather:1:contiguous:bruck:0:0:0",
                  "all_gather:1:contiguous:native:0:0:0", "ulysses:1:contiguous:native:0:0:0"));
  EXPECT_EQ(expand(c).size(), 9u);  // nothing known: all for each
  // An algorithm that has none of those asked for runs natively.
  EXPECT_THAT(
      options_of(expand(config(R"("algorithm": "ring", "seq_len": 8, "collective": "bruck")"),
                        {.known = known})),
      ElementsAre("ring:1:contiguous:native:0:0:0"));
}

// Pairs of 2^33 tokens pass 2^63: the summary is still the one nearest to dilated attention's.
TEST(Expand, SparsePairsPassSixtyThreeBits) {
  const AttentionProblem problem{.seq_len = int64_t{1} << 33, .num_heads = 2};
  const DilatedPattern dilated{.branches = {{256, 1}, {int64_t{1} << 33, 1 << 25}}};
  EXPECT_EQ(resolve_sparse({}, problem, dilated).branches.back().summary_tokens, 1);
  EXPECT_THAT(usage_error([&] { resolve_sparse({.segment = 2}, problem, dilated); }),
              HasSubstr("use longer segments"));
}

TEST(Expand, OptionsConcernOneAlgorithmEach) {
  EXPECT_THAT(
      options_of(expand(config(
          R"("algorithm": ["ring", "usp", "double_ring", "all_gather"], "seq_len": 64, "ranks": 6,
             "ulysses_degree": "divisors", "ring_inner": [2, "divisors"], "head_slice": [0, 4])"))),
      ElementsAre("ring:6:contiguous:native:0:0:0", "usp:6:contiguous:native:1:0:0",
                  "usp:6:contiguous:native:2:0:0", "usp:6:contiguous:native:3:0:0",
                  "usp:6:contiguous:native:6:0:0", "double_ring:6:contiguous:native:0:2:0",
                  "double_ring:6:contiguous:native:0:1:0", "double_ring:6:contiguous:native:0:3:0",
                  "double_ring:6:contiguous:native:0:6:0", "all_gather:6:contiguous:native:0:0:0",
                  "all_gather:6:contiguous:native:0:0:4"));
  // Divisors follow the ranks of the point.
  EXPECT_EQ(expand(config(R"("algorithm": "usp", "seq_len": 64, "ranks": [1, 4, 7],
                             "ulysses_degree": "divisors")"))
                .size(),
            1u + 3u + 2u);
  // Nodes are the hierarchical gather's only.
  const auto nodes = expand(config(R"("algorithm": "all_gather", "seq_len": 64, "ranks": 8,
                                       "collective": ["ring", "hierarchical"],
                                       "node_size": [2, 4])"));
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[0].params.node_size, 0);
  EXPECT_EQ(nodes[1].params.node_size, 2);
  EXPECT_EQ(nodes[2].params.node_size, 4);
}

// "replicas:ranks and sequences of a group" of each point.
std::vector<std::string> groups_of(const std::vector<Point>& points) {
  std::vector<std::string> all;
  for (const Point& p : points)
    all.push_back(
        concat(p.params.replicas, ":", p.params.group_ranks(), ":", p.params.group_batch()));
  return all;
}

TEST(Expand, AutomaticReplicasAreAsManyAsDivideBatchAndRanks) {
  const auto points =
      expand(config(R"("algorithm": "dilated", "seq_len": ["8K", "64K", "128K", "1M"],
                       "ranks": [8, 12], "replicas": "auto",
                       "batch": {"rule": "constant_tokens", "tokens_per_batch": "512K"})"));
  EXPECT_THAT(groups_of(points),
              ElementsAre("8:1:8", "8:1:1", "4:2:1", "1:8:1",  // batch 64, 8, 4, 1
                          "4:3:16", "4:3:2", "4:3:1", "1:12:1"));
  // per_rank and the phase follow the ranks that share a sequence.
  EXPECT_THAT(points[2].params.pattern.branches,
              ElementsAre(B{2048, 1}, B{65536, 32}, B{131072, 64}));
  EXPECT_THAT(points[0].params.pattern.branches, ElementsAre(B{2048, 1}, B{8192, 4}));
  const auto shards = expand(config(
      R"("algorithm": "dilated", "seq_len": 8192, "ranks": 8, "replicas": [1, 4], "batch": {"size": 4})",
      R"("dilated": {"phase": "shard"})"));
  EXPECT_EQ(shards[0].params.pattern.phase_parts, 8);
  EXPECT_EQ(shards[1].params.pattern.phase_parts, 2);
}

TEST(Expand, ReplicasLeaveIdsOfOtherPointsAlone) {
  const std::string sweep =
      R"("algorithm": "ring", "seq_len": [8, 16], "ranks": 4, "batch": {"size": 2})";
  const auto without = expand(config(sweep));
  const auto with = expand(config(sweep + R"(, "replicas": [1, "auto", 2])"));
  EXPECT_THAT(groups_of(with), ElementsAre("1:4:2", "1:4:2", "2:2:1", "2:2:1"));  // auto is 2
  EXPECT_EQ(with[0].id, without[0].id);
  EXPECT_EQ(with[1].id, without[1].id);
  EXPECT_NE(with[2].id, without[0].id);
  EXPECT_EQ(expand(config(sweep + R"(, "replicas": "auto")"), {.filter = "replicas == 2"}).size(),
            2u);
}

TEST(Expand, ReplicasThatDoNotDivideSayWhat) {
  const auto points = expand(config(R"("algorithm": "ring", "seq_len": 8, "ranks": [4, 6],
                                       "replicas": [1, 3, 4], "batch": {"size": 6})"));
  const auto reason = [&](int ranks, int replicas) {
    for (const Point& p : points)
      if (p.params.ranks == ranks && p.params.replicas == replicas)
        return concat(to_string(p.status), " ", p.reason);
    return std::string("none");
  };
  EXPECT_EQ(reason(4, 1), "ok ");
  EXPECT_EQ(reason(6, 3), "ok ");
  EXPECT_THAT(reason(4, 3), HasSubstr("skipped_unsupported the replicas must divide the ranks: 4"));
  EXPECT_THAT(reason(4, 4), HasSubstr("divide the batch: 4 groups cannot share 6 sequences"));
  EXPECT_THAT(usage_error([&] {
                expand(config(R"("algorithm": "ring", "seq_len": 8, "ranks": 4, "replicas": 3)"));
              }),
              HasSubstr("1 have replicas that do not divide"));
}

TEST(Expand, DivisorsAreOfTheRanksThatShareASequence) {
  EXPECT_THAT(options_of(expand(config(R"("algorithm": "usp", "seq_len": 64, "ranks": 8,
                                          "batch": {"size": 2}, "replicas": 2,
                                          "ulysses_degree": "divisors")"))),
              ElementsAre("usp:8:contiguous:native:1:0:0", "usp:8:contiguous:native:2:0:0",
                          "usp:8:contiguous:native:4:0:0"));
}

TEST(Expand, ResolvedOptionsDecideIdsAndDuplicates) {
  const Config c = config(R"("algorithm": "usp", "seq_len": [64, 128], "ranks": [2, 4],
                             "ulysses_degree": [0, 2, 4])");
  ExpandOptions options;
  EXPECT_EQ(expand(c).size(), 12u);
  options.resolve = [](PointParams& p) {  // 0: as many as there are ranks
    if (p.options.ulysses_degree == 0) p.options.ulysses_degree = p.ranks;
  };
  const auto points = expand(c, options);
  EXPECT_THAT(options_of(points),
              ElementsAre("usp:2:contiguous:native:2:0:0", "usp:2:contiguous:native:2:0:0",
                          "usp:2:contiguous:native:4:0:0", "usp:2:contiguous:native:4:0:0",
                          "usp:4:contiguous:native:4:0:0", "usp:4:contiguous:native:4:0:0",
                          "usp:4:contiguous:native:2:0:0", "usp:4:contiguous:native:2:0:0"));
  // Asked for by its own value, a point has the id that it always had.
  EXPECT_EQ(points[6].id, expand(c, {.filter = "ulysses_degree == 2 && ranks == 4"})[0].id);
  // Filters and exclusions see what runs.
  options.filter = "ulysses_degree == 0 || ulysses_degree == 2 && ranks == 2";
  EXPECT_EQ(expand(c, options).size(), 2u);
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

TEST(Expand, IdsAreStableAndIgnoreModeAndTransport) {
  const Config c =
      config(R"("algorithm": ["dilated", "ring"], "seq_len": ["8K", "16K"], "ranks": [1, 2])");
  const auto threads = expand(c), mpi = expand(c, {.world_size = 2, .transport = "mpi"}),
             walked = expand(c, {.mode = Mode::kVirtual, .transport = ""});
  std::set<std::string> ids;
  for (size_t i = 0; i < threads.size(); ++i) {
    EXPECT_EQ(threads[i].id, mpi[i].id);
    EXPECT_EQ(mpi[i].params.transport, "mpi");
    EXPECT_EQ(threads[i].id, walked[i].id);
    EXPECT_EQ(walked[i].params.mode, Mode::kVirtual);
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
      R"("causal":false,"collective":"native",)"
      R"("dtype":"fp32","gather_scope":"segment_group","head_dim":64,"head_slice":0,"heads":12,)"
      R"("kernel":"cpu","kv_heads":12,)"
      R"("layout":"contiguous","mix":"lse","node_size":0,"offset":"paper","phase_parts":1,)"
      R"("ranks":1,)"
      R"("ring_inner":0,"seed":1,"seq_len":8192,)"
      R"("threads":1,"ulysses_degree":0})");
  const std::string id = point_id(p);
  p.transport = "mpi";
  p.mode = Mode::kSimulated;
  EXPECT_EQ(point_id(p), id);
  p.problem.seed = 2;
  EXPECT_NE(point_id(p), id);
}

TEST(Expand, EveryOptionChangesTheId) {
  PointParams base;
  base.algorithm = "ring";
  base.problem.seq_len = 64;
  base.pattern = sparse_pattern(8, 2);
  std::set<std::string> ids{point_id(base)};
  const auto add = [&](auto change) {
    PointParams p = base;
    change(p);
    EXPECT_TRUE(ids.insert(point_id(p)).second) << canonical_params_json(p);
  };
  add([](PointParams& p) { p.layout = "zigzag"; });
  add([](PointParams& p) { p.collective = "ring"; });
  add([](PointParams& p) { p.options.ulysses_degree = 2; });
  add([](PointParams& p) { p.options.ring_inner = 2; });
  add([](PointParams& p) { p.options.head_slice = 2; });
  add([](PointParams& p) { p.node_size = 2; });
  add([](PointParams& p) { p.replicas = 2; });
  add([](PointParams& p) { p.pass = Pass::kBackward; });
  add([](PointParams& p) { p.pattern.branches[1].summary_tokens = 3; });
}

TEST(Expand, PassesAreAnAxisThatForwardPointsDoNotShow) {
  const auto points = expand(config(
      R"("algorithm": "ring", "seq_len": 8, "pass": ["forward", "backward", "forward_backward"])"));
  ASSERT_EQ(points.size(), 3u);
  const auto without = expand(config(R"("algorithm": "ring", "seq_len": 8)"));
  EXPECT_EQ(points[0].id, without[0].id);
  EXPECT_EQ(canonical_params_json(points[0].params), canonical_params_json(without[0].params));
  EXPECT_EQ(points[1].params.pass, Pass::kBackward);
  EXPECT_EQ(series_name(points[0].params), series_name(without[0].params));
  EXPECT_THAT(series_name(points[1].params), HasSubstr("pass=backward"));
  EXPECT_THAT(describe(points[2].params), HasSubstr("ring forward_backward"));
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

TEST(Expand, AFilterNamesKnownValues) {
  const Config c = config(R"("algorithm": "ring", "seq_len": 8)");
  const KnownNames known{.names = {{"algorithm", {"dilated", "ring"}}}};
  const auto error = [&](const std::string& filter) {
    return usage_error([&] { expand(c, {.filter = filter, .known = known}); });
  };
  EXPECT_THAT(error("algorithm==dilted"), HasSubstr("no algorithm is named 'dilted'"));
  EXPECT_THAT(error("algorithm==dilted"), HasSubstr("did you mean 'dilated'?"));
  EXPECT_THAT(error("ranks > 2 && dtype != fp23"), HasSubstr("did you mean 'fp32'?"));
  EXPECT_THAT(error("algorithm == dilated"), HasSubstr("no point left"));  // known, not swept
  EXPECT_EQ(error("algorithm == ring && kernel == anything || ranks == 1"), "");
}

TEST(ReplacedChoices, NameWhoDoesWhatElse) {
  const KnownNames known{
      .collectives_of = {{"all_gather", {"native", "bruck"}}, {"ulysses", {"native", "linear"}}}};
  Config c;
  const auto ask = [&](const std::string& key, const std::vector<std::string>& names) {
    c.sweep.axes[key].values.assign(names.begin(), names.end());
  };
  ask("algorithm", {"all_gather", "ulysses", "ring", "dilated"});
  EXPECT_TRUE(replaced_choices(c, known).empty());
  ask("collective", {"native", "linear"});  // who cannot do one does the other
  EXPECT_TRUE(replaced_choices(c, known).empty());
  ask("collective", {"linear"});
  ask("layout", {"zigzag"});
  EXPECT_THAT(replaced_choices(c, known),
              ElementsAre("no layout zigzag for dilated: contiguous instead",
                          "no collective linear for all_gather, ring, dilated: native instead"));
  ask("collective", {"linear", "bruck"});
  EXPECT_THAT(replaced_choices(c, known).back(), HasSubstr("bruck for ring, dilated"));
}

}  // namespace
}  // namespace longnet
