// Tests merge, add, pack and fill of every kernel.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/random.h"
#include "kernels/attention_kernel.h"
#include "kernels/testing/attend_case.h"

namespace longnet {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

class MergePackTest : public testing::TestWithParam<std::string> {
 protected:
  AttendResult merged(AttendResult into, const AttendResult& from, MergeRule rule = MergeRule::kLse,
                      int threads = 1) const {
    const int64_t rows = int64_t(into.lse.size()), d = int64_t(into.o.size()) / rows;
    AttendResult copy = from;
    const MergeTask task{.from = {copy.o.data(), copy.lse.data(), d, 1},
                         .into = {into.o.data(), into.lse.data(), d, 1},
                         .rows = rows};
    kernel_->merge({&task, 1}, rule, {.head_dim = d}, threads);
    EXPECT_EQ(copy, from);
    return into;
  }

  static AttendResult random_partial(uint64_t seed, int64_t rows = 700, int64_t d = 24) {
    AttendResult result{.o = std::vector<float>(size_t(rows * d)),
                        .lse = std::vector<float>(size_t(rows))};
    for (int64_t i = 0; i < rows; ++i) {
      float lse[4];
      generate_row({seed, Tensor::kQuery, i, 0}, d, result.o.data() + i * d);
      generate_row({seed, Tensor::kKey, i, 0}, 4, lse);
      result.lse[size_t(i)] = 5 * lse[0];
    }
    return result;
  }

  static AttendResult empty_partial(int64_t rows = 700, int64_t d = 24) {
    return {.o = std::vector<float>(size_t(rows * d)),
            .lse = std::vector<float>(size_t(rows), kMinusInfinity)};
  }

  const std::unique_ptr<AttentionKernel> kernel_ = make_kernel(GetParam());
};

TEST_P(MergePackTest, MergeOfHalvesIsAttentionToAll) {
  const AttendSpec both{.causal = true,
                        .q = {.rows = 30, .first_token = 20},
                        .kv = {{.rows = 40}, {.rows = 30, .first_token = 30}}};
  // Both cases have the rows of `both`: run i is generated from seeds 2 i + 2 and 2 i + 3.
  AttendSpec first = both, second = both;
  first.kv[1].rows = 0;
  second.kv[0].rows = 0;
  const AttendResult whole = AttendCase(both).run(*kernel_);
  const AttendResult halves =
      merged(AttendCase(first).run(*kernel_), AttendCase(second).run(*kernel_));
  EXPECT_LE(relative_error(halves, whole), 1e-6);
  EXPECT_LE(lse_error(halves, whole), 1e-5);
}

TEST_P(MergePackTest, EmptyIsTheIdentity) {
  const AttendResult x = random_partial(1), empty = empty_partial();
  EXPECT_EQ(merged(x, empty), x);
  EXPECT_EQ(merged(empty, x), x);
  EXPECT_EQ(merged(empty, empty), empty);
  EXPECT_EQ(merged(empty, empty, MergeRule::kSum), empty);
  EXPECT_EQ(merged(x, empty, MergeRule::kSum), x);
}

TEST_P(MergePackTest, AssociativeAndCommutative) {
  const AttendResult a = random_partial(1), b = random_partial(2), c = random_partial(3);
  const AttendResult left = merged(merged(a, b), c), right = merged(a, merged(b, c));
  EXPECT_LE(relative_error(left, right), 1e-6);
  EXPECT_LE(lse_error(left, right), 1e-5);
  EXPECT_LE(relative_error(merged(a, b), merged(b, a)), 1e-6);
  EXPECT_LE(lse_error(merged(a, b), merged(b, a)), 1e-5);
}

TEST_P(MergePackTest, HugeLseDoesNotOverflow) {
  AttendResult a = random_partial(1, 1, 8), b = random_partial(2, 1, 8);
  a.lse[0] = 30000.0f;
  b.lse[0] = -30000.0f;
  EXPECT_EQ(merged(a, b), a);
  EXPECT_EQ(merged(b, a), a);
  b.lse[0] = 30000.0f;
  EXPECT_FLOAT_EQ(merged(a, b).lse[0], 30000.0f + std::log(2.0f));
  EXPECT_FLOAT_EQ(merged(a, b).o[3], (a.o[3] + b.o[3]) / 2);
}

TEST_P(MergePackTest, SumAddsOutputsAndMergesLse) {
  const AttendResult a = random_partial(1), b = random_partial(2);
  const AttendResult sum = merged(a, b, MergeRule::kSum);
  EXPECT_EQ(sum.lse, merged(a, b).lse);
  for (size_t i = 0; i < a.o.size(); ++i) EXPECT_FLOAT_EQ(sum.o[i], a.o[i] + b.o[i]);
}

TEST_P(MergePackTest, SameBitsOnAnyThreads) {
  const AttendResult a = random_partial(1), b = random_partial(2);
  for (const int threads : {2, 3}) {
    EXPECT_EQ(merged(a, b, MergeRule::kLse, threads), merged(a, b)) << threads;
  }
}

TEST_P(MergePackTest, StridedMergeTouchesItsRowsOnly) {
  const AttendResult from = random_partial(1, 3, 8);
  std::vector<float> o(3 * 11, 7.0f),
      lse = {kMinusInfinity, 7, kMinusInfinity, 7, kMinusInfinity, 7};
  std::vector<float> from_o = from.o, from_lse = from.lse;
  for (size_t i = 0; i < 3; ++i) std::fill_n(o.begin() + std::ptrdiff_t(i * 11), 8, 0.0f);
  const MergeTask task{.from = {from_o.data(), from_lse.data(), 8, 1},
                       .into = {o.data(), lse.data(), 11, 2},
                       .rows = 3};
  kernel_->merge({&task, 1}, MergeRule::kLse, {.head_dim = 8}, 1);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t c = 0; c < 11; ++c) EXPECT_EQ(o[i * 11 + c], c < 8 ? from.o[i * 8 + c] : 7.0f);
    EXPECT_EQ(lse[2 * i], from.lse[i]);
    EXPECT_EQ(lse[2 * i + 1], 7.0f);
  }
}

