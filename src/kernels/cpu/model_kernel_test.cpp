// Row-wise functions, loss and update of the cpu model kernel against those of the reference.
#include <gtest/gtest.h>

#include "core/check.h"
#include "kernels/testing/model_case.h"

namespace longnet {
namespace {

TEST_F(ModelKernelTest, AddColumns) {
  for (const int64_t rows : {0, 1, 5, 64, 200})
    for (const int64_t cols : {1, 16, 33, 100, 2100})
      expect_like_reference(concat(rows, " x ", cols), [&](const Call& call) -> Outputs {
        Values x(rows, cols, 1), into(1, cols, 2);
        call.run(AddColumnsTask{x.matrix(), into.floats()});
        return {into};
      });
}

TEST_F(ModelKernelTest, LayerNorm) {
  for (const bool in_place : {false, true})
    for (const int64_t cols : {1, 8, 37, 192, 770})
      expect_like_reference(concat(cols, " columns"), [&](const Call& call) -> Outputs {
        Values x(90, cols, 1), y = x, gain(1, cols, 3), bias(1, cols, 4);
        call.run(LayerNormTask{.x = in_place ? y.matrix() : x.matrix(),
                               .y = y.matrix(),
                               .gain = gain.floats(),
                               .bias = bias.floats()});
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
              call.run(LayerNormBackwardTask{.x = x.matrix(),
                                             .grad_y = grad_y.matrix(),
                                             .grad_x = way == 2 ? grad_y.matrix() : grad_x.matrix(),
                                             .gain = gain.floats(),
                                             .grad_gain = grad_gain.floats(),
                                             .grad_bias = grad_bias.floats(),
                                             .accumulate = way == 1});
              return {grad_y, grad_x, grad_gain, grad_bias};
            },
            2e-6);
      }
}

// Columns in parts, with moments and sums of all of them: the same as in one place.
TEST_F(ModelKernelTest, LayerNormOfColumnsInParts) {
  constexpr int64_t kRows = 70;
  for (const int64_t parts : {2, 3})
    for (const int64_t part : {8, 37}) {
      const auto norms = [&](const Call& call, bool in_parts) -> Outputs {
        const int64_t cols = parts * part, pieces = in_parts ? parts : 1, width = cols / pieces;
        Values x(kRows, cols, 1), y(kRows, cols, 2), grad(kRows, cols, 3), gain(1, cols, 4, 0),
            bias(1, cols, 5, 0), grad_gain(1, cols, 6, 0), grad_bias(1, cols, 7, 0);
        std::vector<float> moments(size_t(2 * kRows * pieces)), sums(moments.size());
        const RowParts all{moments.data(), in_parts ? pieces : 0, 2 * kRows};
        const auto task_of = [&](int64_t p) -> LayerNormBackwardTask {
          const Matrix g = grad.matrix().columns_from(p * width, width);
          return {.x = x.matrix().columns_from(p * width, width),
                  .grad_y = g,
                  .grad_x = g,
                  .gain = gain.floats() + p * width,
                  .grad_gain = grad_gain.floats() + p * width,
                  .grad_bias = grad_bias.floats() + p * width,
                  .moments = all};
        };
        for (int64_t p = 0; p < pieces; ++p)
          call.run(RowMomentsTask{task_of(p).x, &moments[size_t(2 * kRows * p)]});
        for (int64_t p = 0; p < pieces; ++p) {
          const LayerNormBackwardTask task = task_of(p);
          call.run(LayerNormTask{.x = task.x,
                                 .y = y.matrix().columns_from(p * width, width),
                                 .gain = task.gain,
                                 .bias = bias.floats() + p * width,
                                 .moments = all});
          call.run(LayerNormSumsTask{.x = task.x,
                                     .grad_y = task.grad_y,
                                     .gain = task.gain,
                                     .moments = all,
                                     .into = &sums[size_t(2 * kRows * p)]});
        }
        for (int64_t p = 0; p < pieces; ++p) {
          LayerNormBackwardTask task = task_of(p);
          if (in_parts) task.sums = {sums.data(), pieces, 2 * kRows};
          call.run(task);
        }
        return {y, grad, grad_gain, grad_bias};
      };
      expect_like_reference(
          concat(parts, " x ", part), [&](const Call& call) { return norms(call, true); }, 2e-6);
      const Outputs whole = expected([&](const Call& call) { return norms(call, false); });
      const Outputs split = run(*cpu_, 2, [&](const Call& call) { return norms(call, true); });
      for (size_t i = 0; i < whole.size(); ++i)
        EXPECT_LE(relative_error(split[i], whole[i]), 2e-6) << parts << " x " << part << ", " << i;
    }
}

TEST_F(ModelKernelTest, Gelu) {
  for (const bool in_place : {false, true})
    for (const int64_t cols : {1, 16, 37, 3072})
      expect_like_reference(concat(cols, " columns"), [&](const Call& call) -> Outputs {
        Values x(30, cols, 1), y(30, cols, 2), grad(30, cols, 3);
        if (in_place) y = x;
        call.run(GeluTask{in_place ? y.matrix() : x.matrix(), y.matrix()});
        Values grad_x = grad;
        call.run(GeluBackwardTask{x.matrix(), in_place ? grad_x.matrix() : grad.matrix(),
                                  grad_x.matrix()});
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
    call.run(GeluTask{x.matrix(), y.matrix()});
    call.run(GeluBackwardTask{x.matrix(), one.matrix(), slope.matrix()});
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
              call.run(RotateTask{.x = x.matrix(),
                                  .positions = {1000000, 7, 150},
                                  .head_dim = d,
                                  .xpos_scale = xpos_scale,
                                  .xpos_centre = 1000500,
                                  .negative_power = way % 2 != 0,
                                  .inverse_angle = way / 2 != 0});
              return {x};
            },
            2e-7);
}

TEST_F(ModelKernelTest, Add) {
  for (const int64_t cols : {1, 16, 37, 3072})
    expect_like_reference(concat(cols, " columns"), [&](const Call& call) -> Outputs {
      Values x(70, cols, 1), y(70, cols, 2, 6);
      call.run(AddTask{x.matrix(), y.matrix()});
      return {x, y};
    });
}

TEST_F(ModelKernelTest, Embed) {
  for (const int64_t cols : {1, 16, 37, 200})
    expect_like_reference(concat(cols, " columns"), [&](const Call& call) -> Outputs {
      std::vector<int32_t> tokens(300);
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(i * i % 19);
      Values table(19, cols, 1), y(300, cols, 2, 5), grad_table(19, cols, 3, 1);
      call.run(EmbedTask{tokens.data(), table.matrix(), y.matrix()});
      Values grad_y(300, cols, 4, 2);
      call.run(EmbedBackwardTask{tokens.data(), grad_y.matrix(), grad_table.matrix()});
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
        double sum = 0;
        call.run(CrossEntropyTask{logits.matrix(), targets.data(), 0.125f, &sum});
        loss.set(0, float(sum)), loss.set(1, float(sum - double(float(sum))));  // both halves
        return {logits, loss};
      });
    }
}

