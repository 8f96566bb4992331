#include "kernels/reference/row_oracle.h"

#include <gtest/gtest.h>

#include <cmath>

namespace longnet {
namespace {

TEST(RowOracleTest, NoKeyIsTheIdentityOfMerge) {
  const std::vector<float> q(8, 1.0f);
  const RowOracle::Row row = RowOracle(q).finish();
  EXPECT_EQ(row.lse, -INFINITY);
  EXPECT_EQ(row.o, std::vector<double>(8, 0.0));
}

// d = 4, q = (2, 0, 0, 0): scores are the first coordinates of the keys.
TEST(RowOracleTest, TwoKeysByHand) {
  const std::vector<float> q = {2, 0, 0, 0};
  const float k[2][4] = {{std::log(3.0f), 9, 9, 9}, {0, 7, 7, 7}};  // weights 3 : 1
  const float v[2][4] = {{4, 0, 0, 8}, {0, 4, 0, 0}};
  for (const int first : {0, 1}) {  // the order, and with it the running maximum, does not matter
    RowOracle oracle(q);
    oracle.add_key(k[first], v[first]);
    oracle.add_key(k[1 - first], v[1 - first]);
    const RowOracle::Row row = oracle.finish();
    EXPECT_NEAR(row.lse, std::log(4.0), 1e-7);
    EXPECT_NEAR(row.o[0], 3.0, 1e-6);
    EXPECT_NEAR(row.o[1], 1.0, 1e-6);
    EXPECT_EQ(row.o[2], 0.0);
    EXPECT_NEAR(row.o[3], 6.0, 1e-6);
  }
}

TEST(RowOracleTest, AKeyTwiceCountsTwice) {
  const std::vector<float> q = {1, 2, 3, 4};
  const float k[4] = {1, -1, 1, -1}, v[4] = {1, 2, 3, 4};
  RowOracle once(q), twice(q);
  once.add_key(k, v);
  twice.add_key(k, v);
  twice.add_key(k, v);
  EXPECT_EQ(once.finish().lse, -1.0);
  EXPECT_NEAR(twice.finish().lse, -1.0 + std::log(2.0), 1e-15);
  EXPECT_EQ(twice.finish().o, once.finish().o);
}

TEST(RowOracleTest, HugeScoresDoNotOverflow) {
  const std::vector<float> q = {1000, 0, 0, 0};
  const float k[3][4] = {{-1000}, {1000}, {1000}}, v[4] = {1, 1, 1, 1};
  RowOracle oracle(q);
  for (const auto& key : k) oracle.add_key(key, v);
  EXPECT_NEAR(oracle.finish().lse, 500000.0 + std::log(2.0), 1e-9);
  EXPECT_NEAR(oracle.finish().o[0], 1.0, 1e-15);
}

}  // namespace
}  // namespace longnet