// Strided rows, element by element in fp32, whatever the storage type, and piece after piece.
TEST_P(MergePackTest, AddsRowsOnAnyThreads) {
  constexpr int64_t kDim = 24, kRows = 1030, kFrom = 29, kInto = 26, kPieces = 3;
  constexpr int64_t kPiece = kRows * kFrom + 7;
  std::vector<float> from(kPieces * kPiece), before(kRows * kInto);
  for (size_t i = 0; i < from.size(); ++i) from[i] = float(i % 1000) * 0.1f;
  for (size_t i = 0; i < before.size(); ++i) before[i] = float(i % 777) * 1e-3f;
  for (const int threads : {1, 2, 3}) {
    std::vector<float> into = before;
    const SumTask tasks[] = {{{from.data(), into.data(), kFrom, kInto, 0}},
                             {{from.data(), into.data(), kFrom, kInto, kRows}, kPieces, kPiece}};
    kernel_->add(tasks, {.head_dim = kDim, .dtype = DType::kBFloat16}, threads);
    for (int64_t i = 0; i < kRows; ++i)
      for (int64_t c = 0; c < kInto; ++c) {
        float sum = before[size_t(i * kInto + c)];
        for (int64_t piece = 0; piece < kPieces && c < kDim; ++piece)
          sum += from[size_t(piece * kPiece + i * kFrom + c)];
        ASSERT_EQ(into[size_t(i * kInto + c)], sum) << i;
      }
  }
}

TEST_P(MergePackTest, FillsRangesOnAnyThreads) {
  for (const float value : {kMinusInfinity, 0.0f})
    for (const int threads : {1, 2}) {
      std::vector<float> values(3 << 18, 1.0f);
      const std::span<float> all(values);
      const std::span<float> ranges[] = {all.subspan(5, (2 << 18) - 1), all.subspan(7, 0),
                                         all.last(9)};
      kernel_->fill(ranges, value, threads);
      EXPECT_EQ(std::ranges::count(values, value), (2 << 18) - 1 + 9);
      EXPECT_EQ(std::ranges::count(values, 1.0f), (1 << 18) + 1 - 9);
      EXPECT_EQ(values[4], 1.0f);
      EXPECT_EQ(values[5 + (2 << 18) - 1], 1.0f);
    }
}

template <class Storage>
void expect_pack(const AttentionKernel& kernel, DType dtype, int threads) {
  constexpr int64_t kDim = 24, kRows = 1030, kFrom = 29, kInto = 26;
  std::vector<Storage> from(kRows * kFrom), into(kRows * kInto, Storage(9));
  for (size_t i = 0; i < from.size(); ++i) from[i] = Storage(i % 1000);
  const PackTask tasks[] = {{from.data(), into.data(), kFrom, kInto, 0},
                            {from.data(), into.data(), kFrom, kInto, kRows}};
  kernel.pack(tasks, Conversion::kNone, {.head_dim = kDim, .dtype = dtype}, threads);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t c = 0; c < kInto; ++c) {
      const Storage expected = c < kDim ? from[size_t(i * kFrom + c)] : Storage(9);
      ASSERT_EQ(into[size_t(i * kInto + c)], expected) << i << " " << c;
    }
  }
}

TEST_P(MergePackTest, PackCopiesRows) {
  for (const int threads : {1, 2}) {
    expect_pack<float>(*kernel_, DType::kFloat32, threads);
    expect_pack<uint16_t>(*kernel_, DType::kBFloat16, threads);
  }
}

// Strided rows of O to storage and back, bit for bit as bf16_bits says, ties and infinities too.
TEST_P(MergePackTest, RoundsToStorageAndWidens) {
  constexpr int64_t kRows = 700, kD = 24, kPitch = 40;
  std::vector<float> o(kRows * kPitch), back(kRows * kD, -1);
  for (int64_t i = 0; i < kRows; ++i)
    generate_row({7, Tensor::kValue, i, 0}, kPitch, o.data() + i * kPitch);
  o[0] = 1.00390625f, o[1] = 1.01171875f;  // halfway: to even, down and up
  o[2] = kMinusInfinity, o[3] = -0.0f;
  std::vector<uint16_t> stored(kRows * kD);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const AttendOptions options{.head_dim = kD, .dtype = dtype};
    const bool bf16 = dtype == DType::kBFloat16;
    std::vector<float> same(kRows * kD);
    void* const middle = bf16 ? static_cast<void*>(stored.data()) : same.data();
    const PackTask there{o.data(), middle, kPitch, kD, kRows};
    const PackTask again{middle, back.data(), kD, kD, kRows};
    kernel_->pack({&there, 1}, Conversion::kRound, options, 2);
    kernel_->pack({&again, 1}, Conversion::kWiden, options, 2);
    for (int64_t i = 0; i < kRows; ++i)
      for (int64_t c = 0; c < kD; ++c) {
        const float x = o[size_t(i * kPitch + c)];
        ASSERT_EQ(back[size_t(i * kD + c)], bf16 ? bf16_value(bf16_bits(x)) : x) << i << ' ' << c;
      }
  }
  EXPECT_EQ(bf16_value(stored[0]), 1.0f);
  EXPECT_EQ(bf16_value(stored[1]), 1.015625f);
}

INSTANTIATE_TEST_SUITE_P(Kernels, MergePackTest, testing::Values("reference", "cpu"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace longnet
