// The kernels of rows.cu: a block per tile of rows.
#pragma once
#include <cuda_runtime.h>

#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/rows.h"

namespace longnet {
namespace {

constexpr int kThreads = 256, kPoisonThreads = 128, kMergeRows = 64, kPackRows = 64;

template <class Unit>
__global__ void __launch_bounds__(kThreads) pack_kernel(const PackTask* tasks, const RowTile* tiles,
                                                        int64_t row_bytes, int64_t element_bytes) {
  const RowTile tile = tiles[blockIdx.x];
  const PackTask task = tasks[tile.task];
  const int units = int(row_bytes / int64_t(sizeof(Unit)));
  for (int i = int(threadIdx.x); i < tile.count * units; i += kThreads) {
    const int64_t row = tile.first + i / units, at = i % units;
    const char* from = static_cast<const char*>(task.from) + row * task.from_stride * element_bytes;
    char* into = static_cast<char*>(task.into) + row * task.into_stride * element_bytes;
    reinterpret_cast<Unit*>(into)[at] = reinterpret_cast<const Unit*>(from)[at];
  }
}

__global__ void __launch_bounds__(kThreads)
    convert_kernel(const PackTask* tasks, const RowTile* tiles, int head_dim, bool round) {
  const RowTile tile = tiles[blockIdx.x];
  const PackTask task = tasks[tile.task];
  for (int i = int(threadIdx.x); i < tile.count * head_dim; i += kThreads) {
    const int64_t row = tile.first + i / head_dim;
    const int64_t from = row * task.from_stride + i % head_dim;
    const int64_t into = row * task.into_stride + i % head_dim;
    if (round)
      static_cast<uint16_t*>(task.into)[into] =
          bf16_bits(static_cast<const float*>(task.from)[from]);
    else
      static_cast<float*>(task.into)[into] =
          bf16_value(static_cast<const uint16_t*>(task.from)[from]);
  }
}

// LSE of both, and what each side's O is multiplied with. Weights follow the reference kernel.
struct Weights {
  float from, into;
};
__device__ Weights merged(float from, float& into, bool sum) {
  const float top = fmaxf(from, into);
  if (top == -INFINITY) return {0.0f, 1.0f};  // neither saw a key: the row stays
  const float a = expf(from - top), b = expf(into - top);
  into = top + logf(a + b);
  return sum ? Weights{1.0f, 1.0f} : Weights{a / (a + b), b / (a + b)};
}

__device__ float4 mix(float4 into, float4 from, Weights w) {
  return {w.into * into.x + w.from * from.x, w.into * into.y + w.from * from.y,
          w.into * into.z + w.from * from.z, w.into * into.w + w.from * from.w};
}
__device__ float mix(float into, float from, Weights w) { return w.into * into + w.from * from; }

struct PairOfBf16 {
  uint32_t bits;
};
__device__ float2 widened(PairOfBf16 pair) { return unpack_pair(pair.bits); }
__device__ PairOfBf16 mix(PairOfBf16 into, PairOfBf16 from, Weights w) {
  const float2 a = widened(into), b = widened(from);
  return {pack_pair(mix(a.x, b.x, w), mix(a.y, b.y, w))};
}

template <class Unit>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(const MergeTask* tasks, const RowTile* tiles, int units, bool sum) {
  __shared__ Weights weights[kMergeRows];
  const RowTile tile = tiles[blockIdx.x];
  const MergeTask task = tasks[tile.task];
  if (int(threadIdx.x) < tile.count) {
    const int64_t row = tile.first + threadIdx.x;
    float& into = task.into.lse[row * task.into.lse_stride];
    weights[threadIdx.x] = merged(task.from.lse[row * task.from.lse_stride], into, sum);
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < tile.count * units; i += kThreads) {
    const int in_tile = i / units, at = i % units;
    const int64_t row = tile.first + in_tile;
    auto* into = reinterpret_cast<Unit*>(task.into.o + row * task.into.o_stride);
    const auto* from = reinterpret_cast<const Unit*>(task.from.o + row * task.from.o_stride);
    into[at] = mix(into[at], from[at], weights[in_tile]);
  }
}

template <class Unit>
__global__ void __launch_bounds__(kThreads)
    add_kernel(const SumTask* tasks, const RowTile* tiles, int head_dim) {
  const RowTile tile = tiles[blockIdx.x];
  const SumTask task = tasks[tile.task];
  const int units = head_dim / int(sizeof(Unit) / sizeof(float));
  for (int i = int(threadIdx.x); i < tile.count * units; i += kThreads) {
    const int64_t row = tile.first + i / units;
    auto* const into =
        reinterpret_cast<Unit*>(static_cast<float*>(task.into) + row * task.into_stride) +
        i % units;
    const float* from = static_cast<const float*>(task.from) + row * task.from_stride;
    Unit sum = *into;
    for (int64_t piece = 0; piece < task.pieces; ++piece, from += task.piece_stride)
      sum = mix(sum, reinterpret_cast<const Unit*>(from)[i % units], {1.0f, 1.0f});
    *into = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    widen_kernel(const WidenTask* tasks, const RowTile* tiles, int head_dim, float factor) {
  __shared__ bool blind[kMergeRows];
  const RowTile tile = tiles[blockIdx.x];
  const WidenTask task = tasks[tile.task];
  if (int(threadIdx.x) < tile.count) {
    float& lse = task.into.lse[(tile.first + threadIdx.x) * task.into.lse_stride];
    blind[threadIdx.x] = !(lse > -1e30f);
    if (blind[threadIdx.x]) lse = -INFINITY;
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < tile.count * head_dim; i += kThreads) {
    const int in_tile = i / head_dim, at = i % head_dim;
    const int64_t row = tile.first + in_tile;
    const float x = bf16_value(static_cast<const uint16_t*>(task.from)[row * head_dim + at]);
    task.into.o[row * task.into.o_stride + at] = blind[in_tile] ? 0.0f : x * factor;
  }
}

__global__ void __launch_bounds__(kThreads)
    add_widened_kernel(const PackTask* tasks, const RowTile* tiles, int head_dim, float factor) {
  const RowTile tile = tiles[blockIdx.x];
  const PackTask task = tasks[tile.task];
  for (int i = int(threadIdx.x); i < tile.count * head_dim; i += kThreads) {
    const int64_t row = tile.first + i / head_dim;
    const uint16_t bits =
        static_cast<const uint16_t*>(task.from)[row * task.from_stride + i % head_dim];
    float& into = static_cast<float*>(task.into)[row * task.into_stride + i % head_dim];
    into += factor * bf16_value(bits);
  }
}

__global__ void __launch_bounds__(kThreads) fill_kernel(float* at, int64_t count, float value) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads)
    at[i] = value;
}

__global__ void __launch_bounds__(kPoisonThreads) poison_kernel(uint4* at, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * kPoisonThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kPoisonThreads)
    at[i] = {0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu};
}

__global__ void __launch_bounds__(kThreads)
    nan_kernel(const float* at, int64_t count, bool pairs_of_bf16, unsigned long long* total) {
  unsigned long long mine = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    const float2 pair = pairs_of_bf16 ? widened({__float_as_uint(at[i])}) : float2{at[i], 0.0f};
    mine += (isnan(pair.x) ? 1 : 0) + (isnan(pair.y) ? 1 : 0);
  }
  if (mine > 0) atomicAdd(total, mine);
}

