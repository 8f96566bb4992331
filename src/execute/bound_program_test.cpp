// Tests that the bytes and rows of a bound op are those that the op names; bind_attend_test.cpp has
// the tasks of attends.
#include "execute/bound_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "core/check.h"
#include "execute/testing/bound_rank.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

bool lies_in(const void* at, std::span<const std::byte> memory) {
  const auto* const byte = static_cast<const std::byte*>(at);
  return byte >= memory.data() && byte < memory.data() + memory.size();
}

ShardedProblem split(int64_t seq_len, int ranks, DilatedPattern pattern, int64_t heads = 1) {
  const AttentionProblem p{.seq_len = seq_len,
                           .num_heads = heads,
                           .num_kv_heads = heads,
                           .head_dim = 8,
                           .dtype = DType::kBFloat16};
  return {p, std::move(pattern), {seq_len, ranks}};
}

// 7 tokens on two ranks are 4 and 3, and a row of K and V has 2 * 8 * 2 bytes.
TEST(BoundProgramTest, AMessageIsTheBytesOfItsRows) {
  const Schedule ring = ring_attention(split(7, 2, dense_pattern(7)));
  for (const Rank rank : {0, 1}) {
    const BoundRank bound(ring, rank);
    const auto sends = bound.ops<Send>(), receives = bound.ops<Recv>();
    ASSERT_EQ(sends.size(), 1u);
    ASSERT_EQ(receives.size(), 1u);
    const BoundOp &send = bound->op(size_t(sends[0])), &receive = bound->op(size_t(receives[0]));
    EXPECT_EQ(send.peer, 1 - rank);
    EXPECT_EQ(send.from.data(), bound->memory(kKvSlot).data());
    EXPECT_EQ(std::ssize(send.from), (rank == 0 ? 4 : 3) * 32);
    EXPECT_EQ(receive.peer, 1 - rank);
    EXPECT_EQ(std::ssize(receive.into), (rank == 0 ? 3 : 4) * 32);
    EXPECT_FALSE(lies_in(receive.into.data(), bound->memory(kKvSlot)));
  }
}

TEST(BoundProgramTest, AGatherHasAPartOfEachMember) {
  const BoundRank bound(all_gather_attention(split(7, 3, dense_pattern(7))), 1);
  const auto gathers = bound.ops<AllGather>();
  ASSERT_EQ(gathers.size(), 1u);
  const BoundOp& gather = bound->op(size_t(gathers[0]));
  EXPECT_EQ(gather.group.count, 3);
  EXPECT_THAT(gather.into_counts, ElementsAre(3 * 32, 2 * 32, 2 * 32));
  EXPECT_EQ(std::ssize(gather.into), 7 * 32);
}

// The branch {16, 4} takes every fourth token of 16, head h from token h on; rank 0 has 8 of them.
// The K/V slot holds K of each token, a row a head, then V likewise.
TEST(BoundProgramTest, APackTakesTheRowsOfItsBranch) {
  const DilatedPattern pattern{.branches = {{4, 1}, {16, 4}}};
  const BoundRank bound(dilated_attention(split(16, 2, pattern, 4)), 0);
  const std::span<const std::byte> kv = bound->memory(kKvSlot);
  std::map<int64_t, int> taken;  // rows of the K/V slot
  int64_t packed = 0;
  for (const OpId op : bound.ops<Pack>())
    for (const PackTask& task : bound->op(size_t(op)).packs) {
      if (!lies_in(task.from, kv)) continue;
      const int64_t first = (static_cast<const std::byte*>(task.from) - kv.data()) / 16;
      EXPECT_EQ(task.from_stride, 4 * 4 * 8);
      EXPECT_EQ(task.into_stride, 8);
      EXPECT_FALSE(lies_in(task.into, kv));
      for (int64_t i = 0; i < task.rows; ++i) ++taken[first + 4 * 4 * i];
      packed += task.rows;
    }
  EXPECT_EQ(packed, 2 * 4 * 2);  // K and V of 2 tokens of 4 heads
  for (const auto& [row, times] : taken) {
    const int64_t token = row / 4 % 8, head = row % 4;
    EXPECT_EQ(token % 4, head) << "row " << row;
    EXPECT_EQ(times, 1) << "row " << row;
  }
  EXPECT_EQ(std::ssize(taken), packed);
}

