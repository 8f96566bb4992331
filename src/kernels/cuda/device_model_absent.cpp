// Builds without CUDA, or without cuBLASLt's header: they compute no layers of models on a GPU.
#include "core/check.h"
#include "kernels/cuda/device_model.h"

namespace longnet {

std::string why_device_model_absent() {
  return "this build has no GPU kernels for a model's layers: run.kernel cpu";
}
std::string why_cublaslt_absent() { return why_device_model_absent(); }
std::string describe_cublaslt() { return why_device_model_absent(); }
Prepared prepare_model_task(const ModelTask&, MemoryLedger&, std::byte*) {
  throw UsageError(why_device_model_absent());
}
Prepared prepare_gemm(const GemmTask&, MemoryLedger&, std::byte*) {
  throw UsageError(why_device_model_absent());
}

}  // namespace longnet
