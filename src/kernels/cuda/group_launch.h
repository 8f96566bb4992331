// The compiled tile shapes of kernel `cuda_sm90a`, each with its launch function.
#pragma once
#include <span>
#include <string_view>

#include "core/cuda/device.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/group_layout.h"

namespace longnet {

struct GroupLauncher {
  std::string_view name;  // rows x keys - stages of K and V, "t": warpgroups take turns
  int head_dim;           // largest that fits
  DeviceElement element;
  int rows, keys;  // of a tile
  void (*launch)(const GroupInputs& inputs, int blocks, const Stream& stream);
};

// Defaults first, ascending head_dim.
std::span<const GroupLauncher> group_launchers();

}  // namespace longnet
