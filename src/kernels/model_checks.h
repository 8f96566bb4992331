// Checks that every kernel of a model's layers makes: they refuse matrices whose shapes or storage
// do not fit together, and on the host tokens and targets that are out of range.
#pragma once
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "kernels/model_kernel.h"

namespace longnet {

inline void check_shape(const char* what, const Matrix& x, int64_t rows, int64_t cols) {
  check(x.rows == rows && x.cols == cols, what, " is ", x.rows, " x ", x.cols, ", must be ", rows,
        " x ", cols);
  check(x.rows <= 1 || x.stride >= x.cols, what, ": stride ", x.stride, " is less than ", x.cols,
        " columns");
}
inline void check_fp32(const char* what, const Matrix& x, int64_t rows, int64_t cols) {
  check_shape(what, x, rows, cols);
  check(x.dtype == DType::kFloat32, what, " must be stored in fp32, not ", to_string(x.dtype));
}
inline void check_fp32(const char* what, const Matrix& x) { check_fp32(what, x, x.rows, x.cols); }

// Checks that a matrix has the shape and the storage of `as`.
inline void check_like(const char* what, const Matrix& x, const Matrix& as) {
  check_shape(what, x, as.rows, as.cols);
  check(x.dtype == as.dtype, what, " must be stored in ", to_string(as.dtype), ", not ",
        to_string(x.dtype));
}

inline void check_task(const GemmTask& task) {
  const int64_t m = task.m(), n = task.n(), k = task.k();
  check_shape("c", task.c, m, n);
  check_shape("a", task.a, task.transpose_a ? k : m, task.transpose_a ? m : k);
  check_shape("b", task.b, task.transpose_b ? n : k, task.transpose_b ? k : n);
  check(!task.accumulate || task.bias == nullptr, "gemm: a bias and accumulation at once");
}

// Tasks that fit whatever they are given.
inline void check_task(const AddColumnsTask&) {}
inline void check_task(const RowMomentsTask&) {}
inline void check_task(const UpdateTask&) {}
inline void check_task(const SumOfSquaresTask&) {}

inline void check_task(const LayerNormTask& task) {
  check_shape("y", task.y, task.x.rows, task.x.cols);
}

inline void check_task(const LayerNormBackwardTask& task) {
  check_shape("grad_y", task.grad_y, task.x.rows, task.x.cols);
  check_like("grad_x", task.grad_x, task.grad_y);
}

inline void check_task(const LayerNormSumsTask& task) {
  check_shape("grad_y", task.grad_y, task.x.rows, task.x.cols);
}

inline void check_task(const GeluTask& task) { check_like("y", task.y, task.x); }

inline void check_task(const GeluBackwardTask& task) {
  check_like("grad_y", task.grad_y, task.x);
  check_like("grad_x", task.grad_x, task.x);
}

inline void check_task(const AddTask& task) { check_like("y", task.y, task.x); }

inline constexpr int64_t kMostRotated = 256;  // columns of a head

inline void check_task(const RotateTask& task) {
  check(task.head_dim >= 8 && task.head_dim % 8 == 0 && task.head_dim <= kMostRotated,
        "rotate: head_dim must be a multiple of 8 from 8 to ", kMostRotated, ", is ",
        task.head_dim);
  check(task.x.cols % task.head_dim == 0, "rotate: ", task.x.cols, " columns are no heads of ",
        task.head_dim);
  check(task.positions.count == task.x.rows, "rotate: ", task.positions.count, " positions for ",
        task.x.rows, " rows");
}

inline void check_task(const EmbedTask& task) {
  check_fp32("table", task.table, task.table.rows, task.y.cols);
}

inline void check_task(const EmbedBackwardTask& task) {
  check_fp32("grad_table", task.grad_table, task.grad_table.rows, task.grad_y.cols);
}

inline void check_task(const CrossEntropyTask& task) { check_fp32("logits", task.logits); }

// ---- what tasks read of the host's memory ----

inline void check_tokens(const int32_t* tokens, int64_t count, int64_t table_rows) {
  for (int64_t i = 0; i < count; ++i)
    check(tokens[i] >= 0 && tokens[i] < table_rows, "row ", i, ": token ", tokens[i],
          " is outside of a table of ", table_rows, " rows");
}

// Returns the factor that clips the gradients: their norm becomes clip_norm at most.
inline double clipping_of(const UpdateTask& task) {
  double squares = 0;
  for (int64_t i = 0; i < task.pieces; ++i) squares += task.squares[2 * i];
  return task.clip_norm / std::max(task.clip_norm, std::sqrt(squares));
}

inline void check_values(const auto&) {}
inline void check_values(const EmbedTask& task) {
  check_tokens(task.tokens, task.y.rows, task.table.rows);
}
inline void check_values(const EmbedBackwardTask& task) {
  check_tokens(task.tokens, task.grad_y.rows, task.grad_table.rows);
}
inline void check_values(const CrossEntropyTask& task) {
  for (int64_t i = 0; i < task.logits.rows; ++i)
    check(task.targets[i] < task.logits.cols, "row ", i, ": target ", task.targets[i],
          " is not below ", task.logits.cols);
}

}  // namespace longnet
