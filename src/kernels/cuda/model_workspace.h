// Scratch memory of a model's tasks on a GPU, and what lies in it: known without one, for plans;
// and the launches of each task.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/token_range.h"
#include "kernels/cuda/prepared.h"
#include "kernels/model_kernel.h"

namespace longnet {

inline constexpr int64_t kGemmWorkspace = 32 << 20;  // bytes; what NVIDIA recommends for Hopper

// ---- products: what the library takes, from what is stored ----

// Operands of fp32 are rounded to bf16, but for products of fp32 alone that are no model's in bf16:
// weights, gradients of logits, and activations where ranks that split heads sum them up.
bool is_rounded(const GemmTask& task, const Matrix& x);
// A bias has to be stored as c is.
bool rounds_bias(const GemmTask& task);
inline Matrix bias_of(const GemmTask& task) {
  return {const_cast<float*>(task.bias), 1, task.n(), task.n(), DType::kFloat32};
}
// x in bf16, its address left open, and the bytes that it takes.
Matrix rounded_form(const Matrix& x);
int64_t bytes_of(const Matrix& rounded);

// ---- sums over rows: by pieces of rows, then over pieces, in order ----

inline constexpr int64_t kColumnsPiece = 32, kNormPiece = 16;  // fewest rows of a piece
inline int64_t rows_of_piece(int64_t rows, int64_t fewest) {
  constexpr int64_t kMostPieces = 512;
  return std::max(fewest, ceil_div(rows, kMostPieces));
}
inline int64_t pieces_of(int64_t rows, int64_t fewest) {
  return ceil_div(rows, rows_of_piece(rows, fewest));
}
// Numbers between two rows of sums, and from those of a gain to those of a bias.
inline int64_t pitch_of(const Matrix& x) { return ceil_div(x.cols, int64_t{8}) * 8; }

// ---- loss and update ----

inline constexpr int64_t kMostSums = 1024;    // partial sums of squares
inline constexpr int64_t kMostLosses = 4096;  // partial sums of losses

// weights = kept * weights - rate * first / (sqrt(second) + epsilon), both moments uncorrected.
struct UpdateFactors {
  float clipping, kept, rate, epsilon, rest1, rest2;
};

// ---- gradients of an embedding (embed_backward.cu) ----

// Tokens and their rows. A token that is no row of the table has row -1.
struct KeyList {
  int32_t *token, *row;
};

struct EmbedScratch {
  static constexpr int kTile = 1024, kDigits = 256;  // keys of a block of the sort
  static constexpr int64_t kFewestOfChunk = 32, kMostOfChunk = 256;

  int64_t count, tiles, chunk, chunks;
  KeyList lists[2];
  uint32_t* counts;
  float *head, *tail;
  int64_t bytes = 0;

  EmbedScratch(const EmbedBackwardTask& task, std::byte* workspace);
};

// ---- launches, by the file that has their kernels ----
//
// `workspace` is model_workspace_bytes(task) of device memory at an address of 256 bytes.

// model_rows.cu
void prepare_task(const GeluTask& task, std::byte* workspace, Prepared& work);
void prepare_task(const GeluBackwardTask& task, std::byte* workspace, Prepared& work);
void prepare_task(const AddTask& task, std::byte* workspace, Prepared& work);
void prepare_task(const EmbedTask& task, std::byte* workspace, Prepared& work);
void prepare_task(const AddColumnsTask& task, std::byte* workspace, Prepared& work);
void prepare_rotate(const RotateTask& task, MemoryLedger& ledger, Prepared& work);
// into = x, stored in another way.
void prepare_rounding(const Matrix& x, const Matrix& into, Prepared& work);
// into[j] += sum over rows of partial sums [rows][stride].
void prepare_sums_of_columns(const Matrix& partial, float* into, Prepared& work);

// layer_norm.cu
void prepare_task(const LayerNormTask& task, std::byte* workspace, Prepared& work);
void prepare_task(const LayerNormBackwardTask& task, std::byte* workspace, Prepared& work);
void prepare_task(const RowMomentsTask& task, std::byte* workspace, Prepared& work);
void prepare_task(const LayerNormSumsTask& task, std::byte* workspace, Prepared& work);

// model_loss.cu
void prepare_task(const CrossEntropyTask& task, std::byte* workspace, Prepared& work);
void prepare_task(const UpdateTask& task, std::byte* workspace, Prepared& work);
void prepare_task(const SumOfSquaresTask& task, std::byte* workspace, Prepared& work);

// embed_backward.cu
void prepare_task(const EmbedBackwardTask& task, std::byte* workspace, Prepared& work);

}  // namespace longnet
