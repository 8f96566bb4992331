// Launches of each task of a model's layers, by the file that has its kernels. `workspace` is
// model_workspace_bytes(task) of device memory at an address of 256 bytes.
#pragma once
#include "kernels/cuda/model_workspace.h"
#include "kernels/cuda/prepared.h"
#include "kernels/model_kernel.h"

namespace longnet {

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
