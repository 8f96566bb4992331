// The question as a config, the ranking of its answers, and what is said of each.
#include "run/recommend.h"

#include <gmock/gmock.h>

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
  r.timing.median_s = seconds;
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
  ranking.add(answer("ring", 3));
  ranking.add(answer("dilated", 1));
  ranking.add(answer("usp", 2));
  for (int i = 0; i < 2; ++i) {
    PointRecord stopped = answer("ulysses", 0, PointStatus::kSkippedUnsupported);
    stopped.reason = "more ranks than heads";
    ranking.add(stopped);
  }
  ranking.add(answer("local", 0, PointStatus::kSkippedUnsupported));
  ranking.sort();
  ASSERT_EQ(ranking.exact.size(), 2u);
  EXPECT_EQ(ranking.exact[0].params.algorithm, "usp");
  ASSERT_EQ(ranking.dilated.size(), 1u);
  EXPECT_THAT(ranking.reasons_of_stopped(), ElementsAre("ulysses: more ranks than heads"));
}

TEST(Recommend, SaysWhatDecidesAndWhatIsATie) {
  PointRecord r = answer("ring", 1.04);
  EXPECT_THAT(reason_text(r, 1, 0.05), HasSubstr("4 % behind the first: a tie"));
  EXPECT_THAT(reason_text(r, 1, 0.03), testing::Not(HasSubstr("tie")));
  EXPECT_THAT(reason_text(r, 0.52, 0.05), HasSubstr("2 x the first"));
  r.phases.exposed_communication_s = 0.26;
  r.work.balance = 0.5;
  EXPECT_THAT(reason_text(r, 1.04, 0.05), HasSubstr("waits 25 % of the time"));
  EXPECT_THAT(reason_text(r, 1.04, 0.05), HasSubstr("balance 0.5"));
  r.metrics["beyond_kernel_table"] = 1;
  EXPECT_THAT(reason_text(r, 1.04, 0.05), HasSubstr("; beyond the kernel table"));
  ClusterSpec cluster = nodes_of(8);
  EXPECT_EQ(tie_share(cluster), 0.05);
  cluster.error.value = 0.12;
  EXPECT_EQ(tie_share(cluster), 0.12);
}

}  // namespace
}  // namespace longnet
