// The tile shapes that kernels `cuda` and `cuda_sm90a` are compiled for, each with its launch.
#pragma once
#include <span>
#include <string_view>

#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/group_layout.h"
#include "kernels/cuda/tile_layout.h"

namespace longnet {

template <class Inputs>
struct Launcher {
  std::string_view name;
  int head_dim;  // largest that fits
  DeviceElement element;
  int rows, keys;  // of a tile
  void (*launch)(const Inputs& inputs, int64_t blocks, const Stream& stream);
};
// The shapes of a kernel: defaults first, ascending head_dim. They are called rows x keys, "q" (Q
// fragments stay in registers), blocks per SM ...
using TileLauncher = Launcher<TileInputs>;
std::span<const TileLauncher> tile_launchers();
// ... and rows x keys - stages of K and V, "t" (warpgroups take turns).
using GroupLauncher = Launcher<GroupInputs>;
std::span<const GroupLauncher> group_launchers();

}  // namespace longnet
