// The kernels of rows.cu: a block per tile of rows.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/rows.h"

namespace longnet {
namespace {

constexpr int kThreads = 256, kMergeRows = 64, kPackRows = 64;
constexpr int kFillRows = 1024;  // whole shards are filled: short lists of tiles

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

template <class Unit>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(const MergeTask* tasks, const RowTile* tiles, int head_dim, bool sum) {
  __shared__ Weights weights[kMergeRows];
  const RowTile tile = tiles[blockIdx.x];
  const MergeTask task = tasks[tile.task];
  if (int(threadIdx.x) < tile.count) {
    const int64_t row = tile.first + threadIdx.x;
    float& into = task.into.lse[row * task.into.lse_stride];
    weights[threadIdx.x] = merged(task.from.lse[row * task.from.lse_stride], into, sum);
  }
  __syncthreads();
  const int units = head_dim / int(sizeof(Unit) / sizeof(float));
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

__device__ float stored_value(uint16_t bits, DeviceElement stored) {
  return stored == DeviceElement::kFloat16 ? __half2float(__ushort_as_half(bits))
                                           : bf16_value(bits);
}

__global__ void __launch_bounds__(kThreads)
    widen_kernel(const WidenTask* tasks, const RowTile* tiles, int head_dim, DeviceElement stored,
                 float factor) {
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
    const float x =
        stored_value(static_cast<const uint16_t*>(task.from)[row * head_dim + at], stored);
    task.into.o[row * task.into.o_stride + at] = blind[in_tile] ? 0.0f : x * factor;
  }
}

__global__ void __launch_bounds__(kThreads)
    add_widened_kernel(const PackTask* tasks, const RowTile* tiles, int head_dim,
                       DeviceElement stored, float factor) {
  const RowTile tile = tiles[blockIdx.x];
  const PackTask task = tasks[tile.task];
  for (int i = int(threadIdx.x); i < tile.count * head_dim; i += kThreads) {
    const int64_t row = tile.first + i / head_dim;
    const uint16_t bits =
        static_cast<const uint16_t*>(task.from)[row * task.from_stride + i % head_dim];
    float& into = static_cast<float*>(task.into)[row * task.into_stride + i % head_dim];
    into += factor * stored_value(bits, stored);
  }
}

template <class Store>
__device__ void generate(const FillRows& task, const RowTile& tile, int head_dim, uint64_t seed,
                         Store store) {
  const int quads = head_dim / 4;
  for (int i = int(threadIdx.x); i < tile.count * quads; i += kThreads) {
    const int64_t row = tile.first + i / quads;
    const int quad = i % quads;
    const PhiloxBlock words =
        row_words({seed, task.tensor, task.first_token + row * task.token_step, task.head}, quad);
    float x[4];
    for (int lane = 0; lane < 4; ++lane) x[lane] = unit_normal_like(words.word[lane]);
    store(row * task.row_stride + quad * 4, x);
  }
}

__global__ void __launch_bounds__(kThreads)
    generate_kernel(const FillRows* tasks, const RowTile* tiles, int head_dim, uint64_t seed,
                    DeviceElement stored) {
  const RowTile tile = tiles[blockIdx.x];
  const FillRows task = tasks[tile.task];
  const auto half_bits = [](float y) { return __half_as_ushort(__float2half_rn(y)); };
  switch (stored) {
    case DeviceElement::kFloat32:
      return generate(task, tile, head_dim, seed, [&](int64_t at, const float* x) {
        *reinterpret_cast<float4*>(static_cast<float*>(task.out) + at) = {x[0], x[1], x[2], x[3]};
      });
    case DeviceElement::kBFloat16:
      return generate(task, tile, head_dim, seed, [&](int64_t at, const float* x) {
        *reinterpret_cast<ushort4*>(static_cast<uint16_t*>(task.out) + at) = {
            bf16_bits(x[0]), bf16_bits(x[1]), bf16_bits(x[2]), bf16_bits(x[3])};
      });
    case DeviceElement::kFloat16:
      return generate(task, tile, head_dim, seed, [&](int64_t at, const float* x) {
        *reinterpret_cast<ushort4*>(static_cast<uint16_t*>(task.out) + at) = {
            half_bits(x[0]), half_bits(x[1]), half_bits(x[2]), half_bits(x[3])};
      });
  }
}

__global__ void __launch_bounds__(kThreads) fill_kernel(float* at, int64_t count, float value) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads)
    at[i] = value;
}

