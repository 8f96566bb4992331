// The tile shapes of the `cuda` kernel on the emulated device: attend_tile.h, lane by lane.
#include "core/cuda/testing/emulated_device.h"
#include "kernels/cuda/attend_launch.h"
#include "kernels/cuda/testing/emulated_block.h"
#include "kernels/cuda/tile_shapes.h"

namespace longnet {
namespace {

template <class Shape, class Element>
void launch_tiles(const TileInputs& inputs, int64_t tiles, const Stream& stream) {
  emulate_launch(stream, [inputs, tiles] {
    for (int64_t i = 0; i < tiles; ++i) {
      // Each of the four orders in turn.
      EmulatedBlock<Shape, Element> block(
          {.copies_land_late = i % 2 == 1, .warps_backwards = i / 2 % 2 == 1});
      attend_tile<Shape>(block, inputs, inputs.tiles[i]);
    }
  });
}

template <class Shape, class Element = EmulatedBf16>
constexpr TileLauncher launcher(std::string_view name) {
  return {
      name, Shape::kDim,
      std::is_same_v<Element, EmulatedFp16> ? DeviceElement::kFloat16 : DeviceElement::kBFloat16,
      Shape::kRows, launch_tiles<Shape, Element>};
}

constexpr TileLauncher kLaunchers[] = {
    launcher<DefaultShape<64>>("128x64q-2"),
    launcher<DefaultShape<128>>("128x64-2"),
    launcher<DefaultShape<256>>("64x32-1"),
    launcher<DefaultShape<64>, EmulatedFp16>("128x64q-2"),
    launcher<DefaultShape<128>, EmulatedFp16>("128x64-2"),
    launcher<DefaultShape<256>, EmulatedFp16>("64x32-1"),
};

}  // namespace

std::span<const TileLauncher> tile_launchers() { return kLaunchers; }

}  // namespace longnet
