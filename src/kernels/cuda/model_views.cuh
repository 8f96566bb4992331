// Matrices as the kernels of a model's layers read and write them, by groups of columns; sums over
// the threads that have a row together; launches.
//
//   768 columns of bf16: 96 groups of eight, 16 bytes each; a warp has a row, a lane 3 groups of it
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <initializer_list>

#include "core/check.h"
#include "core/random.h"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/model_workspace.h"

namespace longnet {
namespace {

constexpr int kWarp = 32, kThreads = 256;
constexpr int64_t kBlockGroups = 2048;  // groups of a block where they are independent

// Returns the offset of a group's first column, in elements. A matrix of weights, as one row, has
// more than 2^31 of them.
template <int kWidth>
__host__ __device__ constexpr int64_t offset_of(int64_t row, int64_t stride, int group) {
  return row * stride + int64_t{group} * kWidth;
}
static_assert(offset_of<8>(1, 5, 1 << 28) == (int64_t{1} << 31) + 5);

// Groups of eight columns at addresses of 16 bytes. T: float, or uint16_t for bf16.
template <class T>
struct Eights {
  static constexpr int kWidth = 8;
  struct Raw {
    uint4 word[sizeof(T) / 2];
  };
  T* data;
  int64_t stride;

  explicit Eights(const Matrix& m) : data(static_cast<T*>(m.data)), stride(m.stride) {}
  __device__ T* at(int64_t row, int group) const {
    return data + offset_of<kWidth>(row, stride, group);
  }
  __device__ Raw load(int64_t row, int group) const {
    Raw raw;
    const auto* const from = reinterpret_cast<const uint4*>(at(row, group));
#pragma unroll
    for (int k = 0; k < int(sizeof(T) / 2); ++k) raw.word[k] = from[k];
    return raw;
  }
  static __device__ void widen(const Raw& raw, float (&x)[kWidth]) {
    const auto* const word = reinterpret_cast<const uint32_t*>(&raw);
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      if constexpr (sizeof(T) == 4)
        x[k] = __uint_as_float(word[k]);
      else
        x[k] = __uint_as_float(k % 2 == 0 ? word[k / 2] << 16 : word[k / 2] & 0xFFFF0000u);
  }
  __device__ void store(int64_t row, int group, const float (&x)[kWidth]) const {
    Raw raw;
    auto* const word = reinterpret_cast<uint32_t*>(&raw);
#pragma unroll
    for (int k = 0; k < int(sizeof(Raw) / 4); ++k)
      if constexpr (sizeof(T) == 4)
        word[k] = __float_as_uint(x[k]);
      else
        word[k] = pack_pair(x[2 * k], x[2 * k + 1]);
    auto* const into = reinterpret_cast<uint4*>(at(row, group));
#pragma unroll
    for (int k = 0; k < int(sizeof(T) / 2); ++k) into[k] = raw.word[k];
  }
};

// Groups of `width` columns of either type anywhere, one number at a time: what fits no Eights.
template <int width>
struct Loose {
  static constexpr int kWidth = width;
  struct Raw {
    float x[width];
  };
  void* data;
  int64_t stride;
  bool narrow;

