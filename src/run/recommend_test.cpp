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
  EXPECT_THAT(ranking.reasons_of_stopped(), ElementsAre("ulysses: more ranks than heads"));
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
  r.metrics[kBeyondTable] = double(Guess::kOtherSize);
  EXPECT_THAT(reason_text(r, 1.04), testing::EndsWith("; outside the kernel table"));
  ClusterSpec cluster = nodes_of(8);
  EXPECT_EQ(tie_share(cluster), 0.05);
  cluster.error.value = 0.12;
  EXPECT_EQ(tie_share(cluster), 0);  // the intervals have it
}

}  // namespace
}  // namespace longnet