TEST_F(ModelKernelTest, CrossEntropyOfLargeLogits) {  // exp would overflow
  Values logits(1, 40, 1, 0);
  for (int64_t i = 0; i < 40; ++i) logits.set(i, i == 7 ? 1e4f : -1e4f);
  const int32_t target = 7;
  double loss = 0;
  cpu_->run(CrossEntropyTask{logits.matrix(), &target, 1, &loss}, 1);
  EXPECT_EQ(loss, 0);
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(logits.at(i), 0);
}

// The square of a gradient of 2e19 has no float, that of what clipping leaves of it has.
TEST_F(ModelKernelTest, Update) {
  for (const int64_t count : {0, 1, 37, 100000})
    for (const int64_t step : {1, 1000})
      for (const float largest : {0.3f, 2e19f})
        expect_like_reference(concat(count, " weights, step ", step, ", gradients to ", largest),
                              [&](const Call& call) -> Outputs {
                                Values w(1, count, 1), m(1, count, 2), v(1, count, 3),
                                    g(1, count, 4);
                                for (int64_t i = 0; i < count; ++i)
                                  v.set(i, float(v.at(i) * v.at(i)));
                                if (count > 0) g.set(0, largest);
                                const float schedule[] = {float(step), 0.01f};
                                const double squares[] = {0.9 + double(largest) * double(largest),
                                                          NAN, 0.1, NAN};  // NAN: not read
                                call.run(UpdateTask{.weights = w.floats(),
                                                    .first_moment = m.floats(),
                                                    .second_moment = v.floats(),
                                                    .gradient = g.floats(),
                                                    .count = count,
                                                    .schedule = schedule,
                                                    .squares = squares,
                                                    .pieces = 2,
                                                    .clip_norm = 0.3,
                                                    .decay = 0.1});
                                return {w, m, v};
                              });
}

