// Tasks of a model's layers on a GPU (kernels/model_kernel.h): its products by cuBLASLt, the other
// functions by kernels of their own.
//
// The library's matrices are column-major, ours row-major. It is asked for the transposed product,
// from the same memory:
//
//   c = op(a) op(b), m x n   is   c^T = op(b)^T op(a)^T, n x m
#pragma once
#include <string>

#include "kernels/cuda/prepared.h"
#include "kernels/model_kernel.h"

namespace longnet {

inline constexpr int64_t kMostNormColumns = 16384;

// Scratch memory of a task, in bytes.
int64_t model_workspace_bytes(const ModelTask& task);

// Pointers are the device's: nothing of the task but its shapes is read here. Matrices of a product
// may be stored in any types: operands of fp32 are rounded to bf16 where the task allows it or a, b
// or c is bf16, a bias where c is. Every sum has one order, so that its bits are the same in each
// launch. Throws Error with the reason for what it cannot run. `workspace`: model_workspace_bytes
// at an address of 256 bytes, which tasks on one stream may share; null: its own.
Prepared prepare_model_task(const ModelTask& task, MemoryLedger& ledger,
                            std::byte* workspace = nullptr);

// The product alone, of device matrices: a and b both fp32 (products in fp32, not TF32) or both
// bf16, c stored as they are or in fp32, and the numbers of a bias as c is; sums are fp32. The
// library's heuristics choose the algorithm, for the addresses and strides of the task. Throws
// Error with the reason for what it cannot run. `workspace`: kGemmWorkspace bytes
// (model_workspace.h); null: its own, of what the algorithm takes.
Prepared prepare_gemm(const GemmTask& task, MemoryLedger& ledger, std::byte* workspace = nullptr);

// Empty when this build has these kernels and the machine cuBLASLt, else why not.
std::string why_device_model_absent();
std::string why_cublaslt_absent();
// cuBLASLt: "13.1.0 (headers 13.1.0)", or why not.
std::string describe_cublaslt();

}  // namespace longnet