__global__ void __launch_bounds__(kThreads)
    nan_kernel(const float* at, int64_t count, unsigned long long* total) {
  unsigned long long mine = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads)
    mine += isnan(at[i]) ? 1 : 0;
  if (mine > 0) atomicAdd(total, mine);
}

// ---- digests and sums: a warp per row ----

constexpr int kWarp = 32, kWarps = kThreads / kWarp;

template <class T, class Fold>
__device__ T over_warp(T x, Fold fold) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    x = fold(x, __shfl_down_sync(0xFFFFFFFFu, x, offset));
  return x;  // lane 0's is that of all
}
template <class T>
__device__ T warp_sum(T x) {
  return over_warp(x, [](T a, T b) { return a + b; });
}

__global__ void __launch_bounds__(kThreads)
    delta_kernel(const DeltaTask* tasks, const RowTile* tiles, int head_dim, DeviceElement stored) {
  const RowTile tile = tiles[blockIdx.x];
  const DeltaTask task = tasks[tile.task];
  const int lane = int(threadIdx.x) % kWarp;
  for (int i = int(threadIdx.x) / kWarp; i < tile.count; i += kWarps) {
    const int64_t row = tile.first + i;
    const float* const o = task.out.o + row * task.out.o_stride;
    const auto* const grad_out =
        static_cast<const uint16_t*>(task.grad_out) + row * task.grad_out_stride;
    float sum = 0.0f;
    for (int k = lane; k < head_dim; k += kWarp) sum += o[k] * stored_value(grad_out[k], stored);
    sum = warp_sum(sum);
    float* const into = task.statistics + row * task.statistics_stride;
    if (lane == 0) into[0] = task.out.lse[row * task.out.lse_stride];
    if (lane == 0) into[1] = sum;
  }
}

__device__ uint16_t stored_bits(float x, DeviceElement stored) {
  return stored == DeviceElement::kFloat16 ? __half_as_ushort(__float2half_rn(x)) : bf16_bits(x);
}

