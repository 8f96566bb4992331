// Ops of a model's layers (schedule/program.h, ModelOp) as tasks of kernels (model_kernel.h).
#include <concepts>
#include <vector>

#include "core/check.h"
#include "execute/bound_program.h"

namespace longnet {
namespace {

float* floats(const Matrix& m) { return static_cast<float*>(m.data); }
const int32_t* tokens(const Matrix& m) { return static_cast<const int32_t*>(m.data); }
double* doubles(const Matrix& m) { return static_cast<double*>(m.data); }

class ModelTasks {
 public:
  ModelTasks(const ShardedProblem& sharded, Rank rank, std::vector<Matrix> from,
             std::vector<Matrix> into)
      : sharded_(sharded), rank_(rank), from_(std::move(from)), into_(std::move(into)) {}
  std::vector<ModelTask> take() { return std::move(tasks_); }

  void add(const Gemm& op) {
    tasks_.push_back(GemmTask{.a = from_[0],
                              .b = from_[1],
                              .c = into_[0],
                              .transpose_a = op.transpose_a,
                              .transpose_b = op.transpose_b,
                              .accumulate = op.accumulate,
                              .bias = from_.size() > 2 ? floats(from_[2]) : nullptr,
                              .of_bf16 = sharded_.problem.dtype == DType::kBFloat16});
  }
  void add(const CrossEntropy& op) {
    tasks_.push_back(CrossEntropyTask{.logits = into_[0],
                                      .targets = tokens(from_[0]),
                                      .scale = float(op.scale),
                                      .loss = doubles(into_[1])});
  }
  void add(const Update& op) {
    tasks_.push_back(UpdateTask{.weights = floats(into_[0]),
                                .first_moment = floats(into_[1]),
                                .second_moment = floats(into_[2]),
                                .gradient = floats(from_[0]),
                                .count = from_[0].cols,
                                .schedule = floats(from_[2]),
                                .squares = doubles(from_[1]),
                                .pieces = from_[1].cols / 4,
                                .clip_norm = op.clip_norm,
                                .decay = op.decay});
  }
  void add(const RowWise& op) {
    switch (op.function) {
      case RowFunction::kEmbed:
        return tasks_.push_back(EmbedTask{tokens(from_[0]), from_[1], into_[0]});
      case RowFunction::kEmbedBackward:
        return tasks_.push_back(EmbedBackwardTask{tokens(from_[0]), from_[1], into_[0]});
      case RowFunction::kLayerNorm:
        return tasks_.push_back(LayerNormTask{.x = from_[0],
                                              .y = into_[0],
                                              .gain = floats(from_[1]),
                                              .bias = floats(from_[2]),
                                              .moments = parts(3)});
      case RowFunction::kLayerNormBackward:
        return tasks_.push_back(LayerNormBackwardTask{.x = from_[0],
                                                      .grad_y = from_[1],
                                                      .grad_x = into_[2],
                                                      .gain = floats(from_[2]),
                                                      .grad_gain = floats(into_[0]),
                                                      .grad_bias = floats(into_[1]),
                                                      .accumulate = op.accumulate,
                                                      .moments = parts(3),
                                                      .sums = parts(4)});
      case RowFunction::kRowMoments:
        return tasks_.push_back(RowMomentsTask{from_[0], floats(into_[0])});
      case RowFunction::kLayerNormSums:
        return tasks_.push_back(LayerNormSumsTask{.x = from_[0],
                                                  .grad_y = from_[1],
                                                  .gain = floats(from_[2]),
                                                  .moments = parts(3),
                                                  .into = floats(into_[0])});
      case RowFunction::kGelu:
        return tasks_.push_back(GeluTask{from_[0], into_[0]});
      case RowFunction::kGeluBackward:
        return tasks_.push_back(GeluBackwardTask{from_[0], from_[1], into_[0]});
      case RowFunction::kRotate:
      case RowFunction::kRotateBackward:
        return rotate(op);
      case RowFunction::kAdd:
        return tasks_.push_back(AddTask{from_[0], into_[0]});
      case RowFunction::kAddColumns:
        return tasks_.push_back(AddColumnsTask{from_[0], floats(into_[0])});
      case RowFunction::kSumOfSquares: {
        const Matrix& x = from_[0];
        return tasks_.push_back(SumOfSquaresTask{floats(x), x.rows * x.cols, doubles(into_[0])});
      }
    }
  }

 private:
  // Returns the rows of a matrix that the op reads as parts; none where it has no such matrix.
  RowParts parts(size_t matrix) const {
    if (matrix >= from_.size()) return {};
    const Matrix& m = from_[matrix];
    return {floats(m), m.rows, m.stride};
  }
  // Rows lie by sequence, then by token of the shard.
  void rotate(const RowWise& op) {
    const AttentionProblem& p = sharded_.problem;
    int64_t row = 0;
    for (int64_t batch = 0; batch < p.batch; ++batch)
      for (const TokenRange& range : sharded_.layout.shard(rank_)) {
        tasks_.push_back(RotateTask{.x = into_[0].rows_from(row, range.count),
                                    .positions = range,
                                    .head_dim = p.head_dim,
                                    .xpos_scale = op.xpos_scale,
                                    .xpos_centre = op.xpos_centre,
                                    .negative_power = op.keys,
                                    .inverse_angle = op.function == RowFunction::kRotateBackward});
        row += range.count;
      }
  }

  const ShardedProblem& sharded_;
  Rank rank_;
  std::vector<Matrix> from_, into_;
  std::vector<ModelTask> tasks_;
};

}  // namespace

std::vector<ModelTask> model_tasks(const ShardedProblem& sharded, Rank rank,
                                   const RankProgram& program, const Op& op,
                                   const BoundProgram::Memory& memory) {
  const auto matrices = [&](const std::vector<MatrixView>& views) {
    std::vector<Matrix> all;
    for (const MatrixView& m : views) {
      const Slot& slot = program.slots[size_t(m.view.slot)];
      const DType dtype = holds_stored(slot.kind) ? sharded.problem.dtype : DType::kFloat32;
      const int64_t size = dtype_bytes(dtype), end = m.first + m.rows * m.cols;
      check(m.first >= 0 && end * size <= slot.bytes, "a matrix of ", m.rows, " x ", m.cols,
            " from value ", m.first, " on ends outside of slot ", m.view.slot);
      all.push_back(
          {memory[size_t(m.view.slot)].data() + m.first * size, m.rows, m.cols, m.cols, dtype});
    }
    return all;
  };
  std::vector<ModelTask> tasks;
  std::visit(
      [&]<class Kind>(const Kind& o) {
        if constexpr (std::derived_from<Kind, ModelOp>) {
          ModelTasks of_op(sharded, rank, matrices(o.from), matrices(o.into));
          of_op.add(o);
          tasks = of_op.take();
        }
      },
      op.what);
  return tasks;
}

}  // namespace longnet
