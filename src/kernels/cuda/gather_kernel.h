// `gather`: what published implementations do. Q, K and V rows of each task are packed into dense
// buffers, a dense kernel attends, O and LSE are scattered back. It exists to be compared with.
#pragma once
#include <memory>

#include "kernels/cuda/device_kernel.h"

namespace longnet {

// `dense` attends to the packed rows.
std::unique_ptr<DeviceKernel> make_gather_kernel(std::unique_ptr<DeviceKernel> dense);

}  // namespace longnet
