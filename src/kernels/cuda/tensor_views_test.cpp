#include "kernels/cuda/tensor_views.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace longnet {
namespace {

constexpr int64_t kDim = 64;

// Query runs of a branch (w, r) over [tokens][heads][head_dim].
std::vector<RowRun> branch(const uint16_t* q, int64_t tokens, int64_t heads, int64_t w, int64_t r) {
  std::vector<RowRun> runs;
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t begin = 0; begin < tokens; begin += w) {
      const int64_t offset = head % r, rows = (w - offset + r - 1) / r;
      if (rows > 0)
        runs.push_back({q + ((begin + offset) * heads + head) * kDim, rows, r * heads * kDim});
    }
  return runs;
}

void expect_places(const std::vector<RowRun>& runs, const TensorViews& found) {
  ASSERT_EQ(found.places.size(), runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    const ViewPlace& place = found.places[i];
    const TensorView& view = found.views.at(size_t(place.view));
    const auto* at = static_cast<const uint16_t*>(view.base.first);
    for (int k = 0; k < 3; ++k) {
      ASSERT_LT(place.at[k], view.count[k]);
      at += place.at[k] * view.step[k];
      EXPECT_EQ(view.step[k] * 2 % 16, 0);
    }
    EXPECT_EQ(at, runs[i].first);
    EXPECT_EQ(view.base.rows, runs[i].rows);
    EXPECT_EQ(view.base.row_stride, runs[i].row_stride);
  }
}

TEST(TensorViewsTest, ABranchIsOneView) {
  const std::vector<uint16_t> q(8);  // addresses only
  for (const int64_t heads : {1, 4, 12, 16})
    for (const int64_t r : {1, 2, 4, 16, 64}) {
      const auto runs = branch(q.data(), 8 * 2048, heads, 2048, r);
      const TensorViews found = tensor_views(runs);
      EXPECT_EQ(found.views.size(), 1u) << "heads " << heads << " r " << r;
      expect_places(runs, found);
    }
}

TEST(TensorViewsTest, UnequalRowCountsAreSeparateViews) {  // w mod r != 0
  const std::vector<uint16_t> q(8);
  const auto runs = branch(q.data(), 8 * 100, 12, 100, 6);
  const TensorViews found = tensor_views(runs);
  EXPECT_EQ(found.views.size(), 2u);  // offsets 0..3 have 17 rows, 4 and 5 have 16
  expect_places(runs, found);
}

TEST(TensorViewsTest, HeadsThatShareKeysShareTheirPlace) {
  const std::vector<uint16_t> k(8);
  std::vector<RowRun> runs = branch(k.data(), 4096, 4, 2048, 1);
  runs.insert(runs.end(), runs.begin(), runs.end());
  runs.reserve(16);
  const TensorViews found = tensor_views(runs);
  EXPECT_EQ(found.views.size(), 1u);
  EXPECT_EQ(found.views[0].count[0] * found.views[0].count[1] * found.views[0].count[2], 8);
  expect_places(runs, found);
}

TEST(TensorViewsTest, AnyRunsInAnyOrder) {
  const std::vector<uint16_t> data(8);
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    std::vector<RowRun> runs;
    for (int i = 0; i < 40; ++i)
      runs.push_back({data.data() + int64_t(random() % 60) * 8 * 64, int64_t(1 + random() % 2),
                      int64_t(64 * (1 + random() % 2))});
    expect_places(runs, tensor_views(runs));
  }
}

TEST(TensorViewsTest, StridesBeyondATensorMapAreNotJoined) {
  const auto* const base = reinterpret_cast<const uint16_t*>(uintptr_t{1} << 20);
  const std::vector<RowRun> runs{{base, 4, 64}, {base + (int64_t{1} << 40), 4, 64}};
  EXPECT_EQ(tensor_views(runs).views.size(), 2u);
  const std::vector<RowRun> odd{{base, 4, 64}, {base + 4, 4, 64}};  // 8 bytes apart
  EXPECT_EQ(tensor_views(odd).views.size(), 2u);
}

}  // namespace
}  // namespace longnet
