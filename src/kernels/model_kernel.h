// Kernels of a model's layers, beside attention: products of matrices, row-wise functions, loss,
// update. Each is a task; ModelKernel runs it on the host's cores. As those of attention_kernel.h
// they know rows, strides and positions, and nothing of layers or ranks.
//
// Activations are row-major matrices, stored in fp32 or bf16, rounded to nearest, ties to even;
// logits, weights and their gradients are fp32, but products take matrices of both kinds anywhere.
// Where a function has several matrices they are stored alike, unless it says else. Arithmetic is
// fp32. Results do not depend on the number of threads. Nothing is allocated.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <variant>

#include "core/problem.h"
#include "core/token_range.h"

namespace longnet {

// Row i begins at data + i * stride elements. One without rows may have no data.
struct Matrix {
  void* data = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;
  DType dtype = DType::kFloat32;

  float* row(int64_t i) const { return static_cast<float*>(data) + i * stride; }  // fp32 only
  void* element(int64_t i) const {
    return data ? static_cast<std::byte*>(data) + i * dtype_bytes(dtype) : nullptr;
  }
  Matrix rows_from(int64_t begin, int64_t count) const {
    return {element(begin * stride), count, cols, stride, dtype};
  }
  Matrix columns_from(int64_t begin, int64_t count) const {
    return {element(begin), rows, count, stride, dtype};
  }
};

// c = op(a) op(b) + bias, or c += op(a) op(b); op transposes a stored matrix where asked.
// op(a) is m x k, op(b) k x n, c m x n. Each may be fp32 or bf16: c is rounded once, also where it
// is accumulated into. c may not overlap a or b.
struct GemmTask {
  Matrix a, b, c;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
  const float* bias = nullptr;  // [n], added to each row; null: none, as where c is added to
  bool of_bf16 = false;         // operands in fp32 may be rounded to bf16, as a GPU's kernels do

