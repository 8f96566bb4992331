#include "run/walk_point.h"

#include <gtest/gtest.h>

#include "core/check.h"
#include "run/testing/points.h"

namespace longnet {
namespace {

PointPlan walk_plan(int64_t at_once, double share = 1) {
  PointPlan plan = small_plan("ring", 4);
  plan.point.params.mode = Mode::kVirtual;
  plan.batches_at_once = at_once;
  plan.share = share;
  return plan;
}

TEST(WalkUnits, EveryRankForEveryPartOfTheBatch) {
  const UnitPlan all = plan_units(walk_plan(1), {});
  ASSERT_EQ(all.units.size(), 8u);
  EXPECT_EQ(all.units[0], (WalkUnit{0, 0, 1}));
  EXPECT_EQ(all.units[7], (WalkUnit{3, 1, 1}));
  EXPECT_EQ(all.flops, all.all_flops);
  const UnitPlan some = plan_units(walk_plan(2), {1, 3});
  ASSERT_EQ(some.units.size(), 2u);
  EXPECT_EQ(some.units[1], (WalkUnit{3, 0, 2}));
  EXPECT_EQ(some.flops, all.flops / 2);
}

TEST(WalkUnits, AShareIsSpreadEvenly) {
  const UnitPlan part = plan_units(walk_plan(1, 0.3), {});  // 2.4 of 8 units
  ASSERT_EQ(part.units.size(), 3u);
  EXPECT_DOUBLE_EQ(part.unit_share, 0.8);
  EXPECT_EQ(part.units[0].rank, 1);
  EXPECT_EQ(part.units[2], (WalkUnit{2, 1, 1}));
}

TEST(WalkUnits, AJournalBelongsToOnePlan) {
  const PointPlan plan = walk_plan(1);
  const UnitPlan all = plan_units(plan, {}), one = plan_units(plan, {2});
  EXPECT_NE(text_of(all, plan, 2, {}), text_of(one, plan, 2, {}));
  EXPECT_NE(text_of(all, plan, 2, {}), text_of(all, plan, 1, {}));
  EXPECT_NE(text_of(all, plan, 2, {}), text_of(all, plan, 2, {.max_queries = 100}));
  EXPECT_TRUE(text_of(all, plan, 2, {}).ends_with("ranks all"));
  EXPECT_TRUE(text_of(one, plan, 2, {}).ends_with("ranks 2"));
}

TEST(WalkUnits, RanksOfAReplay) {
  EXPECT_EQ(parse_ranks("17,0,17,3"), (std::vector<Rank>{0, 3, 17}));
  EXPECT_TRUE(parse_ranks("").empty());
  EXPECT_THROW(parse_ranks("1,x"), UsageError);
  EXPECT_THROW(parse_ranks("-1"), UsageError);
}

}  // namespace
}  // namespace longnet
