#include <algorithm>
#include <numeric>
#include <type_traits>

#include "core/tagged_memory.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/rows_kernels.cuh"
#include "kernels/cuda/summary_kernels.cuh"

namespace longnet {
namespace {

constexpr int64_t kMostBlocks = 4096;    // in kernels that loop over a flat range
constexpr unsigned kPoisonBlocks = 132;  // one for each multiprocessor of a large GPU
constexpr int64_t kFillRows = 1024, kManyTiles = 16384;

// The first rows of each task, then the next ones of each: heads of the same tokens, which lie
// together in memory, are worked on together.
template <class Task>
std::vector<RowTile> row_tiles(std::span<const Task> tasks, int rows_per_tile) {
  std::vector<RowTile> tiles;
  std::vector<int32_t> left(tasks.size());
  std::iota(left.begin(), left.end(), 0);
  for (int64_t at = 0; !left.empty(); at += rows_per_tile) {
    std::erase_if(left, [&](int32_t i) { return tasks[size_t(i)].rows <= at; });
    for (const int32_t i : left)
      tiles.push_back(
          {i, int32_t(std::min<int64_t>(rows_per_tile, tasks[size_t(i)].rows - at)), at});
  }
  check(tiles.size() < (size_t{1} << 31), "too many row tiles: ", tiles.size());
  return tiles;
}

// A launch of `kernel` with a block per tile of rows. The rest of its arguments follow the lists.
template <class Task, class... Rest>
Prepared prepared(std::span<const Task> tasks, int rows_per_tile, MemoryLedger& ledger,
                  Located what, void (*kernel)(const Task*, const RowTile*, Rest...),
                  std::type_identity_t<Rest>... rest) {
  const std::vector<RowTile> tiles = row_tiles(tasks, rows_per_tile);
  Prepared work;
  const Task* const task_list = work.upload(std::vector(tasks.begin(), tasks.end()), ledger);
  const RowTile* const tile_list = work.upload(tiles, ledger);
  if (tiles.empty()) return work;
  work.then([=, blocks = unsigned(tiles.size())](const Stream& stream) {
    kernel<<<blocks, kThreads, 0, stream.handle()>>>(task_list, tile_list, rest...);
    check_cuda(cudaGetLastError(), what);
  });
  return work;
}

bool multiple(const void* p, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % size_t(bytes) == 0;
}

unsigned blocks_for(int64_t items) {
  return unsigned(std::min(kMostBlocks, (items + kThreads - 1) / kThreads));
}

// Rows of a tile where whole shards are made or summed up: 1024, or so many that lists stay short.
template <class Task>
int fill_rows(std::span<const Task> tasks) {
  int64_t rows = 0;
  for (const Task& task : tasks) rows += task.rows;
  return int(kFillRows * std::max<int64_t>(1, rows / (kManyTiles * kFillRows)));
}

// Calls make(threads that have a row together, kLanes each).
template <int kLanes, class Make>
auto with_share(int64_t head_dim, Make make) {
  check(head_dim % 8 == 0 && head_dim <= 256, "head_dim must be a multiple of 8 up to 256, is ",
        head_dim);
  if (head_dim <= 64) return make(std::integral_constant<int, 64 / kLanes>());
  if (head_dim <= 128) return make(std::integral_constant<int, 128 / kLanes>());
  return make(std::integral_constant<int, 256 / kLanes>());
}

// `digest`, unless null, grows by the digest of the rows at each launch.
Prepared prepare_fill(std::span<const FillRows> tasks, uint64_t seed, int64_t head_dim,
                      DType stored, Hash* digest, MemoryLedger& ledger) {
  return with_share<16>(head_dim, [&]<int kShare>(std::integral_constant<int, kShare>) {
    const auto of = [&](const auto kernel) {
      return prepared(tasks, fill_rows(tasks), ledger, "launch of the generator", kernel,
                      int(head_dim / 8), seed, digest);
    };
    return of(stored == DType::kFloat32 ? generate_kernel<float, kShare>
                                        : generate_kernel<uint16_t, kShare>);
  });
}

// Lists are gone when a call returns.
class DeviceRowWorker final : public RowWorker {
 public:
  void fill(std::span<const FillRows> tasks, const RowFormat& format, int, uint64_t* digest_sum,
            std::span<const std::span<std::byte>> poisoned) const override {
    for (const std::span<std::byte> bytes : poisoned) poison_beside(bytes);
    const uint64_t sum = summed([&](Hash* total, MemoryLedger& lists) {
      return prepare_fill(tasks, format.seed, format.head_dim, format.dtype, total, lists);
    });
    beside_.synchronize();
    if (digest_sum != nullptr) *digest_sum += sum;
  }

