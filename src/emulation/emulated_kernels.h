// For tests: the CPU's attention kernel behind the device's interface, for bf16.
#pragma once
#include <memory>
#include <string>

#include "kernels/cuda/device_kernel.h"

namespace longnet {

// `merges`: takes DeviceAttendOptions::merge.
std::unique_ptr<DeviceKernel> make_emulated_kernel(std::string name, bool merges);

}  // namespace longnet
