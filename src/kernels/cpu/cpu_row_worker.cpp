// RowWorker on CPU cores: cuts rows into pieces that stay in a cache between fill and digest.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/check.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/row_work_simd.h"
#include "kernels/row_worker.h"

namespace longnet {

namespace {

constexpr int64_t kPieceRows = 1024;               // 128 KB of bf16 at d = 64: half of an L2
constexpr int64_t kPieceBytes = int64_t{4} << 20;  // of poison

struct Piece {
  size_t task;
  int64_t begin, rows;
};

template <class Task>
std::vector<Piece> pieces_of(std::span<const Task> tasks) {
  std::vector<Piece> pieces;
  for (size_t t = 0; t < tasks.size(); ++t)
    for (int64_t at = 0; at < tasks[t].rows; at += kPieceRows)
      pieces.push_back({t, at, std::min(kPieceRows, tasks[t].rows - at)});
  return pieces;
}

class CpuRowWorker final : public RowWorker {
 public:
  void fill(std::span<const FillRows> tasks, const RowFormat& format, int threads,
            uint64_t* digest) const override {
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
    const std::vector<Piece> pieces = pieces_of(tasks);
    std::vector<OutputSummary> parts(pieces.size());
    parallel_for(int64_t(pieces.size()), threads, [&](int64_t i, int) {
      const Piece& piece = pieces[size_t(i)];
      OutputRows rows = tasks[piece.task];
      rows.o += piece.begin * rows.o_stride;
      if (rows.lse != nullptr) rows.lse += piece.begin * rows.lse_stride;
      rows.first_token += piece.begin * rows.token_step;
      rows.rows = piece.rows;
      parts[size_t(i)] = summarize_rows(rows, head_dim);
    });
    std::fill(summaries.begin(), summaries.end(), OutputSummary{});
    for (size_t i = 0; i < pieces.size(); ++i) summaries[pieces[i].task].add(parts[i]);
  }

  void poison(std::span<std::byte> bytes, int threads) const override {
    const int64_t size = int64_t(bytes.size());
    parallel_for((size + kPieceBytes - 1) / kPieceBytes, threads, [&](int64_t i, int) {
      const int64_t begin = i * kPieceBytes;
      std::memset(bytes.data() + begin, 0xFF, size_t(std::min(kPieceBytes, size - begin)));
    });
  }

 private:
  template <class Body>
  static uint64_t sum_over_pieces(std::span<const FillRows> tasks, const RowFormat& format,
                                  int threads, const Body& body) {
    check(format.head_dim % 8 == 0 && format.head_dim * 4 <= kMaxRowWords * 8,
          "head_dim must be a multiple of 8 up to 256, is ", format.head_dim);
    const std::vector<Piece> pieces = pieces_of(tasks);
    std::vector<uint64_t> parts(size_t(std::max(threads, 1)) * 8);  // a cache line each
    parallel_for(int64_t(pieces.size()), threads, [&](int64_t i, int thread) {
      const Piece& piece = pieces[size_t(i)];
      FillRows rows = tasks[piece.task];
      rows.out = static_cast<std::byte*>(rows.out) +
                 piece.begin * rows.row_stride * dtype_bytes(format.dtype);
      rows.first_token += piece.begin * rows.token_step;
      rows.rows = piece.rows;
      parts[size_t(thread) * 8] += body(rows);
    });
    uint64_t sum = 0;
    for (uint64_t part : parts) sum += part;
    return sum;
  }
};

}  // namespace

std::unique_ptr<RowWorker> make_cpu_row_worker() { return std::make_unique<CpuRowWorker>(); }

}  // namespace longnet
