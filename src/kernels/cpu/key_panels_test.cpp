#include "kernels/cpu/key_panels.h"

#include <gmock/gmock.h>

namespace longnet {
namespace {

using testing::ElementsAre;

TEST(VisibleRowsTest, CountsPositionsUpToTheToken) {
  EXPECT_EQ(visible_rows(3, 4, 3, 2), 0);  // positions 3, 7, 11
  EXPECT_EQ(visible_rows(3, 4, 3, 3), 1);
  EXPECT_EQ(visible_rows(3, 4, 3, 10), 2);
  EXPECT_EQ(visible_rows(3, 4, 3, 99), 3);
  EXPECT_EQ(visible_rows(3, 0, 1, 99), 1);  // one row needs no step
  EXPECT_EQ(visible_rows(3, 4, 0, 99), 0);
}

std::vector<int64_t> panel_sizes(std::span<const KvRun> runs, int64_t last_token,
                                 KeyRange range = {}) {
  KeyPanels panels(runs, 4, last_token, range);
  KeyPanel panel;
  std::vector<int64_t> sizes;
  while (panels.next(panel)) sizes.push_back(panel.keys);
  return sizes;
}

TEST(KeyPanelsTest, PanelsCrossTheBordersOfRuns) {
  const std::vector<float> rows(2000);
  const KvRun runs[] = {{.k = rows.data(), .v = rows.data(), .row_stride = 2, .rows = 100},
                        {},
                        {.k = rows.data() + 500,
                         .v = rows.data(),
                         .row_stride = 3,
                         .rows = 150,
                         .first_token = 1000,
                         .token_step = 10}};
  EXPECT_THAT(panel_sizes(runs, kAllTokens), ElementsAre(128, 122));
  EXPECT_THAT(panel_sizes(runs, 1000), ElementsAre(101));  // one key of the last run
  EXPECT_THAT(panel_sizes(runs, 9), ElementsAre(10));
  EXPECT_THAT(panel_sizes(runs, -1), ElementsAre());
  EXPECT_THAT(panel_sizes(runs, kAllTokens, {90, 240}),
              ElementsAre(128, 22));  // 10 of the first run
  EXPECT_THAT(panel_sizes(runs, 1020, {101, 240}), ElementsAre(2));
  EXPECT_THAT(panel_sizes(runs, 1020, {110, 240}), ElementsAre());

  KeyPanels panels(std::span<const KvRun>(runs), 4, kAllTokens);
  KeyPanel panel;
  ASSERT_TRUE(panels.next(panel));
  ASSERT_EQ(panel.num_segments, 2);
  EXPECT_EQ(panel.segments[1].begin, 100);
  EXPECT_EQ(panel.segments[1].keys, 28);
  EXPECT_EQ(panel.min_token, 0);
  EXPECT_EQ(panel.max_token, 1270);
  EXPECT_EQ(static_cast<const void*>(panel.k[99]), rows.data() + 2 * 99);
  EXPECT_EQ(static_cast<const void*>(panel.k[101]), rows.data() + 503);
  EXPECT_EQ(panel.visible_end(98), 99);
  EXPECT_EQ(panel.visible_end(1010), 102);
  EXPECT_EQ(panel.visible_end(5000), 128);
}

}  // namespace
}  // namespace longnet
