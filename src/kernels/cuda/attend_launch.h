// The compiled tile shapes of kernel `cuda`, each with its launch function.
#pragma once
#include <span>
#include <string_view>

#include "core/cuda/device.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/tile_layout.h"

namespace longnet {

struct TileLauncher {
  std::string_view name;  // rows x keys, "q": Q fragments stay in registers, blocks per SM
  int head_dim;           // largest that fits
  DeviceElement element;
  int rows;  // of a tile
  void (*launch)(const TileInputs& inputs, int64_t tiles, const Stream& stream);
};

// Defaults first, ascending head_dim.
std::span<const TileLauncher> tile_launchers();

}  // namespace longnet
