// Row-wise functions of a model's layers on one core (see model_kernel.h), on a run of rows that
// one thread works on. Matrices are fp32 or bf16; what is added up and written is rounded once.
#pragma once
#include <cstdint>

#include "kernels/model_kernel.h"

namespace longnet {

// y = x Phi(x), with Phi(-|x|) = exp(-x^2 / 2) R(|x|), where R is a polynomial of degree 9 in
// 1 / (1 + 0.34 |x|): relative error below 5e-7 also where Phi is tiny.
void gelu_rows(const Matrix& x, const Matrix& y);
void gelu_backward_rows(const Matrix& x, const Matrix& grad_y, const Matrix& grad_x);

// Position after position by complex products in double; calls begin with exact angles.
void rotate_rows(const RotateTask& task);

// y += x.
void add_matrix(const Matrix& x, const Matrix& y);
// into[j] += sum of column j. In groups of 64 rows, whose sums are added one after the other.
void add_columns_of(const Matrix& x, float* into);
// Row rows[i] of table, in fp32, += row i of x; row i of y = row rows[i] of table.
void add_to_rows(const int32_t* rows, const Matrix& x, const Matrix& table);
void copy_rows(const int32_t* rows, const Matrix& table, const Matrix& y);

}  // namespace longnet