// ---- a warp per row ----

constexpr int kWarp = 32, kWarps = kThreads / kWarp;

__global__ void __launch_bounds__(kThreads)
    delta_kernel(const DeltaTask* tasks, const RowTile* tiles, int head_dim) {
  const RowTile tile = tiles[blockIdx.x];
  const DeltaTask task = tasks[tile.task];
  const int lane = int(threadIdx.x) % kWarp;
  for (int i = int(threadIdx.x) / kWarp; i < tile.count; i += kWarps) {
    const int64_t row = tile.first + i;
    const float* const o = task.out.o + row * task.out.o_stride;
    const auto* const grad_out =
        static_cast<const uint16_t*>(task.grad_out) + row * task.grad_out_stride;
    float sum = 0.0f;
    for (int k = lane; k < head_dim; k += kWarp) sum += o[k] * bf16_value(grad_out[k]);
    sum = lane_sum(sum);
    float* const into = task.statistics + row * task.statistics_stride;
    if (lane == 0) into[0] = task.out.lse[row * task.out.lse_stride];
    if (lane == 0) into[1] = sum;
  }
}

// The column of a row's largest number by size, but for `except`; the first one of equals. Known to
// all lanes. 16 bits without their sign are in the order of the sizes that they stand for.
__device__ int largest_column(const uint16_t* row, int head_dim, int except) {
  uint32_t best = 0;  // size and column
  for (int k = int(threadIdx.x) % kWarp; k < head_dim; k += kWarp) {
    const uint32_t key = uint32_t(row[k] & 0x7FFF) << 16 | uint32_t(0xFFFF - k);
    if (k != except && key > best) best = key;
  }
  best = over_lanes(best, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
  return int(0xFFFF - (best & 0xFFFF));
}

__global__ void __launch_bounds__(kThreads)
    sdpa_rows_kernel(const SdpaRowsTask* tasks, const RowTile* tiles, int head_dim, float factor) {
  // The second column takes no part where its dO is so small that O could overflow.
  constexpr float kLeastShare = 1.0f / 256;
  const RowTile tile = tiles[blockIdx.x];
  const SdpaRowsTask task = tasks[tile.task];
  const int lane = int(threadIdx.x) % kWarp;
  for (int i = int(threadIdx.x) / kWarp; i < tile.count; i += kWarps) {
    const int64_t row = tile.first + i;
    const auto* const from =
        static_cast<const uint16_t*>(task.grad_out) + row * task.grad_out_stride;
    const float* const statistics = task.statistics + row * task.statistics_stride;
    const int first = largest_column(from, head_dim, -1);
    const int second = largest_column(from, head_dim, first);
    const float x = bf16_value(from[first]), y = bf16_value(from[second]);
    const float delta = statistics[1] * factor;
    const uint16_t at_first = bf16_bits(x == 0 ? 0.0f : delta / x);
    const float rest = fmaf(-x, bf16_value(at_first), delta);
    const bool use_second = x != 0 && fabsf(y) >= fabsf(x) * kLeastShare;
    const uint16_t at_second = bf16_bits(use_second ? rest / y : 0.0f);
    const auto o_at = [=](int k) {
      if (k == first) return at_first;
      return k == second ? at_second : uint16_t{0};
    };
    for (int k = lane; k < head_dim; k += kWarp) {
      static_cast<uint16_t*>(task.into_grad_out)[row * head_dim + k] = from[k];
      static_cast<uint16_t*>(task.into_o)[row * head_dim + k] = o_at(k);
    }
    if (lane == 0) task.into_lse[row] = statistics[0] == -INFINITY ? INFINITY : statistics[0];
  }
}

}  // namespace
}  // namespace longnet
