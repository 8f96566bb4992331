#include "core/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace longnet {
namespace {

TEST(Philox, KnownAnswers) {  // from the Random123 distribution, kat_vectors
  const auto zero = philox4x32_10({{0, 0, 0, 0}}, 0, 0);
  EXPECT_EQ(zero.word[0], 0x6627e8d5u);
  EXPECT_EQ(zero.word[1], 0xe169c58du);
  EXPECT_EQ(zero.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.word[3], 0x9b00dbd8u);
  const uint32_t f = 0xffffffffu;
  const auto ones = philox4x32_10({{f, f, f, f}}, f, f);
  EXPECT_EQ(ones.word[0], 0x408f276du);
  EXPECT_EQ(ones.word[1], 0x41c83b0eu);
  EXPECT_EQ(ones.word[2], 0xa20bc7c6u);
  EXPECT_EQ(ones.word[3], 0x6d5451fdu);
}

TEST(GenerateRow, IsNearlyUnitNormalAndDependsOnEveryPartOfItsKey) {
  std::vector<float> row(4096);
  generate_row({1, Tensor::kKey, 5, 2}, 4096, row.data());
  double mean = 0, square = 0;
  for (float x : row) mean += x, square += double(x) * x;
  EXPECT_NEAR(mean / 4096, 0, 0.06);
  EXPECT_NEAR(square / 4096, 1, 0.08);
  for (const RowKey& other :
       {RowKey{2, Tensor::kKey, 5, 2}, RowKey{1, Tensor::kValue, 5, 2},
        RowKey{1, Tensor::kKey, 5 + (int64_t{1} << 32), 2}, RowKey{1, Tensor::kKey, 5, 3}}) {
    std::vector<float> changed(4096);
    generate_row(other, 4096, changed.data());
    EXPECT_NE(row, changed);
  }
}

TEST(GenerateRow, Bf16IsTheRoundedFloat) {
  std::vector<float> row(256);
  std::vector<uint16_t> half(256);
  generate_row({7, Tensor::kQuery, 123456789012, 0}, 256, row.data());
  generate_row({7, Tensor::kQuery, 123456789012, 0}, 256, half.data());
  for (size_t i = 0; i < row.size(); ++i)
    EXPECT_LE(std::abs(bf16_value(half[i]) - row[i]), std::abs(row[i]) / 256);
  EXPECT_EQ(bf16_bits(1.00390625f), 0x3F80u);  // a tie goes to the even neighbour, down ...
  EXPECT_EQ(bf16_bits(1.01171875f), 0x3F82u);  // ... and up
}

}  // namespace
}  // namespace longnet
