// Tests that attends become few grids, whose tasks are those of the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "execute/bound_program.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

// A program bound to addresses that are never read.
class Bound {
 public:
  Bound(const Schedule& schedule, Rank rank) {
    RankProgram program = schedule.program(rank);
    BoundProgram::Memory memory;
    uintptr_t at = uintptr_t{1} << 40;
    for (const Slot& slot : program.slots) {
      memory.emplace_back(reinterpret_cast<std::byte*>(at), size_t(slot.bytes));
      at += uintptr_t{1} << 38;
    }
    bound_ = std::make_unique<BoundProgram>(schedule, std::move(program), BindOptions{.rank = rank},
                                            std::move(memory));
  }
  std::vector<std::vector<AttendGrid>> attends() const {
    std::vector<std::vector<AttendGrid>> all;
    for (size_t i = 0; i < bound_->program().ops.size(); ++i)
      if (!bound_->op(i).attends.empty()) all.push_back(bound_->op(i).attends);
    return all;
  }
  std::vector<BackwardGrid> backwards() const {
    std::vector<BackwardGrid> all;
    for (size_t i = 0; i < bound_->program().ops.size(); ++i)
      std::ranges::copy(bound_->op(i).backwards, std::back_inserter(all));
    return all;
  }
  const void* slot(int i) const { return bound_->memory(i).data(); }

 private:
  std::unique_ptr<BoundProgram> bound_;
};

AttentionProblem problem(int64_t seq_len, int64_t heads, int64_t batch = 1) {
  return {.seq_len = seq_len,
          .num_heads = heads,
          .num_kv_heads = heads,
          .head_dim = 64,
          .batch = batch,
          .dtype = DType::kBFloat16};
}

TEST(BindAttendTest, ABranchIsOneGridHoweverManySegments) {
  const int64_t n = int64_t{1} << 23;  // a shard of a billion-token run
  const DilatedPattern pattern{.branches = {{2048, 1}, {8192, 4}, {n, 4096}}};
  const Bound bound(dilated_attention({problem(n, 12), pattern, {n, 1}}), 0);
  const auto attends = bound.attends();
  ASSERT_EQ(attends.size(), 3u);
  ASSERT_EQ(attends[0].size(), 1u);
  EXPECT_EQ(attends[0][0].count, (GridVector{n / 2048, 12, 1, 1}));
  ASSERT_EQ(attends[1].size(), 1u);
  EXPECT_EQ(attends[1][0].count, (GridVector{n / 8192, 4, 3, 1}));
  ASSERT_EQ(attends[2].size(), 1u);
  EXPECT_EQ(attends[2][0].count, (GridVector{1, 12, 1, 1}));
}

TEST(BindAttendTest, SequencesOfABatchAreADimension) {
  const DilatedPattern pattern{.branches = {{256, 1}, {1024, 4}}};
  const Bound bound(dilated_attention({problem(4096, 12, 1000), pattern, {4096, 1}}), 0);
  const auto attends = bound.attends();
  ASSERT_EQ(attends.at(0).size(), 1u);
  EXPECT_EQ(attends[0][0].count, (GridVector{16, 12, 1, 1000}));
  ASSERT_EQ(attends.at(1).size(), 1u);
  EXPECT_EQ(attends[1][0].count, (GridVector{4, 4, 3, 1000}));
}

// Each selected (query, head) once, with the keys of its segment and no other.
TEST(BindAttendTest, TasksAreTheDefinitions) {
  const int64_t n = 1000, heads = 5;
  for (const DilatedBranch branch :
       {DilatedBranch{100, 1}, {100, 3}, {64, 7}, {300, 2}, {1000, 6}, {7, 9}}) {
    const ShardedProblem sharded{problem(n, heads, 3), {.branches = {branch}}, {n, 1}};
    const Bound bound(dilated_attention(sharded), 0);
    std::map<const void*, int> rows;
    int64_t pairs = 0;
    for (const auto& grids : bound.attends())
      for (const AttendGrid& grid : grids)
        for (int64_t t = 0; t < grid.size(); ++t) {
          const AttendTask task = grid.at(t);
          for (int64_t i = 0; i < task.q.rows; ++i)
            ++rows[static_cast<const uint16_t*>(task.q.q) + i * task.q.row_stride];
          for (const KvRun run : task.kv) pairs += run.rows * task.q.rows;
        }
    int64_t wanted_rows = 0, wanted_pairs = 0;
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t begin = 0; begin < n; begin += branch.segment_length) {
        int64_t selected = 0;
        for (int64_t t = begin; t < std::min(n, begin + branch.segment_length); ++t)
          selected += (t - begin) % branch.dilation_rate == h % branch.dilation_rate;
        wanted_rows += 3 * selected;
        wanted_pairs += 3 * selected * selected;
      }
    EXPECT_EQ(int64_t(rows.size()), wanted_rows);
    for (const auto& [row, times] : rows) EXPECT_EQ(times, 1);
    EXPECT_EQ(pairs, wanted_pairs);
  }
}

// Row i of Q's slot has its dO, dQ and statistics in row i of theirs.
TEST(BindAttendTest, WhatBelongsToAQueryIsTheRowOfItsNumber) {
  const DilatedPattern pattern{.branches = {{100, 1}, {300, 2}, {64, 7}}};
  const Bound bound(dilated_attention({problem(1000, 5, 3), pattern, {1000, 1}}, Pass::kBackward),
                    0);
  const auto grids = bound.backwards();
  ASSERT_GE(grids.size(), 3u);
  for (const BackwardGrid& grid : grids) {
    EXPECT_EQ(grid.attend.task.out.o, nullptr);
    for (int64_t t = 0; t < grid.size(); ++t) {
      const BackwardTask task = grid.at(t, 2);
      const int64_t row = bytes_between(bound.slot(kQuerySlot), task.q.q) / (64 * 2);
      EXPECT_EQ(bytes_between(bound.slot(kGradOutSlot), task.grad_out), row * 64 * 2);
      EXPECT_EQ(bytes_between(bound.slot(kGradQuerySlot), task.grad_q), row * 64 * 4);
      EXPECT_EQ(bytes_between(bound.slot(kStatisticsSlot), task.statistics), row * 2 * 4);
      EXPECT_EQ(task.statistics_stride, task.q.row_stride / 64 * 2);
    }
  }
}

}  // namespace
}  // namespace longnet
