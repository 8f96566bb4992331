// Gradients of the reference's model kernel against differences of fourth order, of the sum of
// weight * output.
#include <gtest/gtest.h>

#include "kernels/testing/model_case.h"
#include "kernels/testing/reference_model_kernel.h"

namespace longnet {
namespace {

class ModelGradientTest : public testing::Test {
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
  const std::unique_ptr<ModelKernel> reference_ = make_reference_model_kernel();
};

TEST_F(ModelGradientTest, LayerNorm) {
  Values x(kRows, kCols, 1, 0), gain(1, kCols, 2, 0), bias(1, kCols, 3, 0), grad_y = weight_;
  Values grad_x = x, grad_gain(1, kCols, 0, 0), grad_bias = grad_gain;
  for (int64_t i = 0; i < kCols; ++i) grad_gain.set(i, 0), grad_bias.set(i, 0);
  reference_->run(LayerNormBackwardTask{.x = x.matrix(),
                                        .grad_y = grad_y.matrix(),
                                        .grad_x = grad_x.matrix(),
                                        .gain = gain.floats(),
                                        .grad_gain = grad_gain.floats(),
                                        .grad_bias = grad_bias.floats()},
                  1);
  const auto loss = [&] {
    Values y = x;
    reference_->run(
        LayerNormTask{
            .x = x.matrix(), .y = y.matrix(), .gain = gain.floats(), .bias = bias.floats()},
        1);
    return dot(y, weight_);
  };
  expect_gradient(x, grad_x, loss);
  expect_gradient(gain, grad_gain, loss);
  expect_gradient(bias, grad_bias, loss);
}

TEST_F(ModelGradientTest, Gelu) {
  Values x(kRows, kCols, 1, 0), grad_y = weight_, grad_x = x;
  reference_->run(GeluBackwardTask{x.matrix(), grad_y.matrix(), grad_x.matrix()}, 1);
  expect_gradient(x, grad_x, [&] {
    Values y = x;
    reference_->run(GeluTask{x.matrix(), y.matrix()}, 1);
    return dot(y, weight_);
  });
}

TEST_F(ModelGradientTest, Rotate) {
  Values x(kRows, kCols, 1, 0), grad_x = weight_;
  RotateTask task{
      .x = {}, .positions = {5, 3, kRows}, .head_dim = 8, .xpos_scale = 20, .xpos_centre = 7};
  const auto rotate = [&](Values& values, bool inverse) {
    task.x = values.matrix(), task.inverse_angle = inverse;
    reference_->run(task, 1);
  };
  rotate(grad_x, true);
  expect_gradient(x, grad_x, [&] {
    Values y = x;
    rotate(y, false);
    return dot(y, weight_);
  });
}

TEST_F(ModelGradientTest, Embed) {
  const int32_t tokens[kRows] = {1, 0, 1, 3, 1};
  Values table(4, kCols, 1, 0), grad_y = weight_, grad_table = table;
  for (int64_t i = 0; i < table.size(); ++i) grad_table.set(i, 0);
  reference_->run(EmbedBackwardTask{tokens, grad_y.matrix(), grad_table.matrix()}, 1);
  expect_gradient(table, grad_table, [&] {
    Values y = weight_;
    reference_->run(EmbedTask{tokens, table.matrix(), y.matrix()}, 1);
    return dot(y, weight_);
  });
}

TEST_F(ModelGradientTest, CrossEntropy) {
  const int32_t targets[kRows] = {3, 0, -1, kCols - 1, 7};
  Values logits(kRows, kCols, 1, 0), gradient = logits;
  const auto loss_of = [&](Values& values) {
    double loss = 0;
    reference_->run(CrossEntropyTask{values.matrix(), targets, 0.5f, &loss}, 1);
    return loss;
  };
  loss_of(gradient);
  expect_gradient(logits, gradient, [&] {
    Values copy = logits;
    return 0.5 * loss_of(copy);
  });
}

}  // namespace
}  // namespace longnet