// The column of a row's largest number by size, but for `except`; the first one of equals. Known to
// all lanes. 16 bits without their sign are in the order of the sizes that they stand for.
__device__ int largest_column(const uint16_t* row, int head_dim, int except) {
  uint32_t best = 0;  // size and column
  for (int k = int(threadIdx.x) % kWarp; k < head_dim; k += kWarp) {
    const uint32_t key = uint32_t(row[k] & 0x7FFF) << 16 | uint32_t(0xFFFF - k);
    if (k != except && key > best) best = key;
  }
  best = over_warp(best, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
  return int(0xFFFF - (__shfl_sync(0xFFFFFFFFu, best, 0) & 0xFFFF));
}

__global__ void __launch_bounds__(kThreads)
    sdpa_rows_kernel(const SdpaRowsTask* tasks, const RowTile* tiles, int head_dim,
                     DeviceElement stored, float factor) {
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
    const float x = stored_value(from[first], stored), y = stored_value(from[second], stored);
    const float delta = statistics[1] * factor;
    const uint16_t at_first = stored_bits(x == 0 ? 0.0f : delta / x, stored);
    const float rest = fmaf(-x, stored_value(at_first, stored), delta);
    const bool use_second = x != 0 && fabsf(y) >= fabsf(x) * kLeastShare;
    const uint16_t at_second = stored_bits(use_second ? rest / y : 0.0f, stored);
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

__global__ void __launch_bounds__(kThreads)
    digest_kernel(const FillRows* tasks, const RowTile* tiles, int words, int64_t element_bytes,
                  unsigned long long* total) {
  const RowTile tile = tiles[blockIdx.x];
  const FillRows task = tasks[tile.task];
  const int lane = int(threadIdx.x) % kWarp;
  unsigned long long mine = 0;
  for (int i = int(threadIdx.x) / kWarp; i < tile.count; i += kWarps) {
    const int64_t row = tile.first + i;
    const auto* const at = reinterpret_cast<const unsigned long long*>(
        static_cast<const char*>(task.out) + row * task.row_stride * element_bytes);
    unsigned long long hash = 0;
    for (int k = lane; k < words; k += kWarp) hash += hash_word(at[k], word_key(uint64_t(k)));
    hash = warp_sum(hash);
    mine += mix64(hash + row_name(uint32_t(task.tensor), task.head,
                                  task.first_token + row * task.token_step));
  }
  if (lane == 0) atomicAdd(total, mine);
}

// Returns the summary of one row; complete in lane 0 only. A row with a NaN has no sums or extrema.
__device__ OutputSummary summary_of_row(const OutputRows& task, int64_t row, int head_dim,
                                        int lane) {
  const auto* const at = reinterpret_cast<const float2*>(task.o + row * task.o_stride);
  unsigned long long hash = 0;
  double sum = 0, squares = 0;
  float low = INFINITY, high = -INFINITY;
  int nans = 0;
  for (int k = lane; k < head_dim / 2; k += kWarp) {
    const float2 x = at[k];
    const uint64_t word = uint64_t(__float_as_uint(x.y)) << 32 | __float_as_uint(x.x);
    hash += hash_word(word, word_key(uint64_t(k)));
    nans += (isnan(x.x) ? 1 : 0) + (isnan(x.y) ? 1 : 0);
    sum += double(x.x) + double(x.y);
    squares += double(x.x) * double(x.x) + double(x.y) * double(x.y);
    low = fminf(low, fminf(x.x, x.y));
    high = fmaxf(high, fmaxf(x.x, x.y));
  }
  hash = warp_sum(hash);
  nans = warp_sum(nans);
  sum = warp_sum(sum);
  squares = warp_sum(squares);
  low = over_warp(low, [](float a, float b) { return fminf(a, b); });
  high = over_warp(high, [](float a, float b) { return fmaxf(a, b); });
  const float lse = task.lse == nullptr ? 0.0f : task.lse[row * task.lse_stride];
  OutputSummary s{.rows = 1, .nan_values = nans};
  s.digest = output_row_hash(hash, __float_as_uint(lse), task.head,
                             task.first_token + row * task.token_step);
  if (nans == 0) s.sum = sum, s.sum_squares = squares, s.min = low, s.max = high;
  if (isnan(lse))
    ++s.nan_values;
  else if (lse == -INFINITY)
    ++s.absent_rows;
  else
    s.lse_sum = lse;
  return s;
}

__global__ void __launch_bounds__(kThreads)
    summarize_kernel(const OutputRows* tasks, const RowTile* tiles, int head_dim,
                     OutputSummary* summaries) {
  __shared__ alignas(OutputSummary) unsigned char shared[kWarps * sizeof(OutputSummary)];
  auto* const of_warp = reinterpret_cast<OutputSummary*>(shared);
  const RowTile tile = tiles[blockIdx.x];
  const OutputRows task = tasks[tile.task];
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  OutputSummary mine;
  for (int i = warp; i < tile.count; i += kWarps)
    mine.add(summary_of_row(task, tile.first + i, head_dim, lane));
  if (lane == 0) of_warp[warp] = mine;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < kWarps; ++w) mine.add(of_warp[w]);
  summaries[blockIdx.x] = mine;
}

}  // namespace
}  // namespace longnet
