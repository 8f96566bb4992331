// Between which sizes a table of kernel speeds is read, and beyond which it guesses.
#include "simulate/kernel_table.h"

#include <gtest/gtest.h>

namespace longnet {
namespace {

TEST(KernelTable, CoversWhatItsRowsEnclose) {
  KernelTable t;
  for (const double d : {128.0, 64.0})  // in any order
    for (const double keys : {4096.0, 1024.0}) t.add(keys, d, 1);
  for (const double d : {64.0, 100.0, 128.0}) {
    for (const double keys : {1024.0, 2000.0, 4096.0}) EXPECT_TRUE(t.covers(keys, d));
    for (const double keys : {1000.0, 4100.0}) {
      EXPECT_FALSE(t.covers(keys, d));
      EXPECT_EQ(t.covers(keys, d, /*longer=*/true), keys > 4096);
    }
  }
  for (const double d : {32.0, 256.0}) EXPECT_FALSE(t.covers(2000, d));
  t.add(2048, 192, 1);  // 160 lies between heads of which one has no such keys
  EXPECT_TRUE(t.covers(2048, 160));
  EXPECT_FALSE(t.covers(2000, 160));
}

}  // namespace
}  // namespace longnet
