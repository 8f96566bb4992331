// Functions of a model's layers, its loss and the update of its weights on one core (see
// model_kernel.h), on what one thread works on. Matrices are fp32 or bf16; what is added up and
// written is rounded once. Loss and update are all in fp32.
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

// ---- loss and update (model_loss_simd.cpp)

// Returns the loss of the rows; task.loss is not used.
double cross_entropy_rows(const CrossEntropyTask& task);
// `clipping`: of gradients, for which neither squares nor pieces are read.
void update_weights(const UpdateTask& task, double clipping);
double sum_squares(const float* x, int64_t count);

// ---- layer normalisation (layer_norm_simd.cpp), also of rows whose columns lie on several ranks

void layer_norm_rows(const LayerNormTask& task);
// grad_gain and grad_bias are added to: sums of one thread.
void layer_norm_backward_rows(const LayerNormBackwardTask& task);
// As RowMomentsTask.
void moments_of_rows(const Matrix& x, float* into);
void layer_norm_sums_of_rows(const LayerNormSumsTask& task);

}  // namespace longnet
