// Functions of single numbers, rotary positions, sums of columns.
#include <cmath>
#include <vector>

#include "kernels/cuda/model_views.cuh"

namespace longnet {
namespace {

// ---- functions of single numbers, as each_group_kernel calls them ----

template <class View>
struct Add {
  View x, y;
  __device__ void operator()(int64_t row, int group) const {
    float a[View::kWidth], b[View::kWidth];
    load_group(x, row, group, a);
    load_group(y, row, group, b);
#pragma unroll
    for (int k = 0; k < View::kWidth; ++k) b[k] += a[k];
    y.store(row, group, b);
  }
};

// Rows of x, one after the other or by their index; NaN where the index is no row of x.
template <class X, class Y>
struct CopyRows {
  X x;
  Y y;
  const int32_t* index;  // null: row i of x becomes row i of y
  int64_t x_rows;
  __device__ void operator()(int64_t row, int group) const {
    const int64_t from = index == nullptr ? row : index[row];
    float v[Y::kWidth];
    if (from >= 0 && from < x_rows)
      load_group(x, from, group, v);
    else
      for (float& number : v) number = NAN;
    y.store(row, group, v);
  }
};

// exp(-x^2 / 2).
__device__ float exp_of_half_square(float x) { return approximate_exp2(x * x * -0.72134752f); }

// Phi(x), the standard normal distribution, where e = exp(-x^2 / 2). The polynomial, as in
// kernels/cpu/model_rows_simd.cpp, is a minimax fit of Phi(-z) exp(z^2 / 2) for z in [0, 13.5] with
// relative error 3e-8: half of erff's instructions, and right where Phi is tiny.
__device__ float normal_below(float x, float e) {
  const float u = __fdividef(1.0f, fmaf(fabsf(x), 0.34f, 1.0f));
  float p = -0.026370253f;
  p = fmaf(p, u, 0.14067209f);
  p = fmaf(p, u, -0.27546227f);
  p = fmaf(p, u, 0.20473261f);
  p = fmaf(p, u, -0.046395034f);
  p = fmaf(p, u, 0.11603495f);
  p = fmaf(p, u, 0.115035094f);
  p = fmaf(p, u, 0.13613348f);
  p = fmaf(p, u, 0.13561934f);
  const float below = p * u * e;  // Phi(-|x|)
  return x > 0 ? 1.0f - below : below;
}

template <class View>
struct Gelu {
  View x, y;
  __device__ void operator()(int64_t row, int group) const {
    float v[View::kWidth];
    load_group(x, row, group, v);
#pragma unroll
    for (int k = 0; k < View::kWidth; ++k) v[k] *= normal_below(v[k], exp_of_half_square(v[k]));
    y.store(row, group, v);
  }
};

template <class View>
struct GeluBackward {
  View x, grad_y, grad_x;
  __device__ void operator()(int64_t row, int group) const {
    constexpr float kDensity = 0.39894228f;  // 1 / sqrt(2 pi)
    float v[View::kWidth], grad[View::kWidth];
    load_group(x, row, group, v);
    load_group(grad_y, row, group, grad);
#pragma unroll
    for (int k = 0; k < View::kWidth; ++k) {
      const float e = exp_of_half_square(v[k]);
      grad[k] *= fmaf(v[k], e * kDensity, normal_below(v[k], e));
    }
    grad_x.store(row, group, grad);
  }
};

// ---- rotary positions ----

constexpr int kTurnedRows = 16, kMostPairs = 128;  // per block; per head

// factor * e^(i angle) of a pair of columns.
struct Turn {
  double re, im;
};

// Rows `first_step * i` in one table, steps of single rows in the other: their products, in double,
// are the factors of all rows. [steps][pairs] each.
struct TurnTables {
  const Turn *far, *near;
  int step, pairs;
};

template <class View>
__global__ void __launch_bounds__(kThreads)
    rotate_kernel(View x, int64_t rows, int groups, TurnTables tables) {
  __shared__ float2 turns[kTurnedRows * kMostPairs];
  const int64_t first = int64_t{blockIdx.x} * kTurnedRows;
  const int count = int(rows - first < kTurnedRows ? rows - first : kTurnedRows);
  const int pairs = tables.pairs;
  for (int i = int(threadIdx.x); i < count * pairs; i += kThreads) {
    const int64_t row = first + i / pairs;
    const int pair = i % pairs;
    const Turn a = tables.far[row / tables.step * pairs + pair];
    const Turn b = tables.near[row % tables.step * pairs + pair];
    turns[i] = {float(a.re * b.re - a.im * b.im), float(a.re * b.im + a.im * b.re)};
  }
  __syncthreads();
  constexpr int kPairs = View::kWidth / 2;  // per group
  for (int i = int(threadIdx.x); i < count * groups; i += kThreads) {
    const int row = i / groups, group = i % groups;
    float v[View::kWidth];
    load_group(x, first + row, group, v);
    const float2* const turn = turns + row * pairs + group * kPairs % pairs;
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const float even = v[2 * k], odd = v[2 * k + 1];
      v[2 * k] = even * turn[k].x - odd * turn[k].y;
      v[2 * k + 1] = even * turn[k].y + odd * turn[k].x;
    }
    x.store(first + row, group, v);
  }
}

// ---- sums of columns ----

constexpr int kColumnThreads = 128, kRowsAtOnce = 8;

template <int n>
__device__ float sum_of(const float (&x)[n]) {  // in pairs, of pairs
  float sums[n];
#pragma unroll
  for (int k = 0; k < n; ++k) sums[k] = x[k];
#pragma unroll
  for (int half = n / 2; half > 0; half /= 2)
#pragma unroll
    for (int k = 0; k < half; ++k) sums[k] += sums[k + half];
  return sums[0];
}

// partial[piece][column] = the sum of a column over the rows of a piece. A block has kColumnThreads
// groups of columns of one piece.
template <class View>
__global__ void __launch_bounds__(kColumnThreads)
    sum_rows_kernel(View x, int64_t rows, int groups, int64_t piece_rows, float* partial) {
  const int slices = (groups + kColumnThreads - 1) / kColumnThreads;
  const int64_t piece = blockIdx.x / unsigned(slices);
  const int group = int(blockIdx.x) % slices * kColumnThreads + int(threadIdx.x);
  if (group >= groups) return;
  const int64_t begin = piece * piece_rows;
  const int64_t end = begin + piece_rows < rows ? begin + piece_rows : rows;
  float sums[View::kWidth] = {};
  for (int64_t row = begin; row < end; row += kRowsAtOnce) {
    typename View::Raw raw[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r)
      raw[r] = row + r < end ? x.load(row + r, group) : typename View::Raw{};
    float v[View::kWidth][kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      float of_row[View::kWidth];
      View::widen(raw[r], of_row);
#pragma unroll
      for (int k = 0; k < View::kWidth; ++k) v[k][r] = of_row[k];
    }
#pragma unroll
    for (int k = 0; k < View::kWidth; ++k) sums[k] += sum_of(v[k]);
  }
  float* const into = partial + (piece * groups + group) * View::kWidth;
#pragma unroll
  for (int k = 0; k < View::kWidth; ++k) into[k] = sums[k];
}

// into[j] += sum of column j of partial sums. A block has 32 columns, its warps share the rows.
__global__ void __launch_bounds__(kThreads)
    sum_partial_kernel(const float* partial, int64_t rows, int64_t cols, int64_t stride,
                       float* into) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ float sums[kThreads];
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x % kWarp;
  float sum = 0;
  for (int64_t row = threadIdx.x / kWarp; row < rows; row += kWarps * kRowsAtOnce) {
    float v[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int64_t at = row + r * kWarps;
      v[r] = at < rows && column < cols ? partial[at * stride + column] : 0.0f;
    }
    sum += sum_of(v);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= kWarp || column >= cols) return;
  for (int w = 1; w < kWarps; ++w) sum += sums[w * kWarp + int(threadIdx.x)];
  into[column] += sum;
}

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
  with_views(add, task.x, task.y);
}

void prepare_task(const GeluTask& task, std::byte*, Prepared& work) {
  const auto gelu = [&]<class View>(View x, View y) {
    then_each_group(work, Gelu<View>{x, y}, task.x.rows, task.x.cols / View::kWidth,
                    "launch of gelu");
  };
  with_views(gelu, task.x, task.y);
}

void prepare_task(const GeluBackwardTask& task, std::byte*, Prepared& work) {
  const auto backward = [&]<class View>(View x, View grad_y, View grad_x) {
    then_each_group(work, GeluBackward<View>{x, grad_y, grad_x}, task.x.rows,
                    task.x.cols / View::kWidth, "launch of gelu_backward");
  };
  with_views(backward, task.x, task.grad_y, task.grad_x);
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
  with_views(sum, task.x);
  prepare_sums_of_columns({partial, pieces, task.x.cols, task.x.cols}, task.into, work);
}

void prepare_sums_of_columns(const Matrix& partial, float* into, Prepared& work) {
  then_launch(work, ceil_div(partial.cols, int64_t{kWarp}), kThreads, 0,
              "launch of sums of columns", sum_partial_kernel,
              static_cast<const float*>(partial.data), partial.rows, partial.cols, partial.stride,
              into);
}

}  // namespace longnet
