#include <type_traits>

#include "kernels/cuda/device_model.h"
#include "kernels/cuda/layer_norm.cuh"

namespace longnet {
namespace {

template <int kTeam>
using Team = std::integral_constant<int, kTeam>;

// Calls launch(team, view of x, view of y) with the smallest team that holds a row. Groups of eight
// are taken where all matrices, and the numbers of columns, allow it and y is bf16, or all are
// fp32.
template <class Launch>
void for_team(const Matrix& x, const Matrix& y, const Matrix& also,
              std::initializer_list<const float*> columns, const Launch& launch) {
  const bool wide = fit_eights({x, y, also}) && (is_bf16(y) || !is_bf16(x)) &&
                    std::ranges::all_of(columns, on_16_bytes);
  const auto choose = [&]<class X, class Y>(X from, Y to) {
    constexpr int kHeld = kHeldColumns<X>, kMost = kMostThreads<X>;
    static_assert(kMost * kHeld == (X::kWidth == 1 ? 3072 : kMostNormColumns));
    check(x.cols <= kMost * kHeld, "layer norm of ", x.cols, " columns: the GPU's kernels hold ",
          kMost * kHeld, wide ? "" : " where they go number by number");
    if (x.cols <= kWarp * kHeld) return launch(Team<kWarp>(), from, to);
    if (x.cols <= kNormThreads * kHeld) return launch(Team<kNormThreads>(), from, to);
    launch(Team<kMost>(), from, to);
  };
  if (!wide) return choose(Ones(x), Ones(y));
  if (is_bf16(x)) return choose(WideBf16(x), WideBf16(y));
  is_bf16(y) ? choose(WideFloats(x), WideBf16(y)) : choose(WideFloats(x), WideFloats(y));
}

NormShape shape_of(const auto& task, const RowParts& sums = {}) {
  const auto inverse = [](int64_t n) { return 1 / float(std::max<int64_t>(1, n)); };
  return {.rows = task.x.rows,
          .cols = int(task.x.cols),
          .epsilon = float(task.epsilon),
          .moments = task.moments,
          .sums = sums,
          .of_cols = inverse(task.x.cols),
          .of_parts = inverse(task.moments.parts),
          .of_all = inverse(task.x.cols * std::max<int64_t>(1, sums.parts))};
}

// y; or moments alone, where they are given.
void prepare_norm(const LayerNormTask& task, float* moments, Prepared& work) {
  for_team(
      task.x, task.y, task.y, {task.gain, task.bias}, [&]<int kTeam>(Team<kTeam>, auto x, auto y) {
        then_launch(work, ceil_div(task.x.rows, int64_t{kTeams<kTeam>}), kTeam * kTeams<kTeam>, 0,
                    "launch of layer_norm", layer_norm_kernel<decltype(x), decltype(y), kTeam>, x,
                    y, task.gain, task.bias, shape_of(task), moments);
      });
}

void prepare_backward(const Matrix& x, const Matrix& grad_y, const Matrix& grad_x,
                      const NormShape& shape, const NormGradients& to, Prepared& work) {
  for_team(x, grad_y, grad_x, {to.gain}, [&]<int kTeam>(Team<kTeam>, auto from, auto grad) {
    using Grad = decltype(grad);
    then_launch(work, ceil_div(x.rows, to.piece_rows), kTeam * kTeams<kTeam>,
                int64_t{8} * kTeams<kTeam> * to.pitch, "launch of layer_norm_backward",
                layer_norm_backward_kernel<decltype(from), Grad, kTeam>, from, grad, Grad(grad_x),
                shape, to);
  });
}

}  // namespace

void prepare_task(const LayerNormTask& task, std::byte*, Prepared& work) {
  prepare_norm(task, nullptr, work);
}

void prepare_task(const RowMomentsTask& task, std::byte*, Prepared& work) {
  const Matrix nowhere{nullptr, task.x.rows, task.x.cols, task.x.cols, DType::kBFloat16};
  prepare_norm({.x = task.x, .y = nowhere}, task.into, work);
}

void prepare_task(const LayerNormBackwardTask& task, std::byte* workspace, Prepared& work) {
  const NormGradients to{.gain = task.gain,
                         .accumulate = task.accumulate,
                         .piece_rows = rows_of_piece(task.x.rows, kNormPiece),
                         .partial = reinterpret_cast<float*>(workspace),
                         .pitch = int(pitch_of(task.x))};
  prepare_backward(task.x, task.grad_y, task.grad_x, shape_of(task, task.sums), to, work);
  const Matrix sums{to.partial, pieces_of(task.x.rows, kNormPiece), task.x.cols, 2 * to.pitch,
                    DType::kFloat32};
  prepare_sums_of_columns(sums, task.grad_gain, work);
  prepare_sums_of_columns(sums.columns_from(to.pitch, sums.cols), task.grad_bias, work);
}

void prepare_task(const LayerNormSumsTask& task, std::byte*, Prepared& work) {
  const NormGradients to{.gain = task.gain,
                         .accumulate = false,
                         .piece_rows = rows_of_piece(task.x.rows, kNormPiece),
                         .partial = nullptr,
                         .pitch = int(pitch_of(task.x)),
                         .sums = task.into};
  prepare_backward(task.x, task.grad_y, task.grad_y, shape_of(task), to, work);
}

}  // namespace longnet
