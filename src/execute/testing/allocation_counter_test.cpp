#include "execute/testing/allocation_counter.h"

#include <gtest/gtest.h>

namespace longnet {

TEST(AllocationCounter, Counts) {
  const int64_t before = allocations_so_far();
  auto* const p = new int(3);
  asm volatile("" : : "r"(p) : "memory");  // keep the pair from being optimised away
  delete p;
  EXPECT_EQ(allocations_so_far(), before + 1);
}

}  // namespace longnet
