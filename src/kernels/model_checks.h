// What every ModelKernel refuses: matrices whose shapes or storage do not fit together.
#pragma once
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

// The same shape and storage as those of `as`.
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

inline void check_task(const LayerNormTask& task) {
  check_shape("y", task.y, task.x.rows, task.x.cols);
}

inline void check_task(const LayerNormBackwardTask& task) {
  check_shape("grad_y", task.grad_y, task.x.rows, task.x.cols);
  check_like("grad_x", task.grad_x, task.grad_y);
}

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

inline void check_tokens(const int32_t* tokens, int64_t count, int64_t table_rows) {
  for (int64_t i = 0; i < count; ++i)
    check(tokens[i] >= 0 && tokens[i] < table_rows, "row ", i, ": token ", tokens[i],
          " is outside of a table of ", table_rows, " rows");
}

inline void check_task(const CrossEntropyTask& task) {
  check_fp32("logits", task.logits);
  for (int64_t i = 0; i < task.logits.rows; ++i)
    check(task.targets[i] < task.logits.cols, "row ", i, ": target ", task.targets[i],
          " is not below ", task.logits.cols);
}

}  // namespace longnet
