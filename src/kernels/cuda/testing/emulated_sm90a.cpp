// The tile shapes of the `cuda_sm90a` kernel on the emulated device: group_tile.h with a thread per
// warpgroup, and tensor maps that only it can read.
#include <algorithm>
#include <bit>
#include <cstring>

#include "core/cuda/testing/emulated_device.h"
#include "kernels/cuda/group_launch.h"
#include "kernels/cuda/group_shapes.h"
#include "kernels/cuda/tensor_maps.h"
#include "kernels/cuda/testing/emulated_group.h"

namespace longnet {
namespace {

template <class Shape, class Element>
void launch_groups(const GroupInputs& inputs, int blocks, const Stream& stream) {
  emulate_launch(stream, [inputs, blocks] {
    const auto view = [&inputs](int index) {
      TensorView found;
      const auto* const maps = static_cast<const std::byte*>(inputs.maps);
      std::copy_n(maps + size_t(index) * sizeof(TensorMap), sizeof found,
                  reinterpret_cast<std::byte*>(&found));
      return found;
    };
    for (int block = 0; block < blocks; ++block)
      emulate_group_block<Shape, Element>(
          inputs, view, block,
          {.copies_land_late = block % 2 == 1, .products_late = block / 2 % 2 == 1});
  });
}

template <class Shape, class Element = EmulatedBf16>
constexpr GroupLauncher launcher(std::string_view name) {
  return {
      name,
      Shape::kDim,
      std::is_same_v<Element, EmulatedFp16> ? DeviceElement::kFloat16 : DeviceElement::kBFloat16,
      Shape::kRows,
      Shape::kKeys,
      launch_groups<Shape, Element>};
}

constexpr GroupLauncher kLaunchers[] = {
    launcher<Group64>("192x128-4t"),
    launcher<Group128>("128x128-3t"),
    launcher<Group64, EmulatedFp16>("192x128-4t"),
    launcher<Group128, EmulatedFp16>("128x128-3t"),
};

}  // namespace

std::span<const GroupLauncher> group_launchers() { return kLaunchers; }

// Refuses what the CUDA driver API's page on cuTensorMapEncodeTiled says is refused.
TensorMap encode_tensor_map(const TensorView& view, DeviceElement, int64_t head_dim, int box_rows) {
  const auto multiple_of_16_bytes = [](int64_t elements) {
    return elements > 0 && elements % 8 == 0 && elements < int64_t{1} << 39;
  };
  check(std::bit_cast<uintptr_t>(view.base.first) % 16 == 0, "tensor map: address");
  check(view.base.rows > 0 && view.base.rows <= int64_t{1} << 32 && head_dim > 0,
        "tensor map: sizes");
  check(box_rows > 0 && box_rows <= 256, "tensor map: a box of ", box_rows, " rows");
  check(view.base.rows == 1 || multiple_of_16_bytes(view.base.row_stride), "tensor map: rows ",
        view.base.row_stride, " apart");
  for (int k = 0; k < 3; ++k) {
    check(view.count[k] > 0 && view.count[k] <= int64_t{1} << 32, "tensor map: count");
    check(view.count[k] == 1 || multiple_of_16_bytes(view.step[k]), "tensor map: step ",
          view.step[k]);
  }
  TensorMap map{};
  static_assert(sizeof view <= sizeof map);
  std::memcpy(&map, &view, sizeof view);
  return map;
}

}  // namespace longnet
