// The compiled tile shapes of the `cuda` kernel.
#include "kernels/cuda/attend_tile.cuh"
#include "kernels/cuda/launchers.h"

namespace longnet {
namespace {

template <class Shape, class Element>
void launch_tiles(const TileInputs& inputs, int64_t tiles, const Stream& stream) {
  check(tiles < (int64_t{1} << 31), "too many tiles for one launch: ", tiles);
  if (tiles == 0) return;
  const auto kernel = attend_kernel<Shape, Element>;
  // Cheap, and needed once per device and kernel.
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  Shape::kSharedBytes),
             "shared memory of the attention kernel");
  kernel<<<unsigned(tiles), Shape::kThreads, Shape::kSharedBytes, stream.handle()>>>(inputs);
  check_cuda(cudaGetLastError(), "launch of the attention kernel");
}

template <class Shape, class Element = __nv_bfloat16>
constexpr TileLauncher launcher(std::string_view name) {
  return {name,
          Shape::kDim,
          std::is_same_v<Element, __half> ? DeviceElement::kFloat16 : DeviceElement::kBFloat16,
          Shape::kRows,
          Shape::kKeys,
          launch_tiles<Shape, Element>};
}

constexpr TileLauncher kLaunchers[] = {
    launcher<Shape64>("128x64q-2"),         launcher<Shape128>("128x64-2"),
    launcher<Shape256>("64x32-1"),          launcher<Shape64, __half>("128x64q-2"),
    launcher<Shape128, __half>("128x64-2"), launcher<Shape256, __half>("64x32-1"),
#ifdef LONGNET_CUDA_VARIANTS
    launcher<Shape64Lean>("128x64-3"),      launcher<Shape64Wide>("128x128q-2"),
    launcher<Shape64Small>("64x64q-4"),     launcher<Shape128Lean>("128x32-2"),
    launcher<Shape128Small>("64x64q-3"),
#endif
};

}  // namespace

std::span<const TileLauncher> tile_launchers() { return kLaunchers; }

}  // namespace longnet