  uint64_t digest(std::span<const FillRows> tasks, const RowFormat& format, int) const override {
    return summed([&](Hash* total, MemoryLedger& lists) {
      return with_share<16>(format.head_dim, [&]<int kShare>(std::integral_constant<int, kShare>) {
        return prepared(tasks, fill_rows(tasks), lists, "launch of digest",
                        format.dtype == DType::kFloat32 ? digest_kernel<float, kShare>
                                                        : digest_kernel<uint16_t, kShare>,
                        int(format.head_dim / 8), total);
      });
    });
  }

  void summarize(std::span<const OutputRows> tasks, int64_t head_dim, int,
                 std::span<OutputSummary> summaries) const override {
    check(summaries.size() == tasks.size(), "summaries: ", summaries.size(),
          ", tasks: ", tasks.size());
    std::fill(summaries.begin(), summaries.end(), OutputSummary{});
    const std::vector<RowTile> tiles = row_tiles(tasks, fill_rows(tasks));
    std::vector<OutputSummary> host(tiles.size());
    MemoryLedger lists;
    const DeviceBuffer parts(lists, kTaskLists, int64_t(tiles.size() * sizeof(OutputSummary)));
    const Prepared sums =
        with_share<8>(head_dim, [&]<int kShare>(std::integral_constant<int, kShare>) {
          return prepared(tasks, fill_rows(tasks), lists, "launch of summarize",
                          summarize_kernel<kShare>, int(head_dim / 4),
                          reinterpret_cast<OutputSummary*>(parts.data()));
        });
    sums.launch(stream_);
    stream_.copy(host.data(), parts.data(), parts.size());
    stream_.synchronize();
    for (size_t i = 0; i < tiles.size(); ++i)  // in order: the same bits in every run
      summaries[size_t(tiles[i].task)].add(host[i]);
  }

  void poison(std::span<std::byte> bytes, int) const override {
    stream_.fill(bytes.data(), 0xFF, int64_t(bytes.size()));
    stream_.synchronize();
  }

 private:
  // Poisons with so few threads that they leave room for blocks that compute: these are bound by
  // multiplications, and memory is idle half of the time.
  void poison_beside(std::span<std::byte> bytes) const {
    const int64_t count = int64_t(bytes.size() / sizeof(uint4)),
                  end = count * int64_t{sizeof(uint4)};
    poison_kernel<<<kPoisonBlocks, kPoisonThreads, 0, beside_.handle()>>>(
        reinterpret_cast<uint4*>(bytes.data()), count);
    check_cuda(cudaGetLastError(), "launch of poison");
    beside_.fill(bytes.data() + end, 0xFF, int64_t(bytes.size()) - end);
  }

  // The total to which the work that `make` prepares adds.
  template <class Make>
  uint64_t summed(Make make) const {
    Hash sum = 0;
    MemoryLedger lists;
    const DeviceBuffer total(lists, kTaskLists, sizeof sum);
    stream_.fill(total.data(), 0, total.size());
    const Prepared work = make(reinterpret_cast<Hash*>(total.data()), lists);
    work.launch(stream_);
    stream_.copy(&sum, total.data(), sizeof sum);
    stream_.synchronize();
    return sum;
  }

