// The question as a config, the ranking of its answers, and what is said of each.
#include "run/recommend.h"

#include <gmock/gmock.h>

#include "run/simulate_point.h"
#include "run/sweep.h"

namespace longnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ClusterSpec nodes_of(int gpus) {
  ClusterSpec cluster;
  cluster.nodes.value = 4;
  cluster.gpus_per_node.value = gpus;
  return cluster;
}

PointRecord answer(const std::string& algorithm, double seconds,
                   PointStatus status = PointStatus::kOk) {
  PointRecord r;
  r.params.algorithm = algorithm;
  r.status = status;
  r.timing.median_s = r.timing.ci_low_s = r.timing.ci_high_s = seconds;
  r.phases.exposed_communication_s = 0;
  r.work.balance = 1;
  return r;
}

TEST(Recommend, AsksEveryAlgorithmOnOneLengthAndNumberOfRanks) {
  const Question question{.seq_len = "64K",
                          .ranks = 16,
                          .heads = 6,
                          .batch = 2,
                          .causal = true,
                          .dilated_segments = {"2048", "sequence"}};
  const std::string text = question_config(question, nodes_of(8));
  EXPECT_NO_THROW(parse_config(text, "question", {.known = known_names()}));
  for (const char* part : {"\"heads\":6", "\"kv_heads\":6", "\"ring_inner\":8", "zigzag", "2048"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, testing::Not(HasSubstr("query_ring")));
  const std::string trained =
      question_config({.seq_len = "64K", .ranks = 8, .pass = "forward_backward"}, nodes_of(8));
  EXPECT_NO_THROW(parse_config(trained, "question", {.known = known_names()}));
  for (const char* part : {"\"pass\":\"forward_backward\"", "query_ring", "keep_gathered"})
    EXPECT_THAT(trained, HasSubstr(part));
  // Eight ranks fill one node: there is no ring of rings.
  EXPECT_THAT(question_config({.seq_len = "64K", .ranks = 8}, nodes_of(8)),
              testing::Not(HasSubstr("ring_inner")));
}

TEST(Recommend, RanksByTimeWhatComputesTheSame) {
  Ranking ranking;
  ranking.add(answer("ring", 3), 1);
  ranking.add(answer("dilated", 1), 2);
  ranking.add(answer("usp", 2), 3);
  for (int i = 0; i < 2; ++i) {
    PointRecord stopped = answer("ulysses", 0, PointStatus::kSkippedUnsupported);
    stopped.reason = "more ranks than heads";
    ranking.add(stopped, 0);
  }
  ranking.add(answer("local", 0, PointStatus::kSkippedUnsupported), 0);
  ranking.sort();
  ASSERT_EQ(ranking.exact.size(), 2u);
  EXPECT_EQ(ranking.exact[0].params.algorithm, "usp");
  ASSERT_EQ(ranking.dilated.size(), 1u);
  EXPECT_THAT(ranking.left_out(), ElementsAre("left out: ulysses, ulysses: more ranks than heads"));
}

TEST(Recommend, NamesWhatItLeavesOutWithItsOptions) {
  Ranking ranking;
  for (const int degree : {8, 16})
    for (const LayoutKind layout : {LayoutKind::kContiguous, LayoutKind::kZigzag}) {
      PointRecord stopped = answer("usp", 0, PointStatus::kSkippedUnsupported);
      stopped.params.options.ulysses_degree = degree;
      stopped.params.layout = layout;
      stopped.reason = concat("few heads for ", degree);
      ranking.add(stopped, 0);
    }
  for (const char* algorithm : {"ring", "usp"}) ranking.add(answer(algorithm, 1), 1);
  EXPECT_THAT(ranking.left_out(),
              ElementsAre("1 left out, as their ranks do the same: usp (ring)",
                          "left out: usp Pu=8, usp zigzag Pu=8: few heads for 8",
                          "left out: usp Pu=16, usp zigzag Pu=16: few heads for 16"));
}

TEST(Recommend, WarnsOfRingsOverNodesWhereTheyAnswer) {
  const auto warns = [](const std::vector<std::pair<const char*, double>>& times, int ranks,
                        ClusterSpec cluster = nodes_of(8)) {
    Ranking ranking;
    for (uint64_t program = 0; const auto& [algorithm, seconds] : times) {
      PointRecord r = answer(algorithm, seconds);
      r.params.ranks = ranks;
      ranking.add(r, ++program);
    }
    ranking.sort();
    return ranking.answers_with_rings_over_nodes(cluster, 0.05);
  };
  EXPECT_TRUE(warns({{"double_ring", 1}}, 16));
  EXPECT_TRUE(warns({{"all_gather", 1}, {"usp", 1.04}}, 16));
  EXPECT_FALSE(warns({{"all_gather", 1}, {"usp", 1.06}}, 16));  // no tie
  EXPECT_FALSE(warns({{"ring", 1}}, 8));                        // in one node
  EXPECT_FALSE(warns({{"ulysses", 1}, {"dilated", 0.5}}, 16));
  ClusterSpec cores = nodes_of(1);
  cores.execution = ExecutionKind::kInOrder;
  EXPECT_FALSE(warns({{"ring", 1}}, 2, cores));
}

TEST(Recommend, TheLongestRowIsThatOfTheKernelTheMaskAndTheHead) {
  DeviceSpec device{.kernel = "a"};
  const auto add = [&](double rows, double head_dim, bool causal, bool backward,
                       const std::string& kernel = "a") {
    device.attend.push_back({.kernel = kernel,
                             .rows = rows,
                             .head_dim = head_dim,
                             .causal = causal,
                             .backward = backward});
  };
  for (const double rows : {1024.0, 4096.0, 2048.0}) add(rows, 64, false, false);
  add(8192, 128, false, false);
  add(16384, 64, true, false);
  add(2048, 64, false, true);
  add(65536, 64, false, false, "b");
  AttentionProblem p{.head_dim = 64, .dtype = DType::kBFloat16};
  EXPECT_EQ(longest_row(device, p, Pass::kForward), 4096);
  EXPECT_EQ(longest_row(device, p, Pass::kBackward), 2048);
  EXPECT_EQ(longest_row(device, p, Pass::kForwardBackward), 2048);
  p.head_dim = 128;
  EXPECT_EQ(longest_row(device, p, Pass::kForward), 8192);
  p = {.head_dim = 96, .dtype = DType::kBFloat16, .causal = true};
  EXPECT_EQ(longest_row(device, p, Pass::kForward), 16384);
}

Ranking on_h100(const Question& question) {
  const ClusterSpec cluster = load_cluster(LONGNET_SOURCE_DIR "/configs/clusters/h100-ndr400.json");
  const SimulatePoint how{.cluster = cluster, .communication_alone = false};
  Ranking ranking;
  for (const Point& point : on_cluster(
           parse_config(question_config(question, cluster), "question", {.known = known_names()}),
           how)) {
    const SimulatedPoint done = simulate_point(point, how);
    ranking.add(done.record, done.program);
  }
  ranking.sort();
  return ranking;
}

TEST(Recommend, LeavesOutWhatDoesTheSameAsAnother) {
  const Ranking causal = on_h100({.seq_len = "64K", .ranks = 4, .heads = 4, .causal = true});
  // Ulysses' ranks have all tokens, in whatever order they lay.
  EXPECT_THAT(causal.same,
              testing::UnorderedElementsAre("ulysses zigzag (ulysses)", "usp Pu=1 (ring)",
                                            "usp zigzag Pu=1 (ring zigzag)", "usp Pu=4 (ulysses)",
                                            "usp zigzag Pu=4 (ulysses)"));
  std::vector<std::string> names;
  for (const PointRecord& r : causal.exact) names.push_back(choice_text(r.params));
  EXPECT_THAT(names, testing::IsSupersetOf({"ring", "ring zigzag", "ring striped", "ulysses",
                                            "usp Pu=2", "usp zigzag Pu=2"}));
}

// Segments that are no shorter than the sequence leave dilated attention the work of an exact one.
TEST(Recommend, AnExactAttentionThatDoesTheSameLeavesNoDilatedOneOut) {
  for (const int ranks : {1, 2}) {
    const Ranking ranking = on_h100({.seq_len = "2K", .ranks = ranks});
    EXPECT_FALSE(ranking.exact.empty()) << ranks;
    EXPECT_FALSE(ranking.dilated.empty()) << ranks;
  }
}

PointRecord within(PointRecord r, double low, double high) {
  r.timing.ci_low_s = low;
  r.timing.ci_high_s = high;
  return r;
}

TEST(Recommend, TiesWithTheFirstWhereTheTimeOfOneLiesInTheIntervalOfTheOther) {
  const PointRecord first = within(answer("ring", 1), 0.9, 1.2);
  EXPECT_TRUE(ties(first, first, 0));
  EXPECT_TRUE(ties(within(answer("usp", 1.19), 1.1, 1.3), first, 0));
  EXPECT_TRUE(ties(within(answer("usp", 1.5), 0.95, 1.8), first, 0));   // a wide band
  EXPECT_FALSE(ties(within(answer("usp", 1.25), 1.1, 1.4), first, 0));  // overlap alone
  EXPECT_TRUE(ties(within(answer("usp", 1.25), 1.1, 1.4), first, 0.3));
  // 2K tokens on two H100: a gather has 0.88 to 1.36 times the time of a ring, at 1.15 times.
  const Ranking small = on_h100({.seq_len = "2K", .ranks = 2});
  EXPECT_THAT(answer_text(small.exact, 0), HasSubstr("; tied with it: all_gather"));
}

TEST(Recommend, AnswersWithTheFirstAndWhatTiesWithIt) {
  std::vector<PointRecord> ranked{within(answer("ring", 1), 0.9, 1.02), answer("usp", 1.04),
                                  within(answer("ulysses", 1.11), 1, 1.2)};
  const std::string use = "use ring, 1 s (900 ms to 1.02 s)";
  EXPECT_EQ(answer_text(ranked, 0), use + "; tied with it: ulysses");
  EXPECT_EQ(answer_text(ranked, 0.05), use + "; tied with it: usp, ulysses");
  ranked.pop_back();
  EXPECT_EQ(answer_text(ranked, 0), use + "; nothing ties with it");
  ranked[0].metrics[kBeyondTable] = double(Guess::kLongerRows);  // said once, not of each
  EXPECT_EQ(answer_text(ranked, 0), use + "; nothing ties with it");
  ranked[0].metrics[kBeyondTable] = double(Guess::kEstimate);
  EXPECT_EQ(answer_text(ranked, 0), use + ", by estimated kernel speeds; nothing ties with it");
  EXPECT_EQ(answer_text({}, 0), "none fits");
  EXPECT_EQ(few_of({"a", "b", "c", "d"}), "a, b, c, d");
  EXPECT_EQ(few_of({"a", "b", "c", "d", "e", "f"}), "a, b, c, d and 2 more");
}

TEST(Recommend, SaysWhatDecides) {
  PointRecord r = answer("ring", 1.04);
  EXPECT_THAT(reason_text(r, 1), HasSubstr("4 % behind the first"));
  EXPECT_THAT(reason_text(r, 0.52), HasSubstr("2 x the first"));
  r.phases.exposed_communication_s = 0.26;
  r.work.balance = 0.5;
  EXPECT_THAT(reason_text(r, 1.04), HasSubstr("waits 25 % of the time"));
  EXPECT_THAT(reason_text(r, 1.04), HasSubstr("balance 0.5"));
  r.metrics[kBeyondTable] = double(Guess::kLongerRows);
  EXPECT_THAT(reason_text(r, 1.04), testing::EndsWith("balance 0.5"));
  r.metrics[kBeyondTable] = double(Guess::kOtherSize);
  EXPECT_THAT(reason_text(r, 1.04), testing::EndsWith("; outside the kernel table"));
  Ranking ranking;
  ranking.dilated = {r};
  EXPECT_TRUE(ranking.has_guess(Guess::kOtherSize));
  EXPECT_FALSE(ranking.has_guess(Guess::kLongerRows));
  ClusterSpec cluster = nodes_of(8);
  EXPECT_EQ(tie_share(cluster), 0.05);
  cluster.error.value = 0.12;
  EXPECT_EQ(tie_share(cluster), 0);  // the intervals have it
}

}  // namespace
}  // namespace longnet
