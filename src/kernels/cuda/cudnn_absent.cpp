// Builds without cuDNN's headers.
#include "kernels/cuda/device_kernel.h"

namespace longnet {

std::string why_cudnn_absent() { return "this build has no cuDNN: cudnn.h was not found"; }
std::string describe_cudnn() { return why_cudnn_absent(); }
std::unique_ptr<DeviceKernel> make_cudnn_kernel() { throw UsageError(why_cudnn_absent()); }

}  // namespace longnet