// The ring attends to the rows that came into a partial, and folds it into the output: at once, if
// the kernel can.
TEST(BoundProgramTest, AFusedAttendWritesWhereItsMergeWould) {
  const BoundRank bound(ring_attention(split(8, 2, dense_pattern(8))), 0);
  const std::span<const std::byte> output = bound->memory(kOutputSlot);
  const auto merges = bound.ops<Merge>();
  ASSERT_EQ(merges.size(), 1u);
  const OpId attend = bound.ops<Attend>().back(), merge = merges[0];
  const BoundOp &apart = bound->op(size_t(attend)), &folded = bound->op(size_t(merge));
  EXPECT_FALSE(lies_in(apart.attends.at(0).task.out.o, output));
  EXPECT_EQ(folded.merges.at(0).from.o, apart.attends[0].task.out.o);
  const std::optional<BoundOp> fused = bound->bind_fused(attend, merge);
  ASSERT_TRUE(fused.has_value());
  EXPECT_EQ(fused->attends.at(0).task.out.o, folded.merges[0].into.o);
  EXPECT_EQ(fused->attends[0].task.out.lse, folded.merges[0].into.lse);
  EXPECT_EQ(fused->attends[0].task.q.rows, folded.merges[0].rows);
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(BoundProgramTest, MemoryIsCutToItsSlotsAndRefusedBelow) {
  const Schedule local = find_algorithm("local").make(split(8, 1, dense_pattern(8)));
  std::vector<std::byte> block(4096);
  const auto bind = [&](size_t blocks, size_t bytes) {
    return BoundProgram(local, local.program(0), {},
                        BoundProgram::Memory(blocks, std::span(block).first(bytes)));
  };
  EXPECT_EQ(std::ssize(bind(3, 4096).memory(kQuerySlot)), 8 * 8 * 2);
  EXPECT_THAT(refusal([&] { bind(2, 4096); }), HasSubstr("blocks of memory: 2, slots: 3"));
  EXPECT_THAT(refusal([&] { bind(3, 127); }), HasSubstr("slot 0 needs 128 bytes, has 127"));
}

TEST(BoundProgramTest, AnotherProgramTakesEachBlockOnce) {
  const BoundRank bound(find_algorithm("local").make(split(8, 1, dense_pattern(8))), 0);
  std::vector<int64_t> bytes;
  for (const Slot& slot : bound->program().slots) bytes.push_back(slot.bytes);
  ASSERT_THAT(bytes, ElementsAre(128, 256, 288));  // Q, K and V, O and LSE
  const auto blocks_of = [&](std::vector<Slot> slots) {
    std::vector<const std::byte*> at;
    for (const auto block : bound->memory_for({.slots = std::move(slots), .ops = {}}))
      at.push_back(block.data());
    return at;
  };
  const Slot q = bound->program().slots[0], kv = bound->program().slots[1];
  const std::byte* const second = bound->memory(1).data();
  const std::byte* const third = bound->memory(2).data();
  EXPECT_THAT(blocks_of({kv, kv}), ElementsAre(second, third));
  EXPECT_THAT(blocks_of({q, q, q}), ElementsAre(bound->memory(0).data(), second, third));
  EXPECT_THAT(refusal([&] { blocks_of({kv, kv, kv}); }), HasSubstr("no memory for slot 2"));
}

TEST(BoundProgramTest, WhatCannotBeBoundIsRefused) {
  const ShardedProblem s = split(8, 2, {.branches = {{4, 1}, {8, 2}}});
  EXPECT_THAT(refusal([&] { const BoundRank whole(dilated_attention(s, Pass::kBackward), 0); }),
              HasSubstr("a reduce_scatter must be lowered before it runs"));
  const SlotView own{kQuerySlot, {kEveryRow, {.first = 0}, s.all_tokens(), s.all_heads()}};
  const RowMap map(s, TensorKind::kQuery, own.rows);
  EXPECT_EQ(piece_of(map, own, 0, 0).rows, 4);
  EXPECT_THAT(refusal([&] { piece_of(map, own, 1, 0); }), HasSubstr("no rows of rank 1"));
}

}  // namespace
}  // namespace longnet
