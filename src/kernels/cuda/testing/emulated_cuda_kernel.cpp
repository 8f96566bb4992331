// The `cuda` kernel of programs that run whole sweeps on the emulated device: playing its tile loop
// lane by lane, as emulated_attend.cpp does, takes a hundred times as long.
#include "kernels/cuda/testing/emulated_kernel.h"

namespace longnet {

std::vector<std::string> cuda_kernel_shapes(int64_t) { return {"emulated"}; }

std::unique_ptr<DeviceKernel> make_cuda_kernel(std::string_view) {
  return make_emulated_kernel("cuda", true);
}

}  // namespace longnet
