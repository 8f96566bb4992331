// AttentionKernel and RowWorker on CPU cores: cut into pieces for threads.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "core/token_range.h"
#include "kernels/cpu/attend_amx_simd.h"
#include "kernels/cpu/attend_backward_simd.h"
#include "kernels/cpu/attend_simd.h"
#include "kernels/cpu/backward_schedule.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/rows_simd.h"

namespace longnet {
namespace {

// Merge and pack are cut into pieces of this many rows, so that one long task feeds all threads.
constexpr int64_t kPieceRows = 512;
// Attends are cut into pieces of so many queries: enough to make packing keys cheap, and short ones
// further, so that every thread has some. Below the fewest, packing costs more than an idle thread.
constexpr int64_t kRowsPerPiece = 2048, kFewestRowsPerPiece = 256;

void check_task(const AttendTask& task, const AttendOptions& options) {
  const auto check_run = [&](const char* what, int64_t rows, int64_t token_step) {
    check(rows >= 0, what, " rows = ", rows);
    check(!options.causal || rows <= 1 || token_step >= 1, "a causal ", what,
          " run needs token_step >= 1, has ", token_step);
  };
  check_run("query", task.q.rows, task.q.token_step);
  for (const KvRun run : task.kv) check_run("key", run.rows, run.token_step);
}

class CpuKernel : public AttentionKernel {
 public:
  std::string_view name() const override { return "cpu"; }

  int64_t workspace_bytes(const AttendOptions& options, int threads) const override {
    return task_bytes(options) * std::max(threads, 1);
  }

  void attend(std::span<const AttendGrid> grids, const AttendOptions& options, int threads,
              std::span<std::byte> workspace) const override {
    check_call(options, threads, workspace_bytes(options, threads), workspace);
    const int64_t per_thread = task_bytes(options);
    int64_t rows = 0;
    for (const AttendGrid& grid : grids) {
      check_task(grid.task, options);
      rows += grid.size() * grid.task.q.rows;
    }
    const AttendOptions elsewhere = without_hook(options);
    const int64_t piece =
        std::clamp(ceil_div(rows, int64_t{threads}), kFewestRowsPerPiece, kRowsPerPiece);
    const auto pieces = [&](const AttendGrid& grid) { return ceil_div(grid.task.q.rows, piece); };
    parallel_for_lists(
        grids, threads, [&](const AttendGrid& grid) { return grid.size() * pieces(grid); },
        [&](const AttendGrid& grid, int64_t i, int thread) {
          const int64_t begin = i % pieces(grid) * piece;
          run_task(rows_of(grid.at(i / pieces(grid)), begin,
                           std::min(piece, grid.task.q.rows - begin), dtype_bytes(options.dtype)),
                   thread == 0 ? options : elsewhere, workspace.data() + thread * per_thread);
        });
  }

  int64_t backward_workspace_bytes(const AttendOptions& options, int threads) const override {
    return std::max(block_bytes(options), task_bytes(options)) * std::max(threads, 1);
  }

  // Grid after grid, since two of them may share keys, and step after step.
  void attend_backward(std::span<const BackwardGrid> grids, const AttendOptions& options,
                       int threads, std::span<std::byte> workspace) const override {
    check_call(options, threads, backward_workspace_bytes(options, threads), workspace);
    const int64_t per_thread = block_bytes(options);
    const int64_t element = dtype_bytes(options.dtype);
    const AttendOptions elsewhere = without_hook(options);
    for (const BackwardGrid& grid : grids) {
      check_task(grid.attend.task, options);
      const BackwardSchedule schedule(grid.attend, element, options.head_dim, tile_rows());
      for (int64_t step = 0; step < schedule.steps(); ++step)
        parallel_for(schedule.blocks(), threads, [&](int64_t i, int thread) {
          const auto block = schedule.block(step, i);
          if (block)
            run_block(
                rows_of(grid.at(block->place, element), block->first_row, block->rows, element),
                block->keys, thread == 0 ? options : elsewhere,
                workspace.data() + thread * per_thread);
        });
    }
  }

  void delta(std::span<const DeltaTask> tasks, const AttendOptions& options,
             int threads) const override {
    check_supported(options);
    parallel_for_pieces(
        tasks, kPieceRows, threads, [&](DeltaTask piece, int64_t begin, int64_t rows) {
          piece.out = advanced(piece.out, begin);
          piece.grad_out = static_cast<const std::byte*>(piece.grad_out) +
                           begin * piece.grad_out_stride * dtype_bytes(options.dtype);
          piece.statistics += begin * piece.statistics_stride;
          piece.rows = rows;
          delta_rows(piece, options);
        });
  }

  void merge(std::span<const MergeTask> tasks, MergeRule rule, const AttendOptions& options,
             int threads) const override {
    parallel_for_pieces(tasks, kPieceRows, threads,
                        [&](MergeTask piece, int64_t begin, int64_t rows) {
                          piece.from = advanced(piece.from, begin);
                          piece.into = advanced(piece.into, begin);
                          piece.rows = rows;
                          merge_rows(piece, rule, options.head_dim);
                        });
  }