  explicit Loose(const Matrix& m)
      : data(m.data), stride(m.stride), narrow(m.dtype == DType::kBFloat16) {}
  __device__ Raw load(int64_t row, int group) const {
    Raw raw;
    const int64_t first = offset_of<width>(row, stride, group);
#pragma unroll
    for (int k = 0; k < width; ++k)
      raw.x[k] = narrow ? bf16_value(static_cast<const uint16_t*>(data)[first + k])
                        : static_cast<const float*>(data)[first + k];
    return raw;
  }
  static __device__ void widen(const Raw& raw, float (&x)[width]) {
#pragma unroll
    for (int k = 0; k < width; ++k) x[k] = raw.x[k];
  }
  __device__ void store(int64_t row, int group, const float (&x)[width]) const {
    const int64_t first = offset_of<width>(row, stride, group);
#pragma unroll
    for (int k = 0; k < width; ++k)
      if (narrow)
        static_cast<uint16_t*>(data)[first + k] = uint16_t(pack_pair(x[k], 0.0f));
      else
        static_cast<float*>(data)[first + k] = x[k];
  }
};
using Ones = Loose<1>;
using WideFloats = Eights<float>;
using WideBf16 = Eights<uint16_t>;

template <class View>
__device__ void load_group(const View& from, int64_t row, int group, float (&x)[View::kWidth]) {
  View::widen(from.load(row, group), x);
}
// Numbers that belong to columns: `values` has one for each.
template <int kWidth>
__device__ void load_columns(const float* values, int group, float (&x)[kWidth]) {
  if constexpr (kWidth == 8) {
    const float4 *const at = reinterpret_cast<const float4*>(values + offset_of<8>(0, 0, group)),
                        a = at[0], b = at[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) x[k] = values[offset_of<kWidth>(0, 0, group) + k];
  }
}

// ---- the choice of a view, on the host ----

inline bool on_16_bytes(const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }
inline bool fits_eights(const Matrix& m) {
  return m.cols % 8 == 0 && on_16_bytes(m.data) && m.stride * dtype_bytes(m.dtype) % 16 == 0;
}
inline bool fit_eights(std::initializer_list<Matrix> all) {
  return std::ranges::all_of(all, fits_eights);
}
inline bool is_bf16(const Matrix& m) { return m.dtype == DType::kBFloat16; }
// Calls launch(a view of each matrix). Groups of eight where all allow it. Throws Error where they
// are not stored alike.
template <class Launch, class... More>
void with_views(const Launch& launch, const Matrix& first, const More&... more) {
  check(((more.dtype == first.dtype) && ...), "matrices of one launch are stored in fp32 and bf16");
  if (!fit_eights({first, more...})) return launch(Ones(first), Ones(more)...);
  if (is_bf16(first)) return launch(WideBf16(first), WideBf16(more)...);
  launch(WideFloats(first), WideFloats(more)...);
}
inline Matrix row_of(const float* at, int64_t count) {
  return {const_cast<float*>(at), 1, count, count, DType::kFloat32};
}

// ---- launches ----

inline unsigned grid_of(int64_t blocks) {
  check(blocks < (int64_t{1} << 31), "a launch of ", blocks, " blocks");
  return unsigned(blocks);
}

// Launches of kernel(arguments...) with `shared` bytes of dynamic memory.
template <class... Parameters, class... Arguments>
void then_launch(Prepared& work, int64_t blocks, int threads, int64_t shared, Located what,
                 void (*kernel)(Parameters...), Arguments... arguments) {
  if (blocks == 0) return;
  work.then([=, grid = grid_of(blocks)](const Stream& stream) {
    // A limit of the kernel, not of the launch: others may have set less since. It counts from
    // 48 KiB on, of dynamic memory and what the kernel has of its own, less than 1 KiB.
    if (const int64_t all = shared + (1 << 10); all > 48 << 10)
      check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, int(all)),
                 what);
    kernel<<<grid, unsigned(threads), size_t(shared), stream.handle()>>>(arguments...);
    check_cuda(cudaGetLastError(), what);
  });
}

// op(row, group) for each group of columns, by a thread each.
template <class Op>
__global__ void __launch_bounds__(kThreads)
    each_group_kernel(Op op, int64_t rows, int groups, int rows_of_block) {
  const int64_t first = int64_t{blockIdx.x} * rows_of_block;
  const int64_t left = rows - first;
  const int count = int(left < rows_of_block ? left : rows_of_block) * groups;
  for (int i = int(threadIdx.x); i < count; i += kThreads) op(first + i / groups, i % groups);
}
template <class Op>
void then_each_group(Prepared& work, const Op& op, int64_t rows, int64_t groups, Located what) {
  check(groups < int64_t{1} << 28, "rows of ", groups, " groups of columns");
  const int64_t of_block = std::max<int64_t>(1, kBlockGroups / std::max<int64_t>(1, groups));
  then_launch(work, groups == 0 ? 0 : ceil_div(rows, of_block), kThreads, 0, what,
              each_group_kernel<Op>, op, rows, int(groups), int(of_block));
}

// ---- sums, in one order whatever the timing ----

// A place of shared memory for each warp of a team.
template <int kTeam>
struct TeamPlaces {
  uint64_t of_warp[kTeam / kWarp];
  template <class T>
  __device__ T& at(int warp) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    return *reinterpret_cast<T*>(of_warp + warp);
  }
};
// Over the kTeam threads that have a row together: a warp, or a whole block, all of whose threads
// call this. Known to all of them.
template <int kTeam, class T, class Fold>
__device__ T over_team(T x, TeamPlaces<kTeam>& shared, Fold fold) {
  x = over_lanes(x, fold);
  if constexpr (kTeam > kWarp) {
    __syncthreads();  // earlier values there have been read
    if (threadIdx.x % kWarp == 0) shared.template at<T>(int(threadIdx.x) / kWarp) = x;
    __syncthreads();
    x = shared.template at<T>(0);
    for (int w = 1; w < kTeam / kWarp; ++w) x = fold(x, shared.template at<T>(w));
  }
  return x;
}
template <int kTeam, class T>
__device__ T team_sum(T x, TeamPlaces<kTeam>& shared) {
  return over_team(x, shared, [](T a, T b) { return a + b; });
}

}  // namespace
}  // namespace longnet
