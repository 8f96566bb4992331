#include "execute/model_ops.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace longnet {
namespace {

float* floats(const Matrix& m) { return static_cast<float*>(m.data); }
std::span<float> values(const Matrix& m) { return {floats(m), size_t(m.rows * m.cols)}; }
const int32_t* tokens(const Matrix& m) { return static_cast<const int32_t*>(m.data); }
double& number(const Matrix& m) { return *static_cast<double*>(m.data); }

class ModelOps {
 public:
  ModelOps(const ModelKernel& kernel, const BoundProgram& bound, const BoundOp& op,
           std::span<std::byte> workspace)
      : kernel_(kernel),
        bound_(bound),
        from_(op.from_matrices),
        into_(op.into_matrices),
        threads_(bound.threads()),
        workspace_(workspace) {}

  void run(const Gemm& op) const {
    kernel_.gemm({.a = from_[0],
                  .b = from_[1],
                  .c = into_[0],
                  .transpose_a = op.transpose_a,
                  .transpose_b = op.transpose_b,
                  .accumulate = op.accumulate,
                  .bias = from_.size() > 2 ? floats(from_[2]) : nullptr},
                 threads_, workspace_);
  }
  void run(const CrossEntropy& op) const {
    number(into_[1]) += kernel_.cross_entropy(
        {.logits = into_[0], .targets = tokens(from_[0]), .scale = float(op.scale)}, threads_);
  }
  void run(const Update& op) const {
    const std::span<const double> sums(&number(from_[1]), size_t(from_[1].cols / 2));
    double squares = 0;
    for (size_t i = 0; i < sums.size(); i += 2) squares += sums[i];
    const float* schedule = floats(from_[2]);
    kernel_.update({.weights = floats(into_[0]),
                    .first_moment = floats(into_[1]),
                    .second_moment = floats(into_[2]),
                    .gradient = floats(from_[0]),
                    .count = from_[0].cols,
                    .learning_rate = schedule[1],
                    .decay = op.decay,
                    .gradient_scale = op.clip_norm / std::max(op.clip_norm, std::sqrt(squares)),
                    .step = int64_t(schedule[0])},
                   threads_);
  }
  void run(const RowWise& op) const {
    switch (op.function) {
      case RowFunction::kEmbed:
        return kernel_.embed(tokens(from_[0]), from_[1], into_[0], threads_);
      case RowFunction::kEmbedBackward:
        return kernel_.embed_backward(tokens(from_[0]), from_[1], into_[0], threads_);
      case RowFunction::kLayerNorm:
        return kernel_.layer_norm({.x = from_[0],
                                   .y = into_[0],
                                   .gain = floats(from_[1]),
                                   .bias = floats(from_[2]),
                                   .moments = parts(3)},
                                  threads_);
      case RowFunction::kLayerNormBackward:
        return kernel_.layer_norm_backward({.x = from_[0],
                                            .grad_y = from_[1],
                                            .grad_x = into_[2],
                                            .gain = floats(from_[2]),
                                            .grad_gain = floats(into_[0]),
                                            .grad_bias = floats(into_[1]),
                                            .accumulate = op.accumulate,
                                            .moments = parts(3),
                                            .sums = parts(4)},
                                           threads_, workspace_);
      case RowFunction::kRowMoments:
        return kernel_.row_moments(from_[0], floats(into_[0]), threads_);
      case RowFunction::kLayerNormSums:
        return kernel_.layer_norm_sums(
            {.x = from_[0], .grad_y = from_[1], .gain = floats(from_[2]), .moments = parts(3)},
            floats(into_[0]), threads_);
      case RowFunction::kGelu:
        return kernel_.gelu(from_[0], into_[0], threads_);
      case RowFunction::kGeluBackward:
        return kernel_.gelu_backward(from_[0], from_[1], into_[0], threads_);
      case RowFunction::kRotate:
      case RowFunction::kRotateBackward:
        return rotate(op);
      case RowFunction::kAdd:
        return kernel_.add(from_[0], into_[0], threads_);
      case RowFunction::kAddColumns:
        return kernel_.add_columns(from_[0], floats(into_[0]), threads_, workspace_);
      case RowFunction::kSumOfSquares:
        number(into_[0]) += kernel_.sum_of_squares(values(from_[0]), threads_);
    }
  }
  void run(const auto&) const {}

 private:
  // Of the matrix, a row a part; none where the op has no such matrix.
  RowParts parts(size_t matrix) const {
    if (matrix >= from_.size()) return {};
    const Matrix& m = from_[matrix];
    return {floats(m), m.rows, m.stride};
  }
  // Rows lie by sequence, then by token of the shard.
  void rotate(const RowWise& op) const {
    const AttentionProblem& p = bound_.sharded().problem;
    int64_t row = 0;
    for (int64_t batch = 0; batch < p.batch; ++batch)
      for (const TokenRange& range : bound_.shard()) {
        Matrix x = into_[0];
        x.data = static_cast<std::byte*>(x.data) + row * x.stride * dtype_bytes(x.dtype);
        x.rows = range.count;
        row += range.count;
        kernel_.rotate({.x = x,
                        .positions = range,
                        .head_dim = p.head_dim,
                        .xpos_scale = op.xpos_scale,
                        .xpos_centre = op.xpos_centre,
                        .negative_power = op.keys,
                        .inverse_angle = op.function == RowFunction::kRotateBackward},
                       threads_);
      }
  }

  const ModelKernel& kernel_;
  const BoundProgram& bound_;
  std::span<const Matrix> from_, into_;
  int threads_;
  std::span<std::byte> workspace_;
};

}  // namespace

void execute_model_op(const ModelKernel& kernel, const BoundProgram& bound, size_t op,
                      std::span<std::byte> workspace) {
  const ModelOps ops(kernel, bound, bound.op(op), workspace);
  std::visit([&](const auto& what) { ops.run(what); }, bound.program().ops[op].what);
}

}  // namespace longnet
