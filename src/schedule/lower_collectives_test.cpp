// The algorithms that a choice of collective really runs, and the ops of a linear reduce_scatter.
// (registry_test checks that lowered programs are right, closed_form_counts_test the bytes that
// they send.)
#include "schedule/lower_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/check.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Schedule schedule(const char* algorithm, int ranks) {
  return find_algorithm(algorithm).make(
      {{.seq_len = 96, .num_heads = 4, .num_kv_heads = 4, .head_dim = 8},
       dense_pattern(96),
       {96, ranks}});
}

TEST(CollectivesUsed, NamesTheAlgorithmThatRunsInstead) {
  const CollectiveChoice doubling = parse_collective("recursive_doubling");
  EXPECT_THAT(collectives_used(schedule("all_gather", 8), doubling),
              ElementsAre("all_gather: recursive_doubling"));
  EXPECT_THAT(collectives_used(schedule("all_gather", 6), doubling),
              ElementsAre("all_gather: bruck"));
  EXPECT_THAT(collectives_used(schedule("query_gather", 8), doubling),
              ElementsAre("all_gather: recursive_doubling", "reduce_scatter: recursive_halving"));
  EXPECT_THAT(collectives_used(schedule("query_gather", 6), {}),
              ElementsAre("all_gather: native", "reduce_scatter: ring"));
  EXPECT_THAT(collectives_used(schedule("ulysses", 4), parse_collective("pairwise")),
              ElementsAre("all_to_all: pairwise"));
  ShardedProblem sparse{{.seq_len = 96}, {.branches = {{96, 4}}}, {96, 6}};  // rows of a branch
  EXPECT_THAT(collectives_used(dilated_attention(sparse, Pass::kBackward), doubling),
              ElementsAre("all_gather: bruck", "reduce_scatter: linear"));
  EXPECT_THAT(collectives_used(schedule("ring", 4), doubling), IsEmpty());
  EXPECT_THAT(collectives_used(schedule("all_gather", 1), doubling), IsEmpty());
}

// 24 rows of a segment over four ranks: six are each rank's own.
TEST(LinearReduceScatter, AddsThePiecesOfAllOthersAtOnceInRankOrder) {
  const ShardedProblem s{
      {.seq_len = 96, .num_heads = 1, .num_kv_heads = 1}, {.branches = {{96, 4}}}, {96, 4}};
  const RankProgram program =
      lower_collectives(dilated_attention(s, Pass::kBackward), {}).program(1);
  std::vector<Merge> merges;
  std::vector<std::pair<Rank, int>> received;  // from whom, into which piece
  for (const Op& op : program.ops) {
    if (const auto* merge = std::get_if<Merge>(&op.what)) merges.push_back(*merge);
    const auto* recv = std::get_if<Recv>(&op.what);
    if (recv && recv->what.rows.owners.stride == 0)
      received.emplace_back(recv->from, recv->what.first_piece());
  }
  ASSERT_EQ(merges.size(), 2);  // pieces to the own one, and that to dK and dV
  EXPECT_EQ(merges[0].from.rows.owners, (RankGroup{.first = 1, .stride = 0, .count = 3}));
  EXPECT_EQ(merges[0].from.num_pieces(), 3);
  EXPECT_EQ(program.slots[size_t(merges[0].from.slot)].bytes, 3 * 6 * 2 * 64 * 4);
  EXPECT_THAT(received,
              testing::UnorderedElementsAre(std::pair(0, 0), std::pair(2, 1), std::pair(3, 2)));
}

TEST(CollectivesUsed, AChoiceThatSuitsNoGroupHasAReason) {
  const auto why = [](const char* algorithm, int ranks, const char* name, int node_size = 0) {
    CollectiveChoice choice = parse_collective(name);
    choice.node_size = node_size;
    return why_not_collective(schedule(algorithm, ranks), name, choice);
  };
  EXPECT_EQ(why("all_gather", 6, "native"), "");
  EXPECT_EQ(why("all_gather", 6, "bruck"), "");
  EXPECT_EQ(why("all_gather", 8, "recursive_doubling"), "");
  EXPECT_THAT(why("all_gather", 6, "recursive_doubling"),
              HasSubstr("suits no group of this point (its largest has 6 ranks); its all_gather "
                        "runs by bruck"));
  EXPECT_EQ(why("all_gather", 6, "hierarchical"), "");
  EXPECT_EQ(why("all_gather", 6, "hierarchical", 3), "");
  EXPECT_THAT(why("all_gather", 6, "hierarchical", 4), HasSubstr("runs by ring"));
  EXPECT_THAT(why("all_gather", 7, "hierarchical"), HasSubstr("runs by ring"));
  EXPECT_THAT(why("ulysses", 1, "pairwise"), HasSubstr("no ranks exchange anything"));
}

}  // namespace
}  // namespace longnet