  // Piece after piece, on rows that stay in the cache.
  void add(std::span<const SumTask> tasks, const AttendOptions& options,
           int threads) const override {
    parallel_for_pieces(tasks, kPieceRows, threads,
                        [&](const SumTask& task, int64_t begin, int64_t rows) {
                          PackTask part = part_of(task, begin, rows, sizeof(float), sizeof(float));
                          for (int64_t piece = 0; piece < task.pieces; ++piece) {
                            add_rows(part, options.head_dim);
                            part.from = static_cast<const float*>(part.from) + task.piece_stride;
                          }
                        });
  }

  void pack(std::span<const PackTask> tasks, Conversion conversion, const AttendOptions& options,
            int threads) const override {
    if (options.dtype == DType::kFloat32) conversion = Conversion::kNone;
    const int64_t element = dtype_bytes(options.dtype), wide = sizeof(float);
    const int64_t from_bytes = conversion == Conversion::kRound ? wide : element;
    const int64_t into_bytes = conversion == Conversion::kWiden ? wide : element;
    parallel_for_pieces(tasks, kPieceRows, threads,
                        [&](const PackTask& task, int64_t begin, int64_t rows) {
                          pack_rows(part_of(task, begin, rows, from_bytes, into_bytes), conversion,
                                    options.head_dim, element);
                        });
  }

  // Fills in pieces as long as the number of threads allows: memset bypasses the caches for long
  // ones, which is twice as fast in memory.
  void fill(std::span<const std::span<float>> ranges, float value, int threads) const override {
    constexpr int64_t kFewestFloats = int64_t{1} << 18;
    const auto piece_of = [&](std::span<float> range) {
      return std::max(kFewestFloats, ceil_div(std::ssize(range), int64_t{threads}));
    };
    parallel_for_lists(
        ranges, threads,
        [&](std::span<float> range) { return ceil_div(std::ssize(range), piece_of(range)); },
        [&](std::span<float> range, int64_t i, int) {
          float* const first = range.data() + i * piece_of(range);
          const int64_t count = std::min(piece_of(range), std::ssize(range) - i * piece_of(range));
          if (value == 0.0f)
            std::memset(first, 0, size_t(count) * sizeof(float));
          else
            std::fill_n(first, count, value);
        });
  }

 protected:
  std::string why_kernel_unsupported(const AttendOptions& options) const override {
    return why_head_dim_unsupported(options.head_dim, kMaxHeadDim);
  }
  // Bytes of scratch memory of a task's forward pass, and that pass.
  virtual int64_t task_bytes(const AttendOptions& options) const {
    return attend_workspace_bytes(options.head_dim);
  }
  virtual void run_task(const AttendTask& task, const AttendOptions& options,
                        std::byte* workspace) const {
    attend_task(task, options, workspace);
  }
  // Bytes of scratch memory of a block's backward pass, that pass, and the rows of its tiles.
  virtual int64_t block_bytes(const AttendOptions& options) const {
    return backward_block_bytes(options.head_dim);
  }
  virtual void run_block(const BackwardTask& task, KeyRange range, const AttendOptions& options,
                         std::byte* workspace) const {
    backward_block(task, range, options, workspace);
  }
  virtual int64_t tile_rows() const { return kBackwardTileRows; }

 private:
  void check_supported(const AttendOptions& options) const {
    const std::string why = why_unsupported(options);
    check(why.empty(), "kernel ", name(), ": ", why);
  }
  void check_call(const AttendOptions& options, int threads, int64_t needed,
                  std::span<const std::byte> workspace) const {
    check_supported(options);
    check_workspace(workspace, needed, threads);
  }

  static AttendOptions without_hook(AttendOptions options) {
    options.progress_hook = nullptr;
    return options;
  }

  static PackTask part_of(PackTask task, int64_t begin, int64_t rows, int64_t from_bytes,
                          int64_t into_bytes) {
    task.from = static_cast<const std::byte*>(task.from) + begin * task.from_stride * from_bytes;
    task.into = static_cast<std::byte*>(task.into) + begin * task.into_stride * into_bytes;
    task.rows = rows;
    return task;
  }
  static PartialRun advanced(PartialRun run, int64_t rows) {
    run.o += rows * run.o_stride;
    run.lse += rows * run.lse_stride;
    return run;
  }
};

// Both passes by AMX tiles, all else as `cpu`.
class AmxKernel final : public CpuKernel {
 public:
  std::string_view name() const override { return "cpu_amx"; }

  bool rounds_probabilities(DType storage) const override { return storage == DType::kBFloat16; }

