// Tasks of a model's layers on a GPU (kernels/model_kernel.h): its products by cuBLASLt, the other
// functions by kernels of their own.
#pragma once
#include <string>

#include "kernels/cuda/prepared.h"
#include "kernels/model_kernel.h"

namespace longnet {

inline constexpr int64_t kMostNormColumns = 16384;  // of layer norm

// Scratch memory of a task, in bytes.
int64_t model_workspace_bytes(const ModelTask& task);

// Pointers are the device's: nothing of the task but its shapes is read here. Matrices of a product
// may be stored in any types: operands of fp32 are rounded to bf16 where the task allows it or a, b
// or c is bf16, a bias where c is. Every sum has one order, so that its bits are the same in each
// launch. Throws Error with the reason for what it cannot run. `workspace`: model_workspace_bytes
// at an address of 256 bytes, which tasks on one stream may share; null: its own.
Prepared prepare_model_task(const ModelTask& task, MemoryLedger& ledger,
                            std::byte* workspace = nullptr);

// Empty when this build and machine have what it needs, else why not.
std::string why_device_model_absent();

}  // namespace longnet
