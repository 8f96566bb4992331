// ModelKernel on CPU cores: cut into pieces for threads. A sum over rows is cut where the shapes
// alone say, so that its bits do not depend on the number of threads.
#include <algorithm>
#include <array>
#include <limits>

#include "kernels/cpu/attend_simd.h"
#include "kernels/cpu/gemm_simd.h"
#include "kernels/cpu/model_rows_simd.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/model_checks.h"

namespace longnet {
namespace {

constexpr int64_t kPieceNumbers = 32768;  // in a piece of a matrix or vector of independent numbers
constexpr int64_t kSumRows = 64;          // rows whose gradients of gain and bias are one sum
constexpr int64_t kMostSums = 64;         // such sums that are held at a time
constexpr int64_t kTurnedRows = 64;       // rows of one call of rotate_rows
constexpr int64_t kPartialSums = 256;     // sums of losses or squares

// body(begin, rows) for runs of the rows of a matrix.
template <class Body>
void for_rows(const Matrix& x, int64_t piece_rows, int threads, const Body& body) {
  parallel_for(ceil_div(x.rows, piece_rows), threads, [&](int64_t i, int) {
    const int64_t begin = i * piece_rows;
    body(begin, std::min(piece_rows, x.rows - begin));
  });
}
template <class Body>
void for_rows(const Matrix& x, int threads, const Body& body) {
  for_rows(x, std::max(int64_t{1}, kPieceNumbers / std::max(x.cols, int64_t{1})), threads, body);
}

// body(begin, columns) for a range of whole vectors of columns per thread.
template <class Body>
void for_columns(int64_t cols, int threads, const Body& body) {
  const int64_t part = round_up(ceil_div(cols, int64_t{threads}), kMaxLanes);
  parallel_for(part == 0 ? 0 : ceil_div(cols, part), threads,
               [&](int64_t i, int) { body(i * part, std::min(part, cols - i * part)); });
}

// Adds body(begin, length) over at most kPartialSums pieces of [0, count), in order.
template <class Body>
double sum_of_pieces(int64_t count, int64_t fewest, int threads, const Body& body) {
  std::array<double, kPartialSums> sums;
  const int64_t piece = std::max(fewest, ceil_div(count, kPartialSums));
  const int64_t pieces = ceil_div(count, piece);
  parallel_for(pieces, threads, [&](int64_t i, int) {
    sums[size_t(i)] = body(i * piece, std::min(piece, count - i * piece));
  });
  double total = 0;
  for (int64_t i = 0; i < pieces; ++i) total += sums[size_t(i)];
  return total;
}

// Rows and columns of C's blocks: those by which the thread with the most blocks is done first. A
// packed number costs as much as kPackCost multiply-adds of a block.
struct GemmCut {
  int64_t rows, columns;
};

GemmCut cut_for(int64_t m, int64_t n, int64_t threads) {
  constexpr int64_t kPackCost = 40, kColumnStep = 64, kMoreCuts = 8;
  GemmCut best{};
  int64_t least = std::numeric_limits<int64_t>::max();
  const int64_t fewest_rows = ceil_div(m, kGemmRows), fewest_columns = ceil_div(n, kGemmColumns);
  for (int64_t i = fewest_rows; i < fewest_rows + kMoreCuts; ++i) {
    for (int64_t j = fewest_columns; j < fewest_columns + kMoreCuts; ++j) {
      const GemmCut cut{round_up(ceil_div(m, i), kGemmRowStep),
                        round_up(ceil_div(n, j), kColumnStep)};
      const int64_t blocks = ceil_div(m, cut.rows) * ceil_div(n, cut.columns);
      const int64_t cost = ceil_div(blocks, threads) *
                           (cut.rows * cut.columns + kPackCost * (cut.rows + cut.columns));
      if (cost < least) least = cost, best = cut;
    }
  }
  return best;
}

struct Crew {
  int threads;
  std::span<std::byte> workspace;
};

void run_task(const GemmTask& task, const Crew& crew) {
  const int64_t m = task.m(), n = task.n(), per_thread = gemm_workspace_bytes();
  check_workspace(crew.workspace, per_thread * crew.threads, crew.threads);
  if (m == 0 || n == 0) return;
  const GemmCut cut = cut_for(m, n, crew.threads);
  const int64_t across = ceil_div(n, cut.columns);
  parallel_for(ceil_div(m, cut.rows) * across, crew.threads, [&](int64_t i, int thread) {
    const int64_t row = i / across * cut.rows, column = i % across * cut.columns;
    gemm_block(task, {row, std::min(cut.rows, m - row), column, std::min(cut.columns, n - column)},
               crew.workspace.data() + thread * per_thread);
  });
}

void run_task(const AddColumnsTask& task, const Crew& crew) {
  for_columns(task.x.cols, crew.threads, [&](int64_t begin, int64_t columns) {
    add_columns_of(task.x.columns_from(begin, columns), task.into + begin);
  });
}

void run_task(const LayerNormTask& task, const Crew& crew) {
  for_rows(task.x, crew.threads, [&](int64_t begin, int64_t rows) {
    LayerNormTask piece = task;
    piece.x = task.x.rows_from(begin, rows);
    piece.y = task.y.rows_from(begin, rows);
    piece.moments = task.moments.rows_from(begin);
    layer_norm_rows(piece);
  });
}

void run_task(const RowMomentsTask& task, const Crew& crew) {
  for_rows(task.x, crew.threads, [&](int64_t begin, int64_t rows) {
    moments_of_rows(task.x.rows_from(begin, rows), task.into + 2 * begin);
  });
}

void run_task(const LayerNormSumsTask& task, const Crew& crew) {
  for_rows(task.x, crew.threads, [&](int64_t begin, int64_t rows) {
    LayerNormSumsTask piece = task;
    piece.x = task.x.rows_from(begin, rows);
    piece.grad_y = task.grad_y.rows_from(begin, rows);
    piece.moments = task.moments.rows_from(begin);
    piece.into = task.into + 2 * begin;
    layer_norm_sums_of_rows(piece);
  });
}

// Gradients of gain and bias: sums over kSumRows rows each, some of them at a time, are added
// column by column.
void run_task(const LayerNormBackwardTask& task, const Crew& crew) {
  const int64_t room = gemm_workspace_bytes();
  check_workspace(crew.workspace, room * crew.threads, crew.threads);
  const int64_t cols = task.x.cols, pitch = 2 * round_up(cols, kMaxLanes);
  const int64_t held =
      std::min(kMostSums, room / int64_t(sizeof(float)) / std::max(pitch, int64_t{1}));
  check(held > 0, "layer_norm_backward: no room for sums of ", cols, " columns");
  float* const sums = reinterpret_cast<float*>(crew.workspace.data());
  for (int64_t first = 0; first < task.x.rows; first += held * kSumRows) {
    const Matrix some = task.x.rows_from(first, std::min(held * kSumRows, task.x.rows - first));
    for_rows(some, kSumRows, crew.threads, [&](int64_t begin, int64_t rows) {
      LayerNormBackwardTask piece = task;
      piece.x = some.rows_from(begin, rows);
      piece.grad_y = task.grad_y.rows_from(first + begin, rows);
      piece.grad_x = task.grad_x.rows_from(first + begin, rows);
      piece.moments = task.moments.rows_from(first + begin);
      piece.sums = task.sums.rows_from(first + begin);
      piece.grad_gain = sums + begin / kSumRows * pitch;
      piece.grad_bias = piece.grad_gain + pitch / 2;
      std::fill_n(piece.grad_gain, pitch, 0.0f);
      layer_norm_backward_rows(piece);
    });
    const Matrix partial{sums, ceil_div(some.rows, kSumRows), cols, pitch};
    run_task(AddColumnsTask{partial, task.grad_gain}, crew);
    run_task(AddColumnsTask{partial.columns_from(pitch / 2, cols), task.grad_bias}, crew);
  }
}

void run_task(const GeluTask& task, const Crew& crew) {
  for_rows(task.x, crew.threads, [&](int64_t begin, int64_t rows) {
    gelu_rows(task.x.rows_from(begin, rows), task.y.rows_from(begin, rows));
  });
}

void run_task(const GeluBackwardTask& task, const Crew& crew) {
  for_rows(task.x, crew.threads, [&](int64_t begin, int64_t rows) {
    gelu_backward_rows(task.x.rows_from(begin, rows), task.grad_y.rows_from(begin, rows),
                       task.grad_x.rows_from(begin, rows));
  });
}

void run_task(const RotateTask& task, const Crew& crew) {
  for_rows(task.x, kTurnedRows, crew.threads, [&](int64_t begin, int64_t rows) {
    RotateTask piece = task;
    piece.x = task.x.rows_from(begin, rows);
    piece.positions = {task.positions[begin], task.positions.stride, rows};
    rotate_rows(piece);
  });
}

void run_task(const AddTask& task, const Crew& crew) {
  for_rows(task.x, crew.threads, [&](int64_t begin, int64_t rows) {
    add_matrix(task.x.rows_from(begin, rows), task.y.rows_from(begin, rows));
  });
}

void run_task(const EmbedTask& task, const Crew& crew) {
  for_rows(task.y, crew.threads, [&](int64_t begin, int64_t rows) {
    copy_rows(task.tokens + begin, task.table, task.y.rows_from(begin, rows));
  });
}

// A thread has some columns of all rows: rows of the table may recur.
void run_task(const EmbedBackwardTask& task, const Crew& crew) {
  for_columns(task.grad_y.cols, crew.threads, [&](int64_t begin, int64_t columns) {
    add_to_rows(task.tokens, task.grad_y.columns_from(begin, columns),
                task.grad_table.columns_from(begin, columns));
  });
}

void run_task(const CrossEntropyTask& task, const Crew& crew) {
  *task.loss += sum_of_pieces(task.logits.rows, 1, crew.threads, [&](int64_t begin, int64_t rows) {
    return cross_entropy_rows(
        {task.logits.rows_from(begin, rows), task.targets + begin, task.scale});
  });
}

void run_task(const UpdateTask& task, const Crew& crew) {
  const double clipping = clipping_of(task);
  parallel_for(ceil_div(task.count, kPieceNumbers), crew.threads, [&](int64_t i, int) {
    const int64_t begin = i * kPieceNumbers;
    UpdateTask piece = task;
    piece.weights += begin;
    piece.first_moment += begin;
    piece.second_moment += begin;
    piece.gradient += begin;
    piece.count = std::min(kPieceNumbers, task.count - begin);
    update_weights(piece, clipping);
  });
}

void run_task(const SumOfSquaresTask& task, const Crew& crew) {
  *task.into += sum_of_pieces(
      task.count, kPieceNumbers, crew.threads,
      [&](int64_t begin, int64_t count) { return sum_squares(task.x + begin, count); });
}

class CpuModelKernel final : public ModelKernel {
 public:
  std::string_view name() const override { return "cpu"; }
  int64_t workspace_bytes(int threads) const override {
    return gemm_workspace_bytes() * std::max(threads, 1);
  }
  void run(const ModelTask& task, int threads, std::span<std::byte> workspace) const override {
    std::visit(
        [&](const auto& what) {
          check_task(what);
          check_values(what);
          run_task(what, {threads, workspace});
        },
        task);
  }
};

}  // namespace

std::unique_ptr<ModelKernel> make_cpu_model_kernel() { return std::make_unique<CpuModelKernel>(); }

}  // namespace longnet
