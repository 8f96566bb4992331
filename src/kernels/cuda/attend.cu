// The compiled tile shapes of the `cuda` kernel.
#include "kernels/cuda/attend_tile.cuh"
#include "kernels/cuda/compiled_shapes.h"

namespace longnet {
namespace {

constexpr CompiledShape<TileInputs> kShapes[] = {
    compiled_shape<Shape64>("128x64q-2", attend_kernel<Shape64>),
    compiled_shape<Shape128>("128x64-2", attend_kernel<Shape128>),
    compiled_shape<Shape256>("64x32-1", attend_kernel<Shape256>),
};

}  // namespace

std::span<const CompiledShape<TileInputs>> tile_shapes() { return kShapes; }

}  // namespace longnet