TEST_F(ModelKernelTest, SumOfSquares) {
  for (const int64_t count : {0, 1, 1000, 100001}) {
    Values x(1, count, 1, 0);
    const auto sum_by = [&](const ModelKernel& kernel, int threads) {
      double sum = 1;
      kernel.run(SumOfSquaresTask{x.floats(), count, &sum}, threads);
      return sum;
    };
    const double expected_sum = sum_by(*reference_, 1);
    for (const std::string& target : simd_targets()) {
      const ScopedSimdTarget use(target);
      const double one = sum_by(*cpu_, 1);
      EXPECT_NEAR(one, expected_sum, 1e-12 * expected_sum) << target;
      for (const int threads : {2, 3}) EXPECT_EQ(sum_by(*cpu_, threads), one);
    }
  }
}

// Numbers that lie near a tie may be rounded to the other side.
TEST_F(ModelKernelTest, ActivationsInBf16) {
  constexpr DType kNarrow = DType::kBFloat16;
  for (const DType x_type : {DType::kFloat32, kNarrow})
    for (const int64_t cols : {8, 24, 768})
      expect_like_reference(
          concat(cols, " columns, ", to_string(x_type)),
          [&](const Call& call) -> Outputs {
            Values x(90, cols, 1, 3, x_type), y(90, cols, 2, 3, kNarrow), gain(1, cols, 3),
                bias(1, cols, 4), grad(90, cols, 5, 3, kNarrow), grad_gain(1, cols, 6),
                grad_bias(1, cols, 7);
            const LayerNormTask norm{x.matrix(), y.matrix(), gain.floats(), bias.floats()};
            call.run(norm);
            Values normed = y;
            call.run(LayerNormBackwardTask{.x = x.matrix(),
                                           .grad_y = y.matrix(),
                                           .grad_x = grad.matrix(),
                                           .gain = gain.floats(),
                                           .grad_gain = grad_gain.floats(),
                                           .grad_bias = grad_bias.floats(),
                                           .accumulate = true});
            call.run(AddTask{y.matrix(), grad.matrix()});
            call.run(GeluBackwardTask{grad.matrix(), y.matrix(), y.matrix()});
            call.run(GeluTask{grad.matrix(), grad.matrix()});
            call.run(RotateTask{.x = y.matrix(), .positions = {5, 7, 90}, .head_dim = 8});
            call.run(AddColumnsTask{y.matrix(), bias.floats()});
            std::vector<int32_t> tokens(90, 0);
            for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(i * i % 19);
            Values table(19, cols, 8), rows(90, cols, 9, 3, kNarrow);
            call.run(EmbedTask{tokens.data(), table.matrix(), rows.matrix()});
            call.run(EmbedBackwardTask{tokens.data(), rows.matrix(), table.matrix()});
            return {normed, y, grad, grad_gain, grad_bias, bias, table, rows};
          },
          1e-3);
}

TEST_F(ModelKernelTest, RefusesWhatDoesNotFit) {
  Values x(4, 8, 1), y(4, 9, 2), narrow(4, 8, 3, 0, DType::kBFloat16);
  const int32_t tokens[] = {0, 1, 2, 4};
  for (const ModelKernel* kernel : {cpu_.get(), reference_.get()}) {
    const PoisonedWorkspace workspace(kernel->workspace_bytes(1));
    const std::initializer_list<ModelTask> wrong{
        AddTask{x.matrix(), y.matrix()},
        GeluTask{x.matrix(), narrow.matrix()},
        EmbedTask{tokens, x.matrix(), x.matrix()},
        CrossEntropyTask{.logits = narrow.matrix(), .targets = tokens},
        GemmTask{.a = x.matrix(), .b = x.matrix(), .c = x.matrix()},
        LayerNormBackwardTask{.x = x.matrix(), .grad_y = x.matrix(), .grad_x = narrow.matrix()}};
    for (const ModelTask& task : wrong)
      EXPECT_THROW(kernel->run(task, 1, workspace.bytes()), Error) << task.index();
  }
  EXPECT_THROW(cpu_->run(GemmTask{.a = x.matrix(),
                                  .b = x.matrix(),
                                  .c = y.matrix().columns_from(0, 4),
                                  .transpose_b = true},
                         1),
               Error);
}

}  // namespace
}  // namespace longnet
