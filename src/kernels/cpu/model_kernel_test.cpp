// The cpu model kernel against the reference, on every instruction set of the machine and on 1, 2
// and 3 threads, which must agree in every bit. The reference's gradients against central
// differences.
#include "kernels/model_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <new>
#include <numeric>
#include <random>

#include "core/random.h"
#include "core/testing/test_support.h"
#include "kernels/cpu/machine_peak.h"

namespace longnet {
namespace {

// A matrix of normal numbers with a gap behind each row, which must stay as it is.
class Values {
 public:
  Values(int64_t rows, int64_t cols, uint64_t seed, int64_t gap = 3, DType dtype = DType::kFloat32)
      : rows_(rows), cols_(cols), stride_(cols + gap), dtype_(dtype) {
    bytes_.resize(size_t(rows * stride_ * dtype_bytes(dtype)));
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t at = 0; at < rows * stride_; ++at) set(at, normal(random));
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
  std::vector<std::byte> bytes_;
};

using Outputs = std::vector<Values>;

// || x - expected || / || expected ||; the numbers of gaps must be equal.
double relative_error(const Values& x, const Values& expected) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < x.size(); ++i) {
    if (x.in_gap(i)) {
      EXPECT_EQ(x.at(i), expected.at(i)) << "a number outside of the matrix, at " << i;
      continue;
    }
    difference += std::pow(x.at(i) - expected.at(i), 2);
    norm += std::pow(expected.at(i), 2);
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

class Workspace {
 public:
  explicit Workspace(int64_t bytes)
      : bytes_{static_cast<std::byte*>(::operator new (size_t(bytes), std::align_val_t{64})),
               size_t(bytes)} {
    std::memset(bytes_.data(), 0xFF, bytes_.size());  // NaN: any contents must do
  }
  ~Workspace() { ::operator delete (bytes_.data(), std::align_val_t{64}); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

struct Call {
  const ModelKernel& kernel;
  int threads;
  std::span<std::byte> workspace;
};

class ModelKernelTest : public testing::Test {
 protected:
  using Run = std::function<Outputs(const Call&)>;

  Outputs run(const ModelKernel& kernel, int threads, const Run& run) const {
    const Workspace workspace(kernel.workspace_bytes(threads));
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

struct GemmCase {
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  DType a = DType::kFloat32, b = DType::kFloat32, c = DType::kFloat32;
};

Outputs run_gemm(const GemmCase& g, const Call& call) {
  Values a = g.transpose_a ? Values(g.k, g.m, 1, 5, g.a) : Values(g.m, g.k, 1, 5, g.a);
  Values b = g.transpose_b ? Values(g.n, g.k, 2, 2, g.b) : Values(g.k, g.n, 2, 2, g.b);
  Values c(g.m, g.n, 3, 7, g.c), bias(1, g.n, 4, 0);
  const GemmTask task{a.matrix(),
                      b.matrix(),
                      c.matrix(),
                      g.transpose_a,
                      g.transpose_b,
                      g.accumulate,
                      g.bias ? bias.floats() : nullptr};
  call.kernel.gemm(task, call.threads, call.workspace);
  return {c};
}

std::string name_of(const GemmCase& g) {
  return concat(g.m, " x ", g.n, " x ", g.k, g.transpose_a ? " T" : " N", g.transpose_b ? "T" : "N",
                g.accumulate ? " accumulate" : "", g.bias ? " bias" : "", " ", to_string(g.a), " ",
                to_string(g.b), " ", to_string(g.c));
}

// All four transpositions of one case, with each of: plain, bias, accumulate.
std::vector<GemmCase> all_ways(GemmCase g) {
  std::vector<GemmCase> cases;
  for (int way = 0; way < 12; ++way) {
    g.transpose_a = way % 2 != 0;
    g.transpose_b = way / 2 % 2 != 0;
    g.bias = way / 4 == 1;
    g.accumulate = way / 4 == 2;
    cases.push_back(g);
  }
  return cases;
}

TEST_F(ModelKernelTest, GemmOfOddShapes) {
  for (const GemmCase shape : std::initializer_list<GemmCase>{{1, 1, 1},
                                                              {5, 3, 2},
                                                              {7, 17, 33},
                                                              {6, 64, 16},
                                                              {13, 65, 70},
                                                              {49, 127, 9},
                                                              {100, 30, 257},
                                                              {3, 520, 300},
                                                              {50, 40, 600}})
    for (const GemmCase& g : all_ways(shape))
      expect_like_reference(name_of(g), [&](const Call& call) { return run_gemm(g, call); });
}

TEST_F(ModelKernelTest, GemmOfSeveralBlocks) {  // of 960 rows and 512 columns
  for (const GemmCase& g : all_ways({1000, 20, 20}))
    expect_like_reference(name_of(g), [&](const Call& call) { return run_gemm(g, call); });
  for (const GemmCase& g : all_ways({60, 1100, 12}))
    expect_like_reference(name_of(g), [&](const Call& call) { return run_gemm(g, call); });
}

TEST_F(ModelKernelTest, GemmOfEmptyMatrices) {
  for (const GemmCase shape : std::initializer_list<GemmCase>{{0, 5, 3}, {5, 0, 3}, {5, 20, 0}})
    for (const GemmCase& g : all_ways(shape))
      expect_like_reference(name_of(g), [&](const Call& call) { return run_gemm(g, call); });
}

TEST_F(ModelKernelTest, GemmOfBf16) {
  const DType fp32 = DType::kFloat32, bf16 = DType::kBFloat16;
  for (const DType a : {fp32, bf16})
    for (const DType b : {fp32, bf16})
      for (const DType c : {fp32, bf16})
        for (GemmCase g : all_ways({31, 45, 300})) {
          if (g.accumulate && c == bf16) continue;
          g.a = a, g.b = b, g.c = c;
          // Numbers that lie near a tie may be rounded to the other side.
          expect_like_reference(
              name_of(g), [&](const Call& call) { return run_gemm(g, call); },
              c == bf16 ? 3e-4 : 1e-6);
        }
}

TEST_F(ModelKernelTest, AddColumns) {
  for (const int64_t rows : {0, 1, 5, 64, 200})
    for (const int64_t cols : {1, 16, 33, 100, 2100})
      expect_like_reference(concat(rows, " x ", cols), [&](const Call& call) -> Outputs {
        Values x(rows, cols, 1), into(1, cols, 2);
        call.kernel.add_columns(x.matrix(), into.floats(), call.threads, call.workspace);
        return {into};
      });
}

TEST_F(ModelKernelTest, LayerNorm) {
  for (const bool in_place : {false, true})
    for (const int64_t cols : {1, 8, 37, 192, 770})
      expect_like_reference(concat(cols, " columns"), [&](const Call& call) -> Outputs {
        Values x(90, cols, 1), y = x, gain(1, cols, 3), bias(1, cols, 4);
        call.kernel.layer_norm({.x = in_place ? y.matrix() : x.matrix(),
                                .y = y.matrix(),
                                .gain = gain.floats(),
                                .bias = bias.floats()},
                               call.threads);
        return {x, y};
      });
}

TEST_F(ModelKernelTest, LayerNormBackward) {
  for (const int way : {0, 1, 2})  // plain, accumulating, in the place of grad_y
    for (const int64_t rows : {1, 90, 4500})
      for (const int64_t cols : {8, 37, 768}) {
        if (rows * cols > 1000000) continue;
        expect_like_reference(
            concat(rows, " x ", cols, ", way ", way),
            [&](const Call& call) -> Outputs {
              Values x(rows, cols, 1), grad_y(rows, cols, 2, 1), grad_x(rows, cols, 3, 9);
              Values gain(1, cols, 4), grad_gain(1, cols, 5), grad_bias(1, cols, 6);
              call.kernel.layer_norm_backward(
                  {.x = x.matrix(),
                   .grad_y = grad_y.matrix(),
                   .grad_x = way == 2 ? grad_y.matrix() : grad_x.matrix(),
                   .gain = gain.floats(),
                   .grad_gain = grad_gain.floats(),
                   .grad_bias = grad_bias.floats(),
                   .accumulate = way == 1},
                  call.threads, call.workspace);
              return {grad_y, grad_x, grad_gain, grad_bias};
            },
            2e-6);
      }
}

TEST_F(ModelKernelTest, Gelu) {
  for (const bool in_place : {false, true})
    for (const int64_t cols : {1, 16, 37, 3072})
      expect_like_reference(concat(cols, " columns"), [&](const Call& call) -> Outputs {
        Values x(30, cols, 1), y(30, cols, 2), grad(30, cols, 3);
        if (in_place) y = x;
        call.kernel.gelu(in_place ? y.matrix() : x.matrix(), y.matrix(), call.threads);
        Values grad_x = grad;
        call.kernel.gelu_backward(x.matrix(), in_place ? grad_x.matrix() : grad.matrix(),
                                  grad_x.matrix(), call.threads);
        return {y, grad_x};
      });
}

// Each number alone: errors in the tail, where gelu(x) is tiny, would not show in a norm.
TEST_F(ModelKernelTest, GeluOfEachNumber) {
  constexpr int64_t kNumbers = 4001;
  const auto body = [&](const Call& call) -> Outputs {
    Values x(1, kNumbers, 1, 0), one(1, kNumbers, 1, 0);
    for (int64_t i = 0; i < kNumbers; ++i) x.set(i, float(i - 2000) * 0.01f), one.set(i, 1.0f);
    Values y = x, slope = x;
    call.kernel.gelu(x.matrix(), y.matrix(), 1);
    call.kernel.gelu_backward(x.matrix(), one.matrix(), slope.matrix(), 1);
    return {x, y, slope};
  };
  const Outputs reference = expected(body);
  for (const std::string& target : simd_targets()) {
    const ScopedSimdTarget use(target);
    const Outputs result = run(*cpu_, 1, body);
    for (int64_t i = 0; i < kNumbers; ++i) {
      const double x = reference[0].at(i), y = reference[1].at(i), slope = reference[2].at(i);
      // exp(-x^2 / 2) of a rounded x^2 is off by x^2 / 2 roundings.
      const double relative = 5e-7 + 1e-7 * x * x;
      EXPECT_NEAR(result[1].at(i), y, std::fabs(y) * relative + 1e-37) << target << ", x = " << x;
      EXPECT_NEAR(result[2].at(i), slope, 3e-7) << target << ", x = " << x;
    }
  }
}

TEST_F(ModelKernelTest, Rotate) {
  for (const int64_t d : {8, 24, 64, 256})
    for (const double xpos_scale : {0.0, 512.0})
      for (const int way : {0, 1, 2, 3})
        expect_like_reference(
            concat("head_dim ", d, " scale ", xpos_scale, " way ", way),
            [&](const Call& call) -> Outputs {
              Values x(150, 3 * d, 1);
              call.kernel.rotate({.x = x.matrix(),
                                  .positions = {1000000, 7, 150},
                                  .head_dim = d,
                                  .xpos_scale = xpos_scale,
                                  .xpos_centre = 1000500,
                                  .negative_power = way % 2 != 0,
                                  .inverse_angle = way / 2 != 0},
                                 call.threads);
              return {x};
            },
            2e-7);
}

TEST_F(ModelKernelTest, Add) {
  for (const int64_t cols : {1, 16, 37, 3072})
    expect_like_reference(concat(cols, " columns"), [&](const Call& call) -> Outputs {
      Values x(70, cols, 1), y(70, cols, 2, 6);
      call.kernel.add(x.matrix(), y.matrix(), call.threads);
      return {x, y};
    });
}

TEST_F(ModelKernelTest, Embed) {
  for (const int64_t cols : {1, 16, 37, 200})
    expect_like_reference(concat(cols, " columns"), [&](const Call& call) -> Outputs {
      std::vector<int32_t> tokens(300);
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(i * i % 19);
      Values table(19, cols, 1), y(300, cols, 2, 5), grad_table(19, cols, 3, 1);
      call.kernel.embed(tokens.data(), table.matrix(), y.matrix(), call.threads);
      Values grad_y(300, cols, 4, 2);
      call.kernel.embed_backward(tokens.data(), grad_y.matrix(), grad_table.matrix(), call.threads);
      return {y, grad_table};
    });
}

TEST_F(ModelKernelTest, CrossEntropy) {
  for (const int64_t rows : {1, 300})
    for (const int64_t cols : {1, 15, 16, 100, 256, 9000}) {
      if (rows * cols > 1000000) continue;
      expect_like_reference(concat(rows, " x ", cols), [&](const Call& call) -> Outputs {
        Values logits(rows, cols, 1), loss(1, 2, 1, 0);
        std::vector<int32_t> targets(size_t(rows), 0);
        for (int64_t i = 0; i < rows; ++i)
          targets[size_t(i)] = i % 5 == 3 ? -1 : int32_t(i * 7 % cols);
        for (int64_t i = 0; i < rows * (cols + 3); ++i) logits.set(i, 5 * float(logits.at(i)));
        const double sum =
            call.kernel.cross_entropy({logits.matrix(), targets.data(), 0.125f}, call.threads);
        loss.set(0, float(sum)), loss.set(1, float(sum - double(float(sum))));  // both halves
        return {logits, loss};
      });
    }
}

TEST_F(ModelKernelTest, CrossEntropyOfLargeLogits) {  // exp would overflow
  Values logits(1, 40, 1, 0);
  for (int64_t i = 0; i < 40; ++i) logits.set(i, i == 7 ? 1e4f : -1e4f);
  const int32_t target = 7;
  EXPECT_EQ(cpu_->cross_entropy({logits.matrix(), &target}, 1), 0);
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(logits.at(i), 0);
}

TEST_F(ModelKernelTest, Update) {
  for (const int64_t count : {0, 1, 37, 100000})
    for (const int64_t step : {1, 1000})
      expect_like_reference(concat(count, " weights, step ", step),
                            [&](const Call& call) -> Outputs {
                              Values w(1, count, 1), m(1, count, 2), v(1, count, 3), g(1, count, 4);
                              for (int64_t i = 0; i < count; ++i)
                                v.set(i, float(v.at(i) * v.at(i)));
                              call.kernel.update({.weights = w.floats(),
                                                  .first_moment = m.floats(),
                                                  .second_moment = v.floats(),
                                                  .gradient = g.floats(),
                                                  .count = count,
                                                  .learning_rate = 0.01,
                                                  .decay = 0.1,
                                                  .gradient_scale = 0.3,
                                                  .step = step},
                                                 call.threads);
                              return {w, m, v};
                            });
}

TEST_F(ModelKernelTest, SumOfSquares) {
  for (const int64_t count : {0, 1, 1000, 100001}) {
    Values x(1, count, 1, 0);
    const std::span<const float> numbers{x.floats(), size_t(count)};
    const double expected_sum = reference_->sum_of_squares(numbers, 1);
    for (const std::string& target : simd_targets()) {
      const ScopedSimdTarget use(target);
      const double one = cpu_->sum_of_squares(numbers, 1);
      EXPECT_NEAR(one, expected_sum, 1e-12 * expected_sum) << target;
      for (const int threads : {2, 3}) EXPECT_EQ(cpu_->sum_of_squares(numbers, threads), one);
    }
  }
}

TEST_F(ModelKernelTest, RefusesWhatDoesNotFit) {
  Values x(4, 8, 1), y(4, 9, 2), narrow(4, 8, 3, 0, DType::kBFloat16);
  const int32_t tokens[] = {0, 1, 2, 4};
  for (const ModelKernel* kernel : {cpu_.get(), reference_.get()}) {
    const Workspace workspace(kernel->workspace_bytes(1));
    EXPECT_THROW(kernel->add(x.matrix(), y.matrix(), 1), Error);
    EXPECT_THROW(kernel->gelu(x.matrix(), narrow.matrix(), 1), Error);
    EXPECT_THROW(kernel->embed(tokens, x.matrix(), x.matrix(), 1), Error);
    EXPECT_THROW(kernel->cross_entropy({narrow.matrix(), tokens}, 1), Error);
    EXPECT_THROW(
        kernel->gemm({.a = x.matrix(), .b = x.matrix(), .c = x.matrix()}, 1, workspace.bytes()),
        Error);
    EXPECT_THROW(kernel->gemm({.a = x.matrix(),
                               .b = x.matrix(),
                               .c = narrow.matrix().columns_from(0, 4),
                               .transpose_b = true,
                               .accumulate = true},
                              1, workspace.bytes()),
                 Error);
  }
  EXPECT_THROW(cpu_->gemm({.a = x.matrix(),
                           .b = x.matrix(),
                           .c = y.matrix().columns_from(0, 4),
                           .transpose_b = true},
                          1, {}),
               Error);
}

// ---- gradients: of the sum of weight * output, by differences of fourth order ----

class GradientTest : public ModelKernelTest {
 protected:
  static constexpr int64_t kRows = 5, kCols = 24;

  static double dot(const Values& a, const Values& b) {
    double sum = 0;
    for (int64_t i = 0; i < a.size(); ++i) sum += a.in_gap(i) ? 0 : a.at(i) * b.at(i);
    return sum;
  }

  // Gradient of loss(x) at each number of x against those of `gradient`.
  void expect_gradient(Values& x, const Values& gradient, const std::function<double()>& loss) {
    Values difference = gradient;
    for (int64_t i = 0; i < x.size(); ++i) {
      if (x.in_gap(i)) continue;
      const float middle = float(x.at(i)), h = 0.03125f;
      const auto loss_at = [&](float step) { return x.set(i, middle + step), loss(); };
      const double wide = loss_at(2 * h) - loss_at(-2 * h), near = loss_at(h) - loss_at(-h);
      difference.set(i, float((8 * near - wide) / (12 * double(h))));
      x.set(i, middle);
    }
    EXPECT_LE(relative_error(difference, gradient), 5e-5);
  }

  const Values weight_{kRows, kCols, 9, 0};
};

TEST_F(GradientTest, LayerNorm) {
  Values x(kRows, kCols, 1, 0), gain(1, kCols, 2, 0), bias(1, kCols, 3, 0), grad_y = weight_;
  Values grad_x = x, grad_gain(1, kCols, 0, 0), grad_bias = grad_gain;
  for (int64_t i = 0; i < kCols; ++i) grad_gain.set(i, 0), grad_bias.set(i, 0);
  reference_->layer_norm_backward({.x = x.matrix(),
                                   .grad_y = grad_y.matrix(),
                                   .grad_x = grad_x.matrix(),
                                   .gain = gain.floats(),
                                   .grad_gain = grad_gain.floats(),
                                   .grad_bias = grad_bias.floats()},
                                  1, {});
  const auto loss = [&] {
    Values y = x;
    reference_->layer_norm(
        {.x = x.matrix(), .y = y.matrix(), .gain = gain.floats(), .bias = bias.floats()}, 1);
    return dot(y, weight_);
  };
  expect_gradient(x, grad_x, loss);
  expect_gradient(gain, grad_gain, loss);
  expect_gradient(bias, grad_bias, loss);
}

TEST_F(GradientTest, Gelu) {
  Values x(kRows, kCols, 1, 0), grad_y = weight_, grad_x = x;
  reference_->gelu_backward(x.matrix(), grad_y.matrix(), grad_x.matrix(), 1);
  expect_gradient(x, grad_x, [&] {
    Values y = x;
    reference_->gelu(x.matrix(), y.matrix(), 1);
    return dot(y, weight_);
  });
}

TEST_F(GradientTest, Rotate) {
  Values x(kRows, kCols, 1, 0), grad_x = weight_;
  RotateTask task{
      .x = {}, .positions = {5, 3, kRows}, .head_dim = 8, .xpos_scale = 20, .xpos_centre = 7};
  const auto rotate = [&](Values& values, bool inverse) {
    task.x = values.matrix(), task.inverse_angle = inverse;
    reference_->rotate(task, 1);
  };
  rotate(grad_x, true);
  expect_gradient(x, grad_x, [&] {
    Values y = x;
    rotate(y, false);
    return dot(y, weight_);
  });
}

TEST_F(GradientTest, Embed) {
  const int32_t tokens[kRows] = {1, 0, 1, 3, 1};
  Values table(4, kCols, 1, 0), grad_y = weight_, grad_table = table;
  for (int64_t i = 0; i < table.size(); ++i) grad_table.set(i, 0);
  reference_->embed_backward(tokens, grad_y.matrix(), grad_table.matrix(), 1);
  expect_gradient(table, grad_table, [&] {
    Values y = weight_;
    reference_->embed(tokens, table.matrix(), y.matrix(), 1);
    return dot(y, weight_);
  });
}

TEST_F(GradientTest, CrossEntropy) {
  const int32_t targets[kRows] = {3, 0, -1, kCols - 1, 7};
  Values logits(kRows, kCols, 1, 0), gradient = logits;
  const auto loss_of = [&](Values& values) {
    return reference_->cross_entropy({values.matrix(), targets, 0.5f}, 1);
  };
  loss_of(gradient);
  expect_gradient(logits, gradient, [&] {
    Values copy = logits;
    return 0.5 * loss_of(copy);
  });
}

}  // namespace
}  // namespace longnet
