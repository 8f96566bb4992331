#include <algorithm>

#include "core/check.h"
#include "core/cuda/cuda_check.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/rows_kernels.cuh"

namespace longnet {
namespace {

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

}  // namespace

uint64_t device_digest(std::span<const FillRows> tasks, int64_t head_dim, int64_t element_bytes,
                       const Stream& stream) {
  const std::vector<RowTile> tiles = row_tiles(tasks, kFillRows);
  if (tiles.empty()) return 0;
  MemoryLedger lists;  // gone when this returns
  const DeviceBuffer list = uploaded(tasks, lists),
                     tile_list = uploaded(std::span<const RowTile>(tiles), lists),
                     total(lists, "task_lists", sizeof(unsigned long long));
  stream.fill(total.data(), 0, total.size());
  digest_kernel<<<unsigned(tiles.size()), kThreads, 0, stream.handle()>>>(
      reinterpret_cast<const FillRows*>(list.data()),
      reinterpret_cast<const RowTile*>(tile_list.data()), int(head_dim * element_bytes / 8),
      element_bytes, reinterpret_cast<unsigned long long*>(total.data()));
  check_cuda(cudaGetLastError(), "launch of digest");
  unsigned long long digest = 0;
  stream.copy(&digest, total.data(), sizeof digest);
  stream.synchronize();
  return digest;
}

void device_summarize(std::span<const OutputRows> tasks, int64_t head_dim, const Stream& stream,
                      std::span<OutputSummary> summaries) {
  check(summaries.size() == tasks.size(), "summaries: ", summaries.size(),
        ", tasks: ", tasks.size());
  std::fill(summaries.begin(), summaries.end(), OutputSummary{});
  const std::vector<RowTile> tiles = row_tiles(tasks, kFillRows);
  if (tiles.empty()) return;
  MemoryLedger lists;
  const DeviceBuffer list = uploaded(tasks, lists),
                     tile_list = uploaded(std::span<const RowTile>(tiles), lists),
                     parts(lists, "task_lists", int64_t(tiles.size() * sizeof(TileSummary)));
  summarize_kernel<<<unsigned(tiles.size()), kThreads, 0, stream.handle()>>>(
      reinterpret_cast<const OutputRows*>(list.data()),
      reinterpret_cast<const RowTile*>(tile_list.data()), int(head_dim),
      reinterpret_cast<TileSummary*>(parts.data()));
  check_cuda(cudaGetLastError(), "launch of summarize");
  std::vector<TileSummary> host(tiles.size());
  stream.copy(host.data(), parts.data(), parts.size());
  stream.synchronize();
  for (size_t i = 0; i < tiles.size(); ++i) {  // in order: the same bits in every run
    const TileSummary& s = host[i];
    summaries[size_t(tiles[i].task)].add({.rows = tiles[i].count,
                                          .absent_rows = s.absent_rows,
                                          .nan_values = s.nan_values,
                                          .sum = s.sum,
                                          .sum_squares = s.sum_squares,
                                          .min = s.min,
                                          .max = s.max,
                                          .lse_sum = s.lse_sum,
                                          .digest = s.digest});
  }
}

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
