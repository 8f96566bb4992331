#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "core/check.h"
#include "core/cuda/cuda_check.h"
#include "kernels/cuda/rows.h"

namespace longnet {
namespace {

constexpr int kThreads = 256, kMergeRows = 64, kPackRows = 64;
constexpr int kFillRows = 1024;        // whole shards are filled: short lists of tiles
constexpr int64_t kMostBlocks = 4096;  // of kernels that loop over a flat range

template <class Task>
std::vector<RowTile> row_tiles(std::span<const Task> tasks, int rows_per_tile) {
  std::vector<RowTile> tiles;
  for (size_t i = 0; i < tasks.size(); ++i)
    for (int64_t at = 0; at < tasks[i].rows; at += rows_per_tile)
      tiles.push_back(
          {int32_t(i), int32_t(std::min<int64_t>(rows_per_tile, tasks[i].rows - at)), at});
  check(tiles.size() < (size_t{1} << 31), "too many row tiles: ", tiles.size());
  return tiles;
}

template <class T>
DeviceBuffer uploaded(std::span<const T> list, MemoryLedger& ledger) {
  DeviceBuffer buffer(ledger, "task_lists", int64_t(list.size_bytes()));
  buffer.upload(std::vector<T>(list.begin(), list.end()));
  return buffer;
}

bool multiple(const void* p, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % size_t(bytes) == 0;
}

unsigned blocks_for(int64_t items) {
  return unsigned(std::min(kMostBlocks, (items + kThreads - 1) / kThreads));
}

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

__global__ void __launch_bounds__(kThreads)
    widen_kernel(const WidenTask* tasks, const RowTile* tiles, int head_dim, StoredAs stored,
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
    const uint16_t bits = static_cast<const uint16_t*>(task.from)[row * head_dim + at];
    const float x =
        stored == StoredAs::kFloat16 ? __half2float(__ushort_as_half(bits)) : bf16_value(bits);
    task.into.o[row * task.into.o_stride + at] = blind[in_tile] ? 0.0f : x * factor;
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
                    StoredAs stored) {
  const RowTile tile = tiles[blockIdx.x];
  const FillRows task = tasks[tile.task];
  const auto half_bits = [](float y) { return __half_as_ushort(__float2half_rn(y)); };
  switch (stored) {
    case StoredAs::kFloat32:
      return generate(task, tile, head_dim, seed, [&](int64_t at, const float* x) {
        *reinterpret_cast<float4*>(static_cast<float*>(task.out) + at) = {x[0], x[1], x[2], x[3]};
      });
    case StoredAs::kBFloat16:
      return generate(task, tile, head_dim, seed, [&](int64_t at, const float* x) {
        *reinterpret_cast<ushort4*>(static_cast<uint16_t*>(task.out) + at) = {
            bf16_bits(x[0]), bf16_bits(x[1]), bf16_bits(x[2]), bf16_bits(x[3])};
      });
    case StoredAs::kFloat16:
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

}  // namespace

DevicePack::DevicePack(std::span<const PackTask> tasks, int64_t row_bytes, int64_t element_bytes,
                       MemoryLedger& ledger)
    : row_bytes_(row_bytes), element_bytes_(element_bytes), wide_(row_bytes % 16 == 0) {
  check(row_bytes % 4 == 0, "rows of ", row_bytes, " bytes");
  for (const PackTask& t : tasks)
    wide_ = wide_ && multiple(t.from, 16) && multiple(t.into, 16) &&
            t.from_stride * element_bytes % 16 == 0 && t.into_stride * element_bytes % 16 == 0;
  const std::vector<RowTile> tiles = row_tiles(tasks, kPackRows);
  num_tiles_ = int64_t(tiles.size());
  tasks_ = uploaded(tasks, ledger);
  tiles_ = uploaded(std::span<const RowTile>(tiles), ledger);
}

void DevicePack::launch(const Stream& stream) const {
  if (num_tiles_ == 0) return;
  const auto kernel = wide_ ? pack_kernel<uint4> : pack_kernel<uint32_t>;
  kernel<<<unsigned(num_tiles_), kThreads, 0, stream.handle()>>>(
      reinterpret_cast<const PackTask*>(tasks_.data()),
      reinterpret_cast<const RowTile*>(tiles_.data()), row_bytes_, element_bytes_);
  check_cuda(cudaGetLastError(), "launch of pack");
}

DeviceConvert::DeviceConvert(std::span<const PackTask> tasks, Direction direction, int64_t head_dim,
                             MemoryLedger& ledger)
    : head_dim_(head_dim), direction_(direction) {
  const std::vector<RowTile> tiles = row_tiles(tasks, kPackRows);
  num_tiles_ = int64_t(tiles.size());
  tasks_ = uploaded(tasks, ledger);
  tiles_ = uploaded(std::span<const RowTile>(tiles), ledger);
}

void DeviceConvert::launch(const Stream& stream) const {
  if (num_tiles_ == 0) return;
  convert_kernel<<<unsigned(num_tiles_), kThreads, 0, stream.handle()>>>(
      reinterpret_cast<const PackTask*>(tasks_.data()),
      reinterpret_cast<const RowTile*>(tiles_.data()), int(head_dim_),
      direction_ == Direction::kRound);
  check_cuda(cudaGetLastError(), "launch of convert");
}

DeviceMerge::DeviceMerge(std::span<const MergeTask> tasks, MergeRule rule, int64_t head_dim,
                         MemoryLedger& ledger)
    : head_dim_(head_dim), rule_(rule), wide_(head_dim % 4 == 0) {
  for (const MergeTask& t : tasks)
    for (const PartialRun& run : {t.from, t.into})
      wide_ = wide_ && multiple(run.o, 16) && run.o_stride % 4 == 0;
  const std::vector<RowTile> tiles = row_tiles(tasks, kMergeRows);
  num_tiles_ = int64_t(tiles.size());
  tasks_ = uploaded(tasks, ledger);
  tiles_ = uploaded(std::span<const RowTile>(tiles), ledger);
}

void DeviceMerge::launch(const Stream& stream) const {
  if (num_tiles_ == 0) return;
  const auto kernel = wide_ ? merge_kernel<float4> : merge_kernel<float>;
  kernel<<<unsigned(num_tiles_), kThreads, 0, stream.handle()>>>(
      reinterpret_cast<const MergeTask*>(tasks_.data()),
      reinterpret_cast<const RowTile*>(tiles_.data()), int(head_dim_), rule_ == MergeRule::kSum);
  check_cuda(cudaGetLastError(), "launch of merge");
}

DeviceWiden::DeviceWiden(std::span<const WidenTask> tasks, int64_t head_dim, StoredAs stored,
                         float factor, MemoryLedger& ledger)
    : head_dim_(head_dim), stored_(stored), factor_(factor) {
  const std::vector<RowTile> tiles = row_tiles(tasks, kMergeRows);
  num_tiles_ = int64_t(tiles.size());
  tasks_ = uploaded(tasks, ledger);
  tiles_ = uploaded(std::span<const RowTile>(tiles), ledger);
}

void DeviceWiden::launch(const Stream& stream) const {
  if (num_tiles_ == 0) return;
  widen_kernel<<<unsigned(num_tiles_), kThreads, 0, stream.handle()>>>(
      reinterpret_cast<const WidenTask*>(tasks_.data()),
      reinterpret_cast<const RowTile*>(tiles_.data()), int(head_dim_), stored_, factor_);
  check_cuda(cudaGetLastError(), "launch of widen");
}

DeviceFill::DeviceFill(std::span<const FillRows> tasks, uint64_t seed, int64_t head_dim,
                       StoredAs stored, MemoryLedger& ledger)
    : head_dim_(head_dim), seed_(seed), stored_(stored) {
  check(head_dim % 4 == 0, "head_dim must be a multiple of 4, is ", head_dim);
  const std::vector<RowTile> tiles = row_tiles(tasks, kFillRows);
  num_tiles_ = int64_t(tiles.size());
  tasks_ = uploaded(tasks, ledger);
  tiles_ = uploaded(std::span<const RowTile>(tiles), ledger);
}

void DeviceFill::launch(const Stream& stream) const {
  if (num_tiles_ == 0) return;
  generate_kernel<<<unsigned(num_tiles_), kThreads, 0, stream.handle()>>>(
      reinterpret_cast<const FillRows*>(tasks_.data()),
      reinterpret_cast<const RowTile*>(tiles_.data()), int(head_dim_), seed_, stored_);
  check_cuda(cudaGetLastError(), "launch of the generator");
}

void fill_floats(float* at, int64_t count, float value, const Stream& stream) {
  if (count <= 0) return;
  fill_kernel<<<blocks_for(count), kThreads, 0, stream.handle()>>>(at, count, value);
  check_cuda(cudaGetLastError(), "launch of fill");
}

void count_nan(const float* at, int64_t count, unsigned long long* total, const Stream& stream) {
  if (count <= 0) return;
  nan_kernel<<<blocks_for(count), kThreads, 0, stream.handle()>>>(at, count, total);
  check_cuda(cudaGetLastError(), "launch of count_nan");
}

}  // namespace longnet
