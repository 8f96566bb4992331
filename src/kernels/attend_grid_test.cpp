#include "kernels/attend_grid.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/testing/packed_branch.h"

namespace longnet {
namespace {

// Addresses are only compared, never read.
const void* address(int64_t tensor) { return reinterpret_cast<const void*>(tensor << 40); }

PackedAttention packed(int64_t tokens, int64_t heads, int64_t kv_heads, bool compact = false) {
  PackedAttention p = unread_packed(tokens, heads, kv_heads);
  p.compact_results = compact;
  return p;
}

int64_t elements(int64_t tensor, const void* at, int64_t bytes) {
  return (static_cast<const std::byte*>(at) - static_cast<const std::byte*>(address(tensor))) /
         bytes;
}

// Each (segment, head) is one task, whose rows are where semantics of the packed layout put them.
void expect_every_task(const PackedAttention& p, int64_t w, int64_t r,
                       const std::vector<AttendGrid>& grids) {
  std::set<std::pair<int64_t, int64_t>> seen;
  for (const AttendGrid& grid : grids)
    for (int64_t i = 0; i < grid.size(); ++i) {
      const AttendTask task = grid.at(i);
      const int64_t q_row = elements(1, task.q.q, 2) / p.head_dim;
      const int64_t head = q_row % p.heads, token = q_row / p.heads;
      EXPECT_EQ(token % w, head % r);
      EXPECT_EQ(task.q.rows, (w - head % r + r - 1) / r);
      EXPECT_EQ(task.q.row_stride, r * p.heads * p.head_dim);
      ASSERT_EQ(task.kv.size(), 1u);
      const int64_t kv_row = token * p.kv_heads + head * p.kv_heads / p.heads;
      EXPECT_EQ(elements(2, task.kv[0].k, 2), kv_row * p.head_dim);
      EXPECT_EQ(elements(3, task.kv[0].v, 2), kv_row * p.head_dim);
      EXPECT_EQ(task.kv[0].first_token, task.q.first_token);
      if (!p.compact_results) {
        EXPECT_EQ(elements(4, task.out.o, 4), q_row * p.head_dim);
        EXPECT_EQ(elements(5, task.out.lse, 4), q_row);
      }
      EXPECT_TRUE(seen.insert({token / w, head}).second);
    }
  EXPECT_EQ(int64_t(seen.size()), p.tokens / w * p.heads);
}

TEST(AttendGridTest, ABranchIsFewGrids) {
  const struct {
    int64_t w, r, heads, kv_heads, segments;
    size_t grids;
  } cases[] = {{2048, 1, 12, 12, 8, 1}, {8192, 4, 12, 12, 8, 1}, {65536, 32, 12, 12, 4, 1},
               {4096, 2, 12, 12, 8, 1}, {2048, 1, 1, 1, 1, 1},   {2048, 1, 8, 2, 4, 1},
               {8192, 4, 10, 10, 2, 2},    // heads 0..7, and 8 and 9
               {16384, 6, 12, 12, 4, 4}};  // 2731 rows at offsets 0..3, 2730 at 4 and 5
  for (const auto& c : cases)
    for (const bool compact : {false, true}) {
      const PackedAttention p = packed(c.w * c.segments, c.heads, c.kv_heads, compact);
      KvLists lists;
      const auto grids = branch_grids(p, c.w, c.r, lists);
      if (!compact) {
        EXPECT_EQ(grids.size(), c.grids) << "w " << c.w << " r " << c.r << " H " << c.heads;
      }
      expect_every_task(p, c.w, c.r, grids);
    }
}

TEST(AttendGridTest, RowsOfAnUnequalTaskStayApart) {
  KvLists lists;
  auto grids = branch_grids(packed(4096, 4, 4), 2048, 1, lists);
  ASSERT_EQ(grids.size(), 1u);
  EXPECT_EQ(grids[0].count, (GridVector{2, 4, 1, 1}));
  AttendGrid shorter = grids[0];
  shorter.task.q.rows -= 1;
  shorter.task.q.q = address(6);
  EXPECT_FALSE(step_between(grids[0], shorter));
  EXPECT_FALSE(step_between(grids[0], grids[0]));  // no distance at all
}

TEST(AttendGridTest, RowsOfATask) {
  const KvRun run{.k = address(2), .v = address(3), .row_stride = 64, .rows = 100};
  const AttendTask task{.q = {address(1), 64, 100, 50, 4},
                        .kv = {&run, 1},
                        .out = {reinterpret_cast<float*>(int64_t{4} << 40),
                                reinterpret_cast<float*>(int64_t{5} << 40), 72, 2}};
  const AttendTask part = rows_of(task, 10, 20, 2);
  EXPECT_EQ(part.q.rows, 20);
  EXPECT_EQ(part.q.first_token, 90);
  EXPECT_EQ(elements(1, part.q.q, 2), 640);
  EXPECT_EQ(elements(4, part.out.o, 4), 720);
  EXPECT_EQ(elements(5, part.out.lse, 4), 20);
  EXPECT_EQ(part.kv[0].rows, 100);
}

}  // namespace
}  // namespace longnet
