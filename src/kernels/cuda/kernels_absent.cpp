// Builds without CUDA: the names are listed, no kernel can be made.
#include "kernels/cuda/device_kernel.h"

namespace longnet {

std::unique_ptr<DeviceKernel> make_cuda_kernel(std::string_view) {
  throw UsageError(describe_devices().unusable);
}
std::unique_ptr<DeviceKernel> make_sm90a_kernel(std::string_view) {
  throw UsageError(describe_devices().unusable);
}
std::string why_sm90a_absent() { return describe_devices().unusable; }
std::unique_ptr<DeviceKernel> make_gather_kernel(std::unique_ptr<DeviceKernel>) {
  throw UsageError(describe_devices().unusable);
}

}  // namespace longnet