  Stream stream_, beside_;
};

}  // namespace

Prepared prepare_pack(std::span<const PackTask> tasks, Conversion conversion, int64_t head_dim,
                      int64_t element_bytes, MemoryLedger& ledger) {
  if (conversion != Conversion::kNone)
    return prepared(tasks, kPackRows, ledger, "launch of convert", convert_kernel, int(head_dim),
                    conversion == Conversion::kRound);
  const int64_t row_bytes = head_dim * element_bytes;
  check(row_bytes % 4 == 0, "rows of ", row_bytes, " bytes");
  bool wide = row_bytes % 16 == 0;  // every row can be copied in 16-byte pieces
  for (const PackTask& t : tasks)
    wide = wide && multiple(t.from, 16) && multiple(t.into, 16) &&
           t.from_stride * element_bytes % 16 == 0 && t.into_stride * element_bytes % 16 == 0;
  return prepared(tasks, kPackRows, ledger, "launch of pack",
                  wide ? pack_kernel<uint4> : pack_kernel<uint32_t>, row_bytes, element_bytes);
}

Prepared prepare_merge(std::span<const MergeTask> tasks, MergeRule rule, int64_t head_dim,
                       MemoryLedger& ledger, DType dtype) {
  const auto of = [&](const auto kernel, int64_t units) {
    return prepared(tasks, kMergeRows, ledger, "launch of merge", kernel, int(units),
                    rule == MergeRule::kSum);
  };
  if (dtype == DType::kBFloat16) return of(merge_kernel<PairOfBf16>, head_dim / 2);
  bool wide = head_dim % 4 == 0;
  for (const MergeTask& t : tasks)
    for (const PartialRun& run : {t.from, t.into})
      wide = wide && multiple(run.o, 16) && run.o_stride % 4 == 0;
  return wide ? of(merge_kernel<float4>, head_dim / 4) : of(merge_kernel<float>, head_dim);
}

Prepared prepare_add(std::span<const SumTask> tasks, int64_t head_dim, MemoryLedger& ledger) {
  bool wide = head_dim % 4 == 0;
  for (const SumTask& t : tasks)
    wide = wide && multiple(t.from, 16) && multiple(t.into, 16) && t.from_stride % 4 == 0 &&
           t.into_stride % 4 == 0 && t.piece_stride % 4 == 0;
  return prepared(tasks, kMergeRows, ledger, "launch of add",
                  wide ? add_kernel<float4> : add_kernel<float>, int(head_dim));
}

Prepared prepare_delta(std::span<const DeltaTask> tasks, int64_t head_dim, MemoryLedger& ledger) {
  return prepared(tasks, kMergeRows, ledger, "launch of delta", delta_kernel, int(head_dim));
}

Prepared prepare_widen(std::span<const WidenTask> tasks, int64_t head_dim, float factor,
                       MemoryLedger& ledger) {
  return prepared(tasks, kMergeRows, ledger, "launch of widen", widen_kernel, int(head_dim),
                  factor);
}

Prepared prepare_sdpa_rows(std::span<const SdpaRowsTask> tasks, int64_t head_dim, float factor,
                           MemoryLedger& ledger) {
  return prepared(tasks, kMergeRows, ledger, "launch of sdpa_rows", sdpa_rows_kernel, int(head_dim),
                  factor);
}

Prepared prepare_add_widened(std::span<const PackTask> tasks, int64_t head_dim, float factor,
                             MemoryLedger& ledger) {
  return prepared(tasks, kMergeRows, ledger, "launch of add_widened", add_widened_kernel,
                  int(head_dim), factor);
}

Prepared prepare_fill(std::span<const FillRows> tasks, uint64_t seed, int64_t head_dim,
                      DType stored, MemoryLedger& ledger) {
  return prepare_fill(tasks, seed, head_dim, stored, nullptr, ledger);
}

std::unique_ptr<RowWorker> make_device_row_worker() { return std::make_unique<DeviceRowWorker>(); }

void fill_floats(float* at, int64_t count, float value, const Stream& stream) {
  if (count <= 0) return;
  fill_kernel<<<blocks_for(count), kThreads, 0, stream.handle()>>>(at, count, value);
  check_cuda(cudaGetLastError(), "launch of fill");
}

void count_nan(const float* at, int64_t count, unsigned long long* total, const Stream& stream,
               DType dtype) {
  if (count <= 0) return;
  nan_kernel<<<blocks_for(count), kThreads, 0, stream.handle()>>>(at, count,
                                                                  dtype == DType::kBFloat16, total);
  check_cuda(cudaGetLastError(), "launch of count_nan");
}

}  // namespace longnet
