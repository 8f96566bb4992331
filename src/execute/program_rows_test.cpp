// Rows of a bound program: which ones they are, where they lie, and that digests name them.
#include "execute/program_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "execute/testing/bound_rank.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

using testing::Each;

constexpr AttentionProblem kProblem{
    .seq_len = 8, .num_heads = 1, .num_kv_heads = 1, .head_dim = 8, .dtype = DType::kBFloat16};

ShardedProblem split(const AttentionProblem& problem, int ranks) {
  return {problem, {.branches = {{8, 2}}}, {problem.seq_len, ranks}};
}

template <class Kind>
size_t only_op(const BoundRank& bound) {
  const std::vector<OpId> found = bound.ops<Kind>();
  check(found.size() == 1, "ops of this kind: ", found.size());
  return size_t(found[0]);
}

// The header's example: rank 1 receives the keys 0 and 2 of rank 0, and their values behind them.
TEST(ProgramRows, ReceivedAreThoseOfOtherRanks) {
  const BoundRank bound(dilated_attention(split(kProblem, 2)), 1);
  const ReceivedRows received = received_rows(*bound, only_op<AllGather>(bound));
  ASSERT_EQ(received.rows.size(), 2u);
  EXPECT_EQ(received.rows[0].tensor, Tensor::kKey);
  EXPECT_EQ(received.rows[1].tensor, Tensor::kValue);
  for (const FillRows& rows : received.rows) {
    EXPECT_EQ(rows.first_token, 0);
    EXPECT_EQ(rows.token_step, 2);
    EXPECT_EQ(rows.rows, 2);
  }
  constexpr int64_t kRowBytes = 8 * 2;
  EXPECT_EQ(received.bytes, 2 * 2 * kRowBytes);
  EXPECT_EQ(static_cast<std::byte*>(received.rows[1].out),
            static_cast<std::byte*>(received.rows[0].out) + 2 * kRowBytes);
}

// A row comes from its name alone: the digests of shards add up to that of the whole.
TEST(ProgramRows, DigestsOfShardsAddUp) {
  const auto worker = make_cpu_row_worker();
  AttentionProblem problem = kProblem;
  problem.batch = 2;
  const auto digest = [&](int ranks, Rank rank, Pass pass, int64_t first_batch = 0) {
    const BoundRank bound(ring_attention(split(problem, ranks), pass), rank, first_batch);
    const uint64_t filled = fill_inputs(*bound, *worker);
    EXPECT_EQ(digest_inputs(*bound, *worker), filled);
    return filled;
  };
  for (const Pass pass : {Pass::kForward, Pass::kBackward})
    EXPECT_EQ(digest(3, 0, pass) + digest(3, 1, pass) + digest(3, 2, pass), digest(1, 0, pass));
  EXPECT_NE(digest(1, 0, Pass::kForward), digest(1, 0, Pass::kBackward));  // dO as well
  EXPECT_NE(digest(1, 0, Pass::kForward), digest(1, 0, Pass::kForward, 2));
}

TEST(ProgramRows, PoisonLeavesNothingButTheInputs) {
  const auto worker = make_cpu_row_worker();
  const BoundRank bound(ring_attention(split(kProblem, 2), Pass::kBackward), 1);
  const uint64_t filled = fill_inputs(*bound, *worker);
  poison(*bound, *worker);
  EXPECT_EQ(digest_inputs(*bound, *worker), filled);
  EXPECT_FALSE(written_memory(*bound).empty());
  for (const std::span<std::byte> bytes : written_memory(*bound))
    EXPECT_THAT(bytes, Each(std::byte{0xFF}));
  for (const auto& gradient : {Tensor::kQuery, Tensor::kKey, Tensor::kValue})
    EXPECT_TRUE(std::isnan(gradient_row(*bound, gradient, 0, 0, 4)[0]));
}

// Rank 1 of two has the tokens 4 to 7; its program's batch of two begins at sequence 3.
TEST(ProgramRows, RowsAreFoundBySequenceAndToken) {
  AttentionProblem problem = kProblem;
  problem.batch = 2;
  problem.num_heads = problem.num_kv_heads = 3;
  const BoundRank bound(ring_attention(split(problem, 2), Pass::kForwardBackward), 1, 3);
  EXPECT_FALSE(has_row(*bound, 2, 5));
  EXPECT_TRUE(has_row(*bound, 3, 4));
  EXPECT_TRUE(has_row(*bound, 4, 7));
  EXPECT_FALSE(has_row(*bound, 4, 3));
  EXPECT_FALSE(has_row(*bound, 5, 5));

  const auto number = [&](const std::span<const float> row, int slot) {
    return (row.data() - reinterpret_cast<const float*>(bound->memory(slot).data())) / 8;
  };
  constexpr int64_t kRows = 2 * 4 * 3;           // [batch][token of the shard][head]
  constexpr int64_t kRow = (1 * 4 + 2) * 3 + 1;  // sequence 1, token 6, head 1
  EXPECT_EQ(number(output_row(*bound, 1, 1, 6), kOutputSlot), kRow);
  EXPECT_EQ(number(gradient_row(*bound, Tensor::kQuery, 1, 1, 6), kGradQuerySlot), kRow);
  EXPECT_EQ(number(gradient_row(*bound, Tensor::kKey, 1, 1, 6), kGradKvSlot), kRow);
  EXPECT_EQ(number(gradient_row(*bound, Tensor::kValue, 1, 1, 6), kGradKvSlot), kRows + kRow);
  EXPECT_THROW(output_row(*bound, 0, 0, 3), Error);
}

}  // namespace
}  // namespace longnet
