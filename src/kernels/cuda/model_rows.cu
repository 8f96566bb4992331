#include <cmath>
#include <vector>

#include "kernels/cuda/model_rows.cuh"

namespace longnet {
namespace {

void prepare_copy(const Matrix& x, const int32_t* index, const Matrix& y, Prepared& work,
                  Located what) {
  const auto copy = [&](const auto& from, const auto& to) {
    using X = std::decay_t<decltype(from)>;
    using Y = std::decay_t<decltype(to)>;
    then_each_group(work, CopyRows<X, Y>{from, to, index, x.rows}, y.rows, y.cols / Y::kWidth,
                    what);
  };
  if (!fit_eights({x, y}) || is_bf16(x)) return copy(Ones(x), Ones(y));
  is_bf16(y) ? copy(WideFloats(x), WideBf16(y)) : copy(WideFloats(x), WideFloats(y));
}

// Factors at the positions first, first + step, ...; xPos counts from `centre`.
std::vector<Turn> turns_of(const RotateTask& task, double first, double step, int64_t count,
                           double centre) {
  std::vector<Turn> turns;
  const double sign = task.inverse_angle ? -1 : 1, power = task.negative_power ? -1 : 1;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t pair = 0; pair < task.head_dim; pair += 2) {
      const double part = double(pair) / double(task.head_dim), position = first + double(i) * step;
      const double angle = sign * position * std::pow(1e4, -part);
      const double growth =
          task.xpos_scale == 0 ? 0 : power * std::log((part + 0.4) / 1.4) / task.xpos_scale;
      const double factor = std::exp(growth * (position - centre));
      turns.push_back({factor * std::cos(angle), factor * std::sin(angle)});
    }
  return turns;
}

}  // namespace

void prepare_task(const AddTask& task, std::byte*, Prepared& work) {
  const auto add = [&]<class View>(View x, View y) {
    then_each_group(work, Add<View>{x, y}, task.y.rows, task.y.cols / View::kWidth,
                    "launch of add");
  };
  const Matrix &x = task.x, &y = task.y;
  if (!fit_eights({x, y})) return add(Ones(x), Ones(y));
  is_bf16(y) ? add(WideBf16(x), WideBf16(y)) : add(WideFloats(x), WideFloats(y));
}

void prepare_task(const GeluTask& task, std::byte*, Prepared& work) {
  const auto gelu = [&]<class View>(View x, View y) {
    then_each_group(work, Gelu<View>{x, y}, task.x.rows, task.x.cols / View::kWidth,
                    "launch of gelu");
  };
  if (fit_eights({task.x, task.y}) && is_bf16(task.x))
    return gelu(WideBf16(task.x), WideBf16(task.y));
  gelu(Ones(task.x), Ones(task.y));
}

void prepare_task(const GeluBackwardTask& task, std::byte*, Prepared& work) {
  const auto backward = [&]<class View>(View x, View grad_y, View grad_x) {
    then_each_group(work, GeluBackward<View>{x, grad_y, grad_x}, task.x.rows,
                    task.x.cols / View::kWidth, "launch of gelu_backward");
  };
  if (fit_eights({task.x, task.grad_y, task.grad_x}) && is_bf16(task.x))
    return backward(WideBf16(task.x), WideBf16(task.grad_y), WideBf16(task.grad_x));
  backward(Ones(task.x), Ones(task.grad_y), Ones(task.grad_x));
}

void prepare_task(const EmbedTask& task, std::byte*, Prepared& work) {
  prepare_copy(task.table, task.tokens, task.y, work, "launch of embed");
}

void prepare_rounding(const Matrix& x, const Matrix& into, Prepared& work) {
  prepare_copy(x, nullptr, into, work, "launch of rounding");
}

void prepare_rotate(const RotateTask& task, MemoryLedger& ledger, Prepared& work) {
  const int64_t rows = task.x.rows;
  if (rows == 0) return;
  const auto step = int64_t(std::ceil(std::sqrt(double(rows)))) + 1;
  const auto first = double(task.positions.first), stride = double(task.positions.stride);
  const TurnTables tables{.far = work.upload(turns_of(task, first, stride * double(step),
                                                      ceil_div(rows, step), task.xpos_centre),
                                             ledger),
                          .near = work.upload(turns_of(task, 0, stride, step, 0), ledger),
                          .step = int(step),
                          .pairs = int(task.head_dim / 2)};
  const auto rotate = [&]<class View>(View x) {
    then_launch(work, ceil_div(rows, int64_t{kTurnedRows}), kThreads, 0, "launch of rotate",
                rotate_kernel<View>, x, rows, int(task.x.cols / View::kWidth), tables);
  };
  if (!fits_eights(task.x)) return rotate(Loose<2>(task.x));
  is_bf16(task.x) ? rotate(WideBf16(task.x)) : rotate(WideFloats(task.x));
}

void prepare_task(const AddColumnsTask& task, std::byte* workspace, Prepared& work) {
  const int64_t rows = task.x.rows, piece = rows_of_piece(rows, kColumnsPiece),
                pieces = pieces_of(rows, kColumnsPiece);
  auto* const partial = reinterpret_cast<float*>(workspace);
  const auto sum = [&]<class View>(View x) {
    const int64_t groups = task.x.cols / View::kWidth;
    then_launch(work, pieces * ceil_div(groups, int64_t{kColumnThreads}), kColumnThreads, 0,
                "launch of add_columns", sum_rows_kernel<View>, x, rows, int(groups), piece,
                partial);
  };
  if (!fits_eights(task.x))
    sum(Ones(task.x));
  else
    is_bf16(task.x) ? sum(WideBf16(task.x)) : sum(WideFloats(task.x));
  prepare_sums_of_columns({partial, pieces, task.x.cols, task.x.cols}, task.into, work);
}

void prepare_sums_of_columns(const Matrix& partial, float* into, Prepared& work) {
  then_launch(work, ceil_div(partial.cols, int64_t{kWarp}), kThreads, 0,
              "launch of sums of columns", sum_partial_kernel,
              static_cast<const float*>(partial.data), partial.rows, partial.cols, partial.stride,
              into);
}

}  // namespace longnet
