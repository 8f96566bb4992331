// Products of matrices on a GPU, by cuBLASLt.
//
// The library's matrices are column-major, ours row-major. It is asked for the transposed product,
// from the same memory:
//
//   c = op(a) op(b), m x n   is   c^T = op(b)^T op(a)^T, n x m
#pragma once
#include <string>

#include "kernels/cuda/model_workspace.h"
#include "kernels/cuda/prepared.h"
#include "kernels/model_kernel.h"

namespace longnet {

// Of device matrices: a and b both fp32 (products in fp32, not TF32) or both bf16, c stored as they
// are or in fp32, and the numbers of a bias as c is; sums are fp32. The library's heuristics choose
// the algorithm, for the addresses and strides of the task. Throws Error with the reason for what
// it cannot run. `workspace`: kGemmWorkspace bytes; null: its own, of what the algorithm takes.
Prepared prepare_gemm(const GemmTask& task, MemoryLedger& ledger, std::byte* workspace = nullptr);

// Empty when the library is there, else why not.
std::string why_cublaslt_absent();
// "13.1.0 (headers 13.1.0)", or why not.
std::string describe_cublaslt();

}  // namespace longnet
