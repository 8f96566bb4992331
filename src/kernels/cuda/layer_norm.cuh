// The kernels of layer_norm.cu. A team, a warp or a block, has a row; its threads keep their
// columns of it in registers, so that rows are read once.
#pragma once
#include "kernels/cuda/model_views.cuh"

namespace longnet {
namespace {

constexpr int kNormThreads = 128;
template <class View>
constexpr int kHeldColumns = View::kWidth == 1 ? 12 : 32;  // of a thread
template <class View>
constexpr int kMostThreads = View::kWidth == 1 ? 256 : 512;  // of a team
template <int kTeam>
constexpr int kTeams = kTeam == kWarp ? kNormThreads / kWarp : 1;  // of a block

// What a thread of a team has of a row.
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
  const RowParts& parts = shape.moments;  // of equal width: Chan's formula
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
  int64_t piece_rows;     // of a block
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

}  // namespace
}  // namespace longnet
