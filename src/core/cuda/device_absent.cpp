// Builds without CUDA: no device is found.
#include "core/cuda/device.h"

namespace longnet {

DeviceReport describe_devices(bool) {
  return {.unusable = "this build has no CUDA (LONGNET_CUDA=OFF, or nvcc was not found)"};
}

std::string device_bus_id(int) { return ""; }

}  // namespace longnet
