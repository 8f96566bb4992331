// `cuda_sm90a`: attention by TMA and wgmma on strided views, for compute capability 9.0.
//
// Every build with CUDA has it; configurations can name it where -DLONGNET_CUDA_SM90A=ON. Tests
// execute its PTX (src/emulation); what a GPU makes of it is for scripts/gpu_validate.sh to show.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/device_kernel.h"

namespace longnet {

std::unique_ptr<DeviceKernel> make_sm90a_kernel(std::string_view shape = {});
// Empty when the current device can run it, else why not.
std::string why_sm90a_absent();
// Tile shapes for a head dimension, the default first.
std::vector<std::string> sm90a_kernel_shapes(int64_t head_dim);

}  // namespace longnet
