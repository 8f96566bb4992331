// The compiled tile shapes of the `cuda` kernel's backward pass.
#include "kernels/cuda/backward_tile.cuh"
#include "kernels/cuda/compiled_shapes.h"

namespace longnet {
namespace {

template <class Shape>
constexpr CompiledBackward shape() {
  return {compiled_shape<Shape>("", backward_kernel<false, Shape>),
          compiled_shape<Shape>("", backward_kernel<true, Shape>)};
}

constexpr CompiledBackward kShapes[] = {shape<Backward64>(), shape<Backward128>()};

}  // namespace

std::span<const CompiledBackward> tile_backward_shapes() { return kShapes; }

}  // namespace longnet