  int64_t m() const { return c.rows; }
  int64_t n() const { return c.cols; }
  int64_t k() const { return transpose_a ? a.rows : a.cols; }
};

// Two numbers of each row from each of several parts of its columns, as ranks hold them: those of
// part p and row i at data + p * stride + 2 i.
struct RowParts {
  const float* data = nullptr;
  int64_t parts = 0, stride = 0;  // parts 0: the columns are in one place
  const float* at(int64_t part, int64_t row) const { return data + part * stride + 2 * row; }
  RowParts rows_from(int64_t begin) const {
    return parts == 0 ? *this : RowParts{data + 2 * begin, parts, stride};
  }
};

// Layer normalisation (Ba et al., 2016): y = (x - mean) / sqrt(variance + epsilon) * gain + bias.
// y may be x, or stored in another way.
struct LayerNormTask {
  Matrix x, y;
  const float *gain = nullptr, *bias = nullptr;  // [cols]
  double epsilon = 1e-5;
  RowParts moments{};  // all columns', where x has a part of them: RowMomentsTask of each part
};
// grad_x = or += ; grad_gain and grad_bias are added to. grad_x may be grad_y or x, where it is not
// accumulated. x may be stored in another way than gradients.
struct LayerNormBackwardTask {
  Matrix x{}, grad_y{}, grad_x{};
  const float* gain = nullptr;                       // [cols]
  float *grad_gain = nullptr, *grad_bias = nullptr;  // [cols]
  double epsilon = 1e-5;
  bool accumulate = false;     // into grad_x
  RowParts moments{}, sums{};  // as in LayerNormTask; and LayerNormSumsTask of each part
};
// Computes each row's mean and its sum of squares about the mean, two floats a row. The moments of
// rows in parts of equal width follow by Chan's formula (Chan, Golub, LeVeque, 1979).
struct RowMomentsTask {
  Matrix x;
  float* into = nullptr;
};
// Computes, for each row and its normalised row z, the sums of grad_y * gain and of
// grad_y * gain * z over the columns that are here, two floats a row.
struct LayerNormSumsTask {
  Matrix x, grad_y;
  const float* gain = nullptr;  // [cols]
  double epsilon = 1e-5;
  RowParts moments{};
  float* into = nullptr;
};

// into[j] += sum over rows of x[i][j]: gradients of a bias.
struct AddColumnsTask {
  Matrix x;
  float* into = nullptr;
};

// y += x, same shapes.
struct AddTask {
  Matrix x, y;
};

// GELU, exact by erf: y = x * Phi(x). y may be x.
struct GeluTask {
  Matrix x, y;
};
// grad_x = grad_y * gelu'(x). grad_x may be grad_y or x.
struct GeluBackwardTask {
  Matrix x, grad_y, grad_x;
};

// Row i of y = row tokens[i] of table, which is fp32, as its gradient is.
struct EmbedTask {
  const int32_t* tokens = nullptr;
  Matrix table, y;
};
// Row tokens[i] of grad_table += row i of grad_y.
struct EmbedBackwardTask {
  const int32_t* tokens = nullptr;
  Matrix grad_y, grad_table;
};

// Rotary positions (Su et al., 2021), in place, on rows of heads side by side: the pair (2i, 2i +
// 1) of each head turns by position * 10000^(-2i / head_dim). With xPos (Sun et al., 2022) it is
// also multiplied by ((2i / head_dim + 0.4) / 1.4)^(+-(position - xpos_centre) / xpos_scale).
// `inverse_angle` turns back: with the same factor it is the transpose, which gradients need.
// Angles and factors are computed in double.
struct RotateTask {
  Matrix x;              // cols = heads * head_dim
  TokenRange positions;  // the rows'
  int64_t head_dim = 64;
  double xpos_scale = 0;  // 0: no factor
  double xpos_centre = 0;
  bool negative_power = false;  // for keys
  bool inverse_angle = false;
};

// Softmax cross-entropy of rows of logits, which become their gradients:
// logits = (softmax(logits) - onehot(target)) * scale. A row with a negative target has loss and
// gradient 0.
struct CrossEntropyTask {
  Matrix logits;
  const int32_t* targets = nullptr;  // [rows], each below cols
  float scale = 1;
  double* loss = nullptr;  // the sum of the rows' losses in nats is added to it
};

// *into += the sum of squares.
struct SumOfSquaresTask {
  const float* x = nullptr;
  int64_t count = 0;
  double* into = nullptr;
};

// AdamW (Loshchilov and Hutter, 2019), with g = gradient * clip_norm / max(clip_norm, norm), where
// norm^2 is the sum of squares[2 i] over all pieces i:
//   first_moment = beta1 * first_moment + (1 - beta1) * g
//   second_moment = beta2 * second_moment + (1 - beta2) * g^2
//   weights -= learning_rate * (m / (sqrt(v) + epsilon) + decay * weights)
// where m and v are the moments divided by 1 - beta^step.
struct UpdateTask {
  float *weights = nullptr, *first_moment = nullptr, *second_moment = nullptr;  // [count]
  const float* gradient = nullptr;                                              // [count]
  int64_t count = 0;
  const float* schedule = nullptr;  // {step, which counts from 1; learning_rate}
  const double* squares = nullptr;  // [2 pieces]
  int64_t pieces = 0;
  double clip_norm = 1, decay = 0, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
};

// All pointers are of the memory where the kernel runs: of a GPU's, the host reads nothing but
// shapes.
using ModelTask =
    std::variant<GemmTask, AddColumnsTask, LayerNormTask, LayerNormBackwardTask, RowMomentsTask,
                 LayerNormSumsTask, GeluTask, GeluBackwardTask, RotateTask, AddTask, EmbedTask,
                 EmbedBackwardTask, CrossEntropyTask, UpdateTask, SumOfSquaresTask>;

class ModelKernel {
 public:
  virtual ~ModelKernel() = default;
  virtual std::string_view name() const = 0;
  // Bytes of scratch memory that any task needs on `threads` threads; 64-byte aligned.
  virtual int64_t workspace_bytes(int threads) const = 0;
  virtual void run(const ModelTask& task, int threads,
                   std::span<std::byte> workspace = {}) const = 0;
};

// Register tiles, vectors; see cpu/gemm_simd.h and model_rows_simd.h.
std::unique_ptr<ModelKernel> make_cpu_model_kernel();

}  // namespace longnet