 protected:
  std::string why_kernel_unsupported(const AttendOptions& options) const override {
    const std::string why = CpuKernel::why_kernel_unsupported(options);
    return why.empty() ? why_amx_absent() : why;
  }
  int64_t task_bytes(const AttendOptions& options) const override {
    return amx_workspace_bytes(options);
  }
  void run_task(const AttendTask& task, const AttendOptions& options,
                std::byte* workspace) const override {
    amx_attend_task(task, options, workspace);
  }
  int64_t block_bytes(const AttendOptions& options) const override {
    return amx_backward_block_bytes(options);
  }
  void run_block(const BackwardTask& task, KeyRange range, const AttendOptions& options,
                 std::byte* workspace) const override {
    amx_backward_block(task, range, options, workspace);
  }
  int64_t tile_rows() const override { return kAmxBackwardTileRows; }
};

// ---- RowWorker: cuts rows into pieces that stay in a cache between fill and digest ----

constexpr int64_t kWorkRows = 1024;                 // 128 KB of bf16 at d = 64: half of an L2
constexpr int64_t kPoisonBytes = int64_t{4} << 20;  // bytes of one call of memset

class CpuRowWorker final : public RowWorker {
 public:
  void fill(std::span<const FillRows> tasks, const RowFormat& format, int threads, uint64_t* digest,
            std::span<const std::span<std::byte>> poisoned) const override {
    for (const std::span<std::byte> bytes : poisoned) poison(bytes, threads);
    const uint64_t sum = sum_over_pieces(tasks, format, threads, [&](const FillRows& rows) {
      fill_rows(rows, format);
      return digest == nullptr ? uint64_t{0} : digest_rows(rows, format);
    });
    if (digest != nullptr) *digest += sum;
  }

  uint64_t digest(std::span<const FillRows> tasks, const RowFormat& format,
                  int threads) const override {
    return sum_over_pieces(tasks, format, threads,
                           [&](const FillRows& rows) { return digest_rows(rows, format); });
  }

  void summarize(std::span<const OutputRows> tasks, int64_t head_dim, int threads,
                 std::span<OutputSummary> summaries) const override {
    check(summaries.size() == tasks.size(), "summaries: ", summaries.size(),
          ", tasks: ", tasks.size());
    std::vector<std::pair<size_t, OutputRows>> pieces;  // (number of the task, some of its rows)
    for (size_t t = 0; t < tasks.size(); ++t)
      for (int64_t at = 0; at < tasks[t].rows; at += kWorkRows) {
        OutputRows& rows = pieces.emplace_back(t, tasks[t]).second;
        rows.o += at * rows.o_stride;
        if (rows.lse != nullptr) rows.lse += at * rows.lse_stride;
        rows.first_token += at * rows.token_step;
        rows.rows = std::min(kWorkRows, tasks[t].rows - at);
      }
    std::vector<OutputSummary> parts(pieces.size());
    parallel_for(int64_t(pieces.size()), threads, [&](int64_t i, int) {
      OutputRows rows = pieces[size_t(i)].second;
      std::vector<float> wide;
      if (rows.dtype == DType::kBFloat16) {
        for (int64_t row = 0; row < rows.rows; ++row) {
          const auto* const bits = reinterpret_cast<const uint16_t*>(rows.o + row * rows.o_stride);
          std::transform(bits, bits + head_dim, std::back_inserter(wide), bf16_value);
        }
        rows.o = wide.data(), rows.o_stride = head_dim;
      }
      parts[size_t(i)] = summarize_rows(rows, head_dim);
    });
    std::fill(summaries.begin(), summaries.end(), OutputSummary{});
    for (size_t i = 0; i < pieces.size(); ++i) summaries[pieces[i].first].add(parts[i]);
  }

  void poison(std::span<std::byte> bytes, int threads) const override {
    const int64_t size = int64_t(bytes.size());
    parallel_for((size + kPoisonBytes - 1) / kPoisonBytes, threads, [&](int64_t i, int) {
      const int64_t begin = i * kPoisonBytes;
      std::memset(bytes.data() + begin, 0xFF, size_t(std::min(kPoisonBytes, size - begin)));
    });
  }

 private:
  template <class Body>
  static uint64_t sum_over_pieces(std::span<const FillRows> tasks, const RowFormat& format,
                                  int threads, const Body& body) {
    check(format.head_dim % 8 == 0 && format.head_dim * 4 <= kMaxRowWords * 8,
          "head_dim must be a multiple of 8 up to 256, is ", format.head_dim);
    std::atomic<uint64_t> sum = 0;
    parallel_for_pieces(tasks, kWorkRows, threads, [&](FillRows piece, int64_t begin, int64_t n) {
      piece.out =
          static_cast<std::byte*>(piece.out) + begin * piece.row_stride * dtype_bytes(format.dtype);
      piece.first_token += begin * piece.token_step;
      piece.rows = n;
      sum += body(piece);
    });
    return sum;
  }
};

}  // namespace

std::unique_ptr<RowWorker> make_cpu_row_worker() { return std::make_unique<CpuRowWorker>(); }
std::unique_ptr<AttentionKernel> make_cpu_kernel() { return std::make_unique<CpuKernel>(); }
std::unique_ptr<AttentionKernel> make_amx_kernel() { return std::make_unique<AmxKernel>(); }

}  // namespace longnet
