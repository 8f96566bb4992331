#include "simulate/lanes.h"

#include <gtest/gtest.h>

namespace longnet {
namespace {

// One rank: copies in the second lane, and in the first one products, each of which waits for a
// copy, by its number, or for none (-1).
ProgramSet products_after_copies(int copies, const std::vector<int> &waits) {
  LooseProgram program;
  for (int i = 0; i < copies; ++i) program.add(OpKind::kPack, -1, 1);
  for (const int copy : waits)
    program.add(OpKind::kGemm, -1, 1, copy < 0 ? std::vector<int>{} : std::vector{copy});
  return pack_all({program}, ExecutionKind::kStreams);
}

TEST(Lanes, AnOpBeginsOnceTheLastOfItsWaitsIsOver) {
  const ProgramSet programs = products_after_copies(1, {0});
  Lanes lanes(programs, 1);
  Lane &products = lanes[0], &copies = lanes[1];
  EXPECT_FALSE(lanes.can_begin(products));
  ASSERT_TRUE(lanes.can_begin(copies));
  const uint32_t copy = lanes.take_op(copies);
  EXPECT_EQ(lanes.take_awake(), nullptr);
  lanes.complete(copies, copies.ops[copy], 3);
  EXPECT_EQ(lanes.take_awake(), &products);
  EXPECT_EQ(lanes.take_awake(), nullptr);
  EXPECT_TRUE(lanes.can_begin(products));
  EXPECT_EQ(lanes.ready_s(products), 3);
  EXPECT_EQ(copies.finish, 3);
}

// The last of 100 products is far ahead of the lane's next op when what it waits for ends.
TEST(Lanes, WaitsOfOpsFarAheadAreKept) {
  std::vector<int> waits(100, -1);
  waits[1] = 0;
  waits[99] = 1;
  const ProgramSet programs = products_after_copies(2, waits);
  Lanes lanes(programs, 1);
  Lane &products = lanes[0], &copies = lanes[1];
  for (const double end : {5, 7}) lanes.complete(copies, copies.ops[lanes.take_op(copies)], end);
  EXPECT_EQ(lanes.take_awake(), nullptr);  // the next op waits for nothing that has ended
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(lanes.can_begin(products)) << i;
    EXPECT_EQ(lanes.ready_s(products), i == 1 ? 5 : i == 99 ? 7 : 0) << i;
    lanes.take_op(products);
  }
}

TEST(Lanes, ALaneIsAwakeOnce) {
  const ProgramSet programs = products_after_copies(0, {-1, -1});
  Lanes lanes(programs, 1);
  lanes.wake(lanes[0]);
  lanes.wake(lanes[0]);
  EXPECT_EQ(lanes.take_awake(), &lanes[0]);
  EXPECT_EQ(lanes.take_awake(), nullptr);
}

}  // namespace
}  // namespace longnet
