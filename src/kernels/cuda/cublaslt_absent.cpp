// Builds without cuBLASLt's header.
#include "kernels/cuda/device_gemm.h"

namespace longnet {

std::string why_cublaslt_absent() { return "this build has no cuBLASLt: cublasLt.h was not found"; }
std::string describe_cublaslt() { return why_cublaslt_absent(); }
Prepared prepare_gemm(const GemmTask&, MemoryLedger&, std::byte*) {
  throw UsageError(why_cublaslt_absent());
}

}  // namespace longnet
