// Layer norm. A team, a warp or a block, has a row; its threads keep their columns of it in
// registers, so that rows are read once.
#include <type_traits>

#include "kernels/cuda/device_model.h"
#include "kernels/cuda/model_views.cuh"

namespace longnet {
namespace {

constexpr int kNormThreads = 128;
template <class View>
constexpr int kHeldColumns = View::kWidth == 1 ? 12 : 32;  // per thread
template <class View>
constexpr int kMostThreads = View::kWidth == 1 ? 256 : 512;  // per team
template <int kTeam>
constexpr int kTeams = kTeam == kWarp ? kNormThreads / kWarp : 1;  // per block

// A row's columns that one thread of a team holds in registers.
template <class View, int kTeam>
struct HeldRow {
  static constexpr int kWidth = View::kWidth, kGroups = kHeldColumns<View> / kWidth;
  typename View::Raw raw[kGroups];

  __device__ HeldRow(const View& x, int64_t row, int groups) {
    each(groups, [&](int n, int group) { raw[n] = x.load(row, group); });
  }
  __device__ void get(int n, float (&x)[kWidth]) const { View::widen(raw[n], x); }
  // body(n, group) for this thread's groups, the nth of which is held.
  template <class Body>
  static __device__ void each(int groups, Body body) {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const int group = n * kTeam + int(threadIdx.x) % kTeam;
      if (group < groups) body(n, group);
    }
  }
};

struct Normal {
  float mean, factor;  // 1 / sqrt(variance + epsilon)
  __device__ float operator()(float x) const { return (x - mean) * factor; }
};

struct NormShape {
  int64_t rows;
  int cols;
  float epsilon;
  RowParts moments, sums;
  // Inverses, as divisions take subroutines, for which registers spill: 1 / cols, of the parts of
  // moments, and of all columns in sums.
  float of_cols, of_parts, of_all;
};

// Mean and sum of squares about it, of a row's columns that are here.
template <int kTeam, class Row>
__device__ float2 moments_of(const Row& row, const NormShape& shape, TeamPlaces<kTeam>& shared) {
  const int groups = shape.cols / Row::kWidth;
  float sum = 0, squares = 0;
  Row::each(groups, [&](int n, int) {
    float x[Row::kWidth];
    row.get(n, x);
    for (const float v : x) sum += v;
  });
  const float mean = team_sum(sum, shared) * shape.of_cols;
  Row::each(groups, [&](int n, int) {
    float x[Row::kWidth];
    row.get(n, x);
    for (const float v : x) squares += (v - mean) * (v - mean);
  });
  return {mean, team_sum(squares, shared)};
}

template <int kTeam, class Row>
__device__ Normal normal_of(const Row& row, const NormShape& shape, int64_t i,
                            TeamPlaces<kTeam>& shared) {
  if (shape.moments.parts == 0) {
    const float2 m = moments_of(row, shape, shared);
    return {m.x, rsqrtf(fmaf(m.y, shape.of_cols, shape.epsilon))};
  }
  const RowParts& parts = shape.moments;  // equally wide: Chan's formula
  float mean = 0, variance = 0;
  for (int64_t p = 0; p < parts.parts; ++p)
    mean = fmaf(parts.data[p * parts.stride + 2 * i], shape.of_parts, mean);
  for (int64_t p = 0; p < parts.parts; ++p) {
    const float* const part = parts.data + p * parts.stride + 2 * i;
    const float off = part[0] - mean;
    variance = fmaf(fmaf(off, off, part[1] * shape.of_cols), shape.of_parts, variance);
  }
  return {mean, rsqrtf(variance + shape.epsilon)};
}

// y; or, where `moments` is given, the moments of the columns that are here.
template <class X, class Y, int kTeam>
__global__ void __launch_bounds__(kTeam* kTeams<kTeam>)
    layer_norm_kernel(X x, Y y, const float* gain, const float* bias, NormShape shape,
                      float* moments) {
  __shared__ TeamPlaces<kTeam> shared;
  const int64_t i = int64_t{blockIdx.x} * kTeams<kTeam> + int(threadIdx.x) / kTeam;
  if (i >= shape.rows) return;
  const int groups = shape.cols / X::kWidth;
  const HeldRow<X, kTeam> row(x, i, groups);
  if (moments != nullptr) {
    const float2 m = moments_of(row, shape, shared);
    if (threadIdx.x % kTeam == 0) moments[2 * i] = m.x, moments[2 * i + 1] = m.y;
    return;
  }
  const Normal normal = normal_of(row, shape, i, shared);
  row.each(groups, [&](int n, int group) {
    float v[X::kWidth], g[X::kWidth], b[X::kWidth];
    row.get(n, v);
    load_columns(gain, group, g);
    load_columns(bias, group, b);
#pragma unroll
    for (int k = 0; k < X::kWidth; ++k) v[k] = fmaf(normal(v[k]), g[k], b[k]);
    y.store(i, group, v);
  });
}

// Sums over a row's columns that are here, of grad_y * gain and of that times the normalised row.
template <int kTeam, class RowX, class RowG>
__device__ float2 gradient_sums(const RowX& x, const RowG& grad_y, const float* gain, int groups,
                                const Normal& normal, TeamPlaces<kTeam>& shared) {
  float2 sums{0, 0};
  x.each(groups, [&](int n, int group) {
    float v[RowX::kWidth], grad[RowX::kWidth], g[RowX::kWidth];
    x.get(n, v);
    grad_y.get(n, grad);
    load_columns(gain, group, g);
#pragma unroll
    for (int k = 0; k < RowX::kWidth; ++k)
      sums = sums + float2{grad[k] * g[k], grad[k] * g[k] * normal(v[k])};
  });
  return team_sum(sums, shared);
}

// values[k] += x[k], in a thread's own place of shared memory.
template <int kWidth>
__device__ void add_to(float* values, const float (&x)[kWidth]) {
  float sums[kWidth];
  load_columns(values, 0, sums);
#pragma unroll
  for (int k = 0; k < kWidth; ++k) values[k] = sums[k] + x[k];
}

struct NormGradients {
  const float* gain;
  bool accumulate;        // into grad_x
  int64_t piece_rows;     // rows per block
  float* partial;         // [block][gradients of gain; of bias], each as long as `pitch`
  int pitch;              // columns, to a multiple of 8
  float* sums = nullptr;  // given: only the rows' sums (LayerNormSumsTask) are computed
};

template <class X, class G, int kTeam>
__global__ void __launch_bounds__(kTeam* kTeams<kTeam>)
    layer_norm_backward_kernel(X x, G grad_y, G grad_x, NormShape shape, NormGradients to) {
  extern __shared__ float4 column_sums[];  // [team][gain, bias][pitch]
  __shared__ TeamPlaces<kTeam> shared;
  auto* const all_sums = reinterpret_cast<float*>(column_sums);
  const int team = int(threadIdx.x) / kTeam, groups = shape.cols / X::kWidth;
  float* const of_gain = all_sums + 2 * team * to.pitch;
  float* const of_bias = of_gain + to.pitch;
  using Row = HeldRow<X, kTeam>;
  if (to.sums == nullptr)
    Row::each(groups, [&](int, int group) {
#pragma unroll
      for (int k = 0; k < X::kWidth; ++k)
        of_gain[group * X::kWidth + k] = of_bias[group * X::kWidth + k] = 0.0f;
    });
  const int64_t begin = blockIdx.x * to.piece_rows, left = shape.rows - begin;
  const int64_t end = begin + (left < to.piece_rows ? left : to.piece_rows);
  for (int64_t i = begin + team; i < end; i += kTeams<kTeam>) {
    const Row row(x, i, groups);
    const HeldRow<G, kTeam> grad(grad_y, i, groups);
    const Normal normal = normal_of(row, shape, i, shared);
    float2 sums = gradient_sums(row, grad, to.gain, groups, normal, shared);
    if (to.sums != nullptr) {
      if (threadIdx.x % kTeam == 0) to.sums[2 * i] = sums.x, to.sums[2 * i + 1] = sums.y;
      continue;
    }
    const RowParts& parts = shape.sums;
    if (parts.parts > 0) sums = {0, 0};
    for (int64_t p = 0; p < parts.parts; ++p)
      sums = sums +
             float2{parts.data[p * parts.stride + 2 * i], parts.data[p * parts.stride + 2 * i + 1]};
    sums = {sums.x * shape.of_all, sums.y * shape.of_all};  // means
    row.each(groups, [&](int n, int group) {
      float v[X::kWidth], d[X::kWidth], g[X::kWidth], out[X::kWidth] = {};
      row.get(n, v);
      grad.get(n, d);
      load_columns(to.gain, group, g);
      if (to.accumulate) load_group(grad_x, i, group, out);
#pragma unroll
      for (int k = 0; k < X::kWidth; ++k) {
        const float z = normal(v[k]);
        out[k] += normal.factor * (d[k] * g[k] - sums.x - z * sums.y);
        v[k] = d[k] * z;
      }
      grad_x.store(i, group, out);
      add_to(of_gain + group * X::kWidth, v);
      add_to(of_bias + group * X::kWidth, d);
    });
  }
  if (to.sums != nullptr) return;
  __syncthreads();
  for (int j = int(threadIdx.x); j < 2 * to.pitch; j += kTeam * kTeams<kTeam>) {
    float sum = all_sums[j];
    for (int t = 1; t < kTeams<kTeam>; ++t) sum += all_sums[2 * t * to.pitch + j];
    to.partial[int64_t{blockIdx.x} * 2 * to.pitch + j] = sum;
  }
}

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
