// Matrices and the comparison of model kernels, for their tests.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/random.h"
#include "kernels/cpu/machine_peak.h"
#include "kernels/testing/attend_case.h"
#include "kernels/testing/reference_model_kernel.h"

namespace longnet {

// A matrix of normal numbers with a gap behind each row, which must stay as it is.
class Values {
 public:
  Values(int64_t rows, int64_t cols, uint64_t seed, int64_t gap = 3, DType dtype = DType::kFloat32)
      : rows_(rows), cols_(cols), stride_(cols + gap), dtype_(dtype) {
    bytes_.resize(size_t(rows * stride_ * dtype_bytes(dtype)));
    const int64_t numbers = rows * stride_;
    for (int64_t at = 0; at < numbers; at += 4) {
      const PhiloxBlock block = row_words({seed, Tensor::kQuery, 0, 0}, at / 4);
      for (int64_t i = 0; i < std::min<int64_t>(4, numbers - at); ++i)
        set(at + i, unit_normal_like(block.word[i]));
    }
  }
  Matrix matrix() { return {bytes_.data(), rows_, cols_, stride_, dtype_}; }
  float* floats() { return reinterpret_cast<float*>(bytes_.data()); }
  double at(int64_t i) const {
    float wide;
    uint16_t narrow;
    if (dtype_ == DType::kFloat32) {
      std::memcpy(&wide, bytes_.data() + 4 * i, 4);
      return double(wide);
    }
    std::memcpy(&narrow, bytes_.data() + 2 * i, 2);
    return double(bf16_value(narrow));
  }
  void set(int64_t i, float value) {
    const uint16_t narrow = bf16_bits(value);
    if (dtype_ == DType::kFloat32)
      std::memcpy(bytes_.data() + 4 * i, &value, 4);
    else
      std::memcpy(bytes_.data() + 2 * i, &narrow, 2);
  }
  int64_t size() const { return rows_ * stride_; }
  bool in_gap(int64_t i) const { return i % stride_ >= cols_; }
  bool operator==(const Values&) const = default;

 private:
  int64_t rows_, cols_, stride_;
  DType dtype_;
  std::vector<unsigned char> bytes_;  // which vectors compare as a whole
};

using Outputs = std::vector<Values>;

// || x - expected || / || expected ||; the numbers of gaps must be equal.
inline double relative_error(const Values& x, const Values& expected) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < x.size(); ++i) {
    if (x.in_gap(i)) {
      EXPECT_EQ(x.at(i), expected.at(i)) << "a number outside of the matrix, at " << i;
      continue;
    }
    const double wanted = expected.at(i), off = x.at(i) - wanted;
    difference += off * off;
    norm += wanted * wanted;
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

struct Call {
  const ModelKernel& kernel;
  int threads;
  std::span<std::byte> workspace;
  void run(const ModelTask& task) const { kernel.run(task, threads, workspace); }
};

// The cpu kernel against the reference, on every instruction set of the machine and on 1, 2 and 3
// threads, which must agree in every bit.
class ModelKernelTest : public testing::Test {
 protected:
  using Run = std::function<Outputs(const Call&)>;

  Outputs run(const ModelKernel& kernel, int threads, const Run& run) const {
    const PoisonedWorkspace workspace(kernel.workspace_bytes(threads));
    return run({kernel, threads, workspace.bytes()});
  }
  Outputs expected(const Run& body) const { return run(*reference_, 1, body); }

  void expect_like_reference(const std::string& what, const Run& body, double tolerance = 1e-6) {
    const Outputs reference = expected(body);
    for (const std::string& target : simd_targets()) {
      const ScopedSimdTarget use(target);
      const Outputs one = run(*cpu_, 1, body);
      for (size_t i = 0; i < one.size(); ++i)
        EXPECT_LE(relative_error(one[i], reference[i]), tolerance)
            << what << ", output " << i << ", " << target;
      for (const int threads : {2, 3})
        EXPECT_TRUE(run(*cpu_, threads, body) == one) << what << ", " << threads << " threads";
    }
  }

  const std::unique_ptr<ModelKernel> cpu_ = make_cpu_model_kernel();
  const std::unique_ptr<ModelKernel> reference_ = make_reference_model_kernel();
};

}  // namespace longnet
