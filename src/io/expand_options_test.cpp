// Tests of expand.cpp: options, replicas, and which algorithms read them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/testing/test_support.h"
#include "io/expand.h"
#include "io/testing/small_run.h"

namespace longnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using B = DilatedBranch;

std::vector<std::string> options_of(const std::vector<Point>& points) {
  std::vector<std::string> all;
  for (const Point& p : points)
    all.push_back(concat(p.params.algorithm, ":", p.params.ranks, ":", to_string(p.params.layout),
                         ":", p.params.collective, ":", p.params.options.ulysses_degree, ":",
                         p.params.options.ring_inner, ":", p.params.options.head_slice));
  return all;
}

TEST(Expand, LayoutsConcernDenseAlgorithmsOnSeveralRanks) {
  EXPECT_THAT(
      options_of(expand(config(
                            R"("algorithm": ["local", "ring", "dilated", "sparse"], "seq_len": 64,
                     "layout": ["zigzag", "striped"])"),
                        {.known = {.algorithms = {{"local", {.one_rank_only = true}}}}})),
      ElementsAre("local:1:contiguous:native:0:0:0", "ring:1:zigzag:native:0:0:0",
                  "ring:1:striped:native:0:0:0", "dilated:1:contiguous:native:0:0:0",
                  "sparse:1:contiguous:native:0:0:0"));
}

TEST(Expand, CollectivesConcernTheAlgorithmsThatHaveThem) {
  const Config c = config(R"("algorithm": ["ring", "all_gather", "ulysses"], "seq_len": 64,
                             "collective": ["bruck", "pairwise", "native"])");
  const KnownNames known{.algorithms = {{"all_gather", {.collectives = {"bruck"}}},
                                        {"ulysses", {.collectives = {"linear"}}}}};
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
  // A forward pass has nothing to keep rows for.
  EXPECT_EQ(expand(config(R"("algorithm": ["dilated", "ring"], "seq_len": 64, "ranks": 4,
                             "pass": ["forward", "backward"], "keep_gathered": [false, true])"))
                .size(),
            3u + 2u);
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

TEST(Expand, AutomaticReplicasLeaveRanksForHeadGroups) {
  for (const Point& p : expand(config(
           R"("scope": "model", "algorithm": "ring", "seq_len": 64, "ranks": [1, 3, 4, 8, 9, 12],
              "batch": {"size": 8}, "head_groups": [1, 2, 4], "replicas": "auto")"))) {
    const bool divides = p.params.ranks % p.params.head_groups == 0;
    EXPECT_EQ(p.status, divides ? PointStatus::kOk : PointStatus::kSkippedUnsupported) << p.reason;
    EXPECT_THAT(p.reason, HasSubstr(divides ? "" : "the head groups must divide"));
  }
  EXPECT_THAT(groups_of(expand(config(
                  R"("scope": "model", "algorithm": "ring", "seq_len": 64, "ranks": 8,
                     "batch": {"size": 8}, "head_groups": [1, 2, 4], "replicas": "auto")"))),
              ElementsAre("8:1:1", "4:1:2", "2:1:4"));
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
  EXPECT_THAT(options_of(expand(config(R"("scope": "model", "algorithm": "usp", "seq_len": 64,
                                          "ranks": 8, "head_groups": 2,
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

TEST(ReplacedChoices, NameWhoDoesWhatElse) {
  const KnownNames known{.algorithms = {{"all_gather", {.collectives = {"bruck"}}},
                                        {"ulysses", {.collectives = {"linear"}}}}};
  Config c;
  const auto ask = [&](const std::string& key, const std::vector<std::string>& names) {
    c.sweep.axes[key].values.assign(names.begin(), names.end());
  };
  ask("algorithm", {"all_gather", "ulysses", "ring", "dilated"});
  EXPECT_TRUE(replaced_choices(c, known).empty());
  ask("collective", {"native", "linear"});  // an algorithm without one uses the other
  EXPECT_TRUE(replaced_choices(c, known).empty());
  ask("collective", {"linear"});
  ask("layout", {"zigzag"});
  EXPECT_THAT(
      replaced_choices(c, known),
      ElementsAre(
          "sweep.layout=zigzag does not apply to dilated: contiguous instead",
          "sweep.collective=linear does not apply to all_gather, ring, dilated: native instead"));
  ask("collective", {"linear", "bruck"});
  EXPECT_THAT(replaced_choices(c, known).back(),
              HasSubstr("bruck does not apply to ring, dilated"));
}

TEST(ReplacedChoices, KnowScopesAndPasses) {
  Config c = config(R"("algorithm": ["ring", "dilated"], "seq_len": 64, "keep_gathered": true,
                       "recompute": "full", "pass": ["forward"])");
  EXPECT_THAT(
      replaced_choices(c, {}),
      ElementsAre("sweep.keep_gathered=true does not apply to ring, dilated: false instead",
                  "sweep.recompute=full does not apply to ring, dilated: keep_attention instead"));
  c.sweep.axes["pass"].values.emplace_back("forward_backward");
  c.sweep.axes["scope"].values = {"attention", "layer"};
  EXPECT_THAT(replaced_choices(c, {}),
              ElementsAre("sweep.keep_gathered=true does not apply to ring: false instead"));
}

}  // namespace
}  // namespace longnet
