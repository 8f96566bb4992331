// Sums of gradients that ranks share: which rows, how they add up, and what a walk keeps of them.
#include "execute/walk_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/check.h"
#include "execute/testing/bound_rank.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

using testing::Each;
using testing::ElementsAre;

// The header's example: N = 16, P = 4, branch {16, 4}.
Schedule example(int64_t batch = 1) {
  return lower_collectives(
      dilated_attention(
          {{.seq_len = 16, .num_heads = 1, .num_kv_heads = 1, .head_dim = 8, .batch = batch},
           {.branches = {{16, 4}}},
           {16, 4}},
          Pass::kBackward),
      parse_collective("native"));
}

// A row of dK of a token, all its values the same.
struct KeyRow {
  std::vector<float> values;
  FillRows rows;
  KeyRow(int64_t token, float value)
      : values(8, value),
        rows{.tensor = Tensor::kKey,
             .first_token = token,
             .rows = 1,
             .out = values.data(),
             .row_stride = 8} {}
};

// The first values of dK and of dV, by token.
std::map<int64_t, std::vector<float>> sums(const SharedGradients& shared) {
  std::map<int64_t, std::vector<float>> found;
  shared.for_each_rounded([&](const std::vector<FillRows>& rows) {
    for (const FillRows& row : rows)
      found[row.first_token].push_back(*static_cast<const float*>(row.out));
  });
  return found;
}

TEST(SharedGradients, AreTheKeysThatRanksExchange) {
  MemoryLedger ledger;
  const Schedule schedule = example();
  const SharedGradients shared(schedule, ledger);
  for (int64_t token = 0; token < 16; ++token)
    EXPECT_EQ(shared.has(0, token), token % 4 == 0) << token;
  // dK and dV of 8 doubles for four rows, and for as many keys by the definition.
  EXPECT_EQ(SharedGradients::bytes(schedule), (4 + 4) * 2 * 8 * 8);
  EXPECT_EQ(ledger.peak_bytes(SharedGradients::kTag), SharedGradients::bytes(schedule));

  const BoundRank rank(schedule, 2);
  const std::vector<FillRows> own = shared.rows_of(*rank);
  ASSERT_EQ(own.size(), 2u);
  EXPECT_EQ(own[0].first_token, 8);
  EXPECT_EQ(own[0].out, rank->memory(kGradKvSlot).data());
  EXPECT_NE(own[0].tensor, own[1].tensor);
}

TEST(SharedGradients, AddUpInDouble) {
  MemoryLedger ledger;
  SharedGradients shared(example(), ledger);
  const KeyRow large(4, 1e8F), one(4, 1), less(4, -1e8F);
  for (const KeyRow* row : {&large, &one, &less}) shared.add(std::span(&row->rows, 1));
  EXPECT_THAT(sums(shared)[4], ElementsAre(1, 0));  // 1e8 + 1 is 1e8 in fp32
  EXPECT_THAT(sums(shared)[8], ElementsAre(0, 0));
  const KeyRow own(5, 1);
  EXPECT_THROW(shared.add(std::span(&own.rows, 1)), Error);
  shared.clear();
  EXPECT_THAT(shared.memory(), Each(std::byte{0}));
}

// Tokens count through the whole batch: 52 is token 4 of sequence 3.
TEST(SharedGradients, AreOfSomeSequences) {
  MemoryLedger ledger;
  SharedGradients shared(example(2), ledger);
  shared.set_first_batch(2);
  const KeyRow row(52, 7);
  shared.add(std::span(&row.rows, 1));
  const auto found = sums(shared);
  EXPECT_EQ(found.size(), 8u);
  EXPECT_EQ(found.begin()->first, 32);
  EXPECT_THAT(found.at(52), ElementsAre(7, 0));
}

// The ranks of a sequence add to the same sums. virtual_walk_test.cpp has whole walks, of which the
// next sequence begins anew in the same memory.
TEST(WalkGradients, SumsAreOfAPartOfTheBatch) {
  MemoryLedger ledger;
  const Schedule schedule = example();
  WalkGradients gradients(schedule.sharded.problem, 1, ledger);
  const auto used = [&](const WalkUnit& unit) {
    const std::span<std::byte> bytes = gradients.sums_of(schedule, unit);
    return std::ranges::any_of(bytes, [](std::byte b) { return b != std::byte{0}; });
  };
  EXPECT_FALSE(used({.rank = 0, .first_batch = 1}));
  const KeyRow row(16 + 4, 7);
  gradients.add(std::span(&row.rows, 1));
  EXPECT_TRUE(used({.rank = 1, .first_batch = 1}));
  EXPECT_EQ(ledger.peak_bytes(SharedGradients::kTag), SharedGradients::bytes(schedule));
  gradients.sums_of(example(2), {.rank = 0, .first_batch = 0, .batches = 2});
  EXPECT_EQ(ledger.peak_bytes(SharedGradients::kTag), SharedGradients::bytes(example(2)));
}

}  // namespace
}  // namespace longnet
