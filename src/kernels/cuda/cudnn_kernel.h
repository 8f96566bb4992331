// `cudnn`: scaled-dot-product attention of cuDNN on strided views, as a yardstick.
#pragma once
#include <memory>
#include <string>

#include "kernels/cuda/device_kernel.h"

namespace longnet {

// Empty when the library is there, of the headers' major version and 9.8 or newer, else why not and
// what to do.
std::string why_cudnn_absent();
// "9.14.0 (headers 9.14.0)", or why not.
std::string describe_cudnn();
std::unique_ptr<DeviceKernel> make_cudnn_kernel();

}  // namespace longnet
