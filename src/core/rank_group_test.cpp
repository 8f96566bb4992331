#include "core/rank_group.h"

#include <gtest/gtest.h>

#include <vector>

namespace longnet {
namespace {

std::vector<Rank> list(const RankGroup& g) {
  std::vector<Rank> out;
  for (int i = 0; i < g.count; ++i) out.push_back(g[i]);
  return out;
}

TEST(RankGroup, OrdersOfTheHeader) {
  EXPECT_EQ(list({.first = 8, .count = 4}), (std::vector<Rank>{8, 9, 10, 11}));
  EXPECT_EQ(list({.first = 8, .count = 4, .rotation = 1}), (std::vector<Rank>{9, 10, 11, 8}));
  EXPECT_EQ(list({.first = 0, .stride = 2, .count = 4, .inner_count = 2, .outer_stride = 1}),
            (std::vector<Rank>{0, 2, 1, 3}));
  EXPECT_EQ(list({.first = 0,
                  .stride = 2,
                  .count = 4,
                  .inner_count = 2,
                  .outer_stride = 1,
                  .inner_rotation = 1}),
            (std::vector<Rank>{2, 0, 3, 1}));
  const RankGroup same{.first = 8, .stride = 0, .count = 4};
  EXPECT_EQ(list(same), (std::vector<Rank>{8, 8, 8, 8}));
  EXPECT_EQ(same.index_of(8), 0);
  EXPECT_EQ(same.index_of(9), -1);
}

TEST(RankGroup, IndexIsTheInverse) {
  const std::vector<RankGroup> groups{
      {5, 1, 1},
      {3, 2, 4},
      {3, 2, 4, 0, 0, 3},
      {.first = 4, .stride = 4, .count = 12, .inner_count = 3, .outer_stride = 1},
      {.first = 4, .stride = 1, .count = 6, .inner_count = 3, .outer_stride = 8, .rotation = 2},
      {.first = 4,
       .stride = 4,
       .count = 12,
       .inner_count = 3,
       .outer_stride = 1,
       .rotation = 5,
       .inner_rotation = 2}};
  for (const RankGroup& g : groups) {
    const auto ranks = list(g);
    for (Rank r = 0; r < 40; ++r) {
      int expected = -1;
      for (int i = 0; i < g.count; ++i)
        if (ranks[size_t(i)] == r) expected = i;
      EXPECT_EQ(g.index_of(r), expected) << r;
    }
  }
}

}  // namespace
}  // namespace longnet
