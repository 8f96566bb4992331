// Builds without CUDA: no device is found.
#include "core/check.h"
#include "core/cuda/device.h"

namespace longnet {

DeviceReport describe_devices(bool) {
  return {.unusable = "this build has no CUDA (LONGNET_CUDA=OFF, or nvcc was not found)"};
}

std::string cuda_version_text(int version) {
  return concat(version / 1000, ".", version % 1000 / 10);
}

std::string device_bus_id(int) { return ""; }

}  // namespace longnet
