// The compiled tile shapes of the `cuda` kernel.
#include "kernels/cuda/attend_tile.cuh"
#include "kernels/cuda/compiled_shapes.h"

namespace longnet {
namespace {

template <class Shape, class Element = __nv_bfloat16>
constexpr CompiledShape<TileInputs> shape(std::string_view name) {
  return compiled_shape<Shape, Element>(name, attend_kernel<Shape, Element>);
}

constexpr CompiledShape<TileInputs> kShapes[] = {
    shape<Shape64>("128x64q-2"),         shape<Shape128>("128x64-2"),
    shape<Shape256>("64x32-1"),          shape<Shape64, __half>("128x64q-2"),
    shape<Shape128, __half>("128x64-2"), shape<Shape256, __half>("64x32-1"),
};

}  // namespace

std::span<const CompiledShape<TileInputs>> tile_shapes() { return kShapes; }

}  // namespace longnet
