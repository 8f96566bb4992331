#include "execute/tolerances.h"

#include <gtest/gtest.h>

namespace longnet {
namespace {

TEST(Tolerances, PowersOf16BitsAllowMore) {
  const ShardedProblem s{{.seq_len = 1024}, dense_pattern(1024), {1024, 1}};
  EXPECT_EQ(output_tolerance(false, 0, false).rel_l2, 0);  // judge() takes check_tolerance
  EXPECT_EQ(output_tolerance(false, 1e-3, false).rel_l2, 1e-3);
  EXPECT_EQ(output_tolerance(true, 0, false).rel_l2, 4e-3);
  EXPECT_EQ(output_tolerance(true, 0, true).rel_l2, 4e-3 + 1.0 / 256);
  EXPECT_EQ(output_tolerance(true, 1e-3, true).rel_l2, 1e-3);
  EXPECT_GT(output_tolerance(true, 0, false).lse, output_tolerance(false, 0, false).lse);
  EXPECT_EQ(gradient_tolerance(false, s, 0), 2 * check_tolerance(s));
  EXPECT_EQ(gradient_tolerance(true, s, 0), 5e-3);
  EXPECT_EQ(gradient_tolerance(true, s, 1e-2), 1e-2);
  EXPECT_EQ(law_tolerance(false, s), 1e-6);
  EXPECT_EQ(law_tolerance(true, s), 1e-2 / 32);
}

}  // namespace
}  // namespace longnet
