// Tests the rounding errors of long sums: the reason for the levels of summation in attend_simd.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "core/check.h"
#include "core/random.h"
#include "kernels/attention_kernel.h"
#include "kernels/reference/row_oracle.h"
#include "kernels/testing/cpu_kernels.h"

namespace longnet {
namespace {

struct Accuracy {
  double o_error;    // ||O - oracle|| / ||oracle||
  double lse_error;  // largest |LSE - oracle|
};

// A few rows of Q against `keys` distinct normal-like keys, fp32 storage.
class LongRows {
 public:
  LongRows(int64_t head_dim, int64_t keys) : d_(head_dim), keys_(keys) {
    q_ = rows(Tensor::kQuery, kRows);
    k_ = rows(Tensor::kKey, keys);
    v_ = rows(Tensor::kValue, keys);
    for (int64_t i = 0; i < kRows; ++i) {
      RowOracle oracle({q_.data() + i * d_, size_t(d_)});
      for (int64_t j = 0; j < keys; ++j) oracle.add_key(k_.data() + j * d_, v_.data() + j * d_);
      expected_.push_back(oracle.finish());
    }
  }

  Accuracy measure(const AttentionKernel& kernel) const {
    const AttendOptions options{.head_dim = d_};
    const KvRun kv{.k = k_.data(), .v = v_.data(), .row_stride = d_, .rows = keys_};
    std::vector<float> o(size_t(kRows * d_)), lse(kRows);
    const AttendGrid task{
        {.q = {.q = q_.data(), .row_stride = d_, .rows = kRows},
         .kv = {&kv, 1},
         .out = {.o = o.data(), .lse = lse.data(), .o_stride = d_, .lse_stride = 1}}};
    const size_t bytes = size_t(kernel.workspace_bytes(options, 1));
    auto* workspace = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64}));
    kernel.attend({&task, 1}, options, 1, {workspace, bytes});
    ::operator delete (workspace, std::align_val_t{64});

    double difference = 0, norm = 0, lse_error = 0;
    for (size_t i = 0; i < kRows; ++i) {
      for (size_t c = 0; c < size_t(d_); ++c) {
        const double expected = expected_[i].o[c], error = o[i * size_t(d_) + c] - expected;
        difference += error * error;
        norm += expected * expected;
      }
      lse_error = std::max(lse_error, std::fabs(lse[i] - expected_[i].lse));
    }
    return {std::sqrt(difference / norm), lse_error};
  }

 private:
  static constexpr int64_t kRows = 7;

  std::vector<float> rows(Tensor tensor, int64_t count) const {
    std::vector<float> x(size_t(count * d_));
    for (int64_t i = 0; i < count; ++i) {
      generate_row({.seed = 5, .tensor = tensor, .token = i, .head = 0}, d_, x.data() + i * d_);
    }
    return x;
  }

  int64_t d_, keys_;
  std::vector<float> q_, k_, v_;
  std::vector<RowOracle::Row> expected_;
};

void expect_accuracy(int64_t head_dim, int64_t keys, double bound) {
  const LongRows rows(head_dim, keys);
  on_every_target([&](const AttentionKernel& kernel) {
    const Accuracy accuracy = rows.measure(kernel);
    EXPECT_LE(accuracy.o_error, bound);
    EXPECT_LE(accuracy.lse_error, 2e-6);  // LSE near 14: one unit in the last place is 1e-6
    testing::Test::RecordProperty(concat(kernel.name(), "_", simd_target()),
                                  concat(accuracy.o_error * 1e6, "e-6"));
  });
}

TEST(AccuracyTest, SixtyFourThousandKeys) { expect_accuracy(64, 65536, 1e-6); }
TEST(AccuracyTest, WideHead) { expect_accuracy(128, 16384, 1e-6); }
TEST(AccuracyTest, AMillionKeys) { expect_accuracy(64, 1 << 20, 5e-6); }  // 512 MB of K and V

}  // namespace
}  // namespace longnet
