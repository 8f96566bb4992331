// The compiled tile shapes of the `cuda` kernel's backward pass.
#include "kernels/cuda/backward_tile.cuh"
#include "kernels/cuda/compiled_shapes.h"

namespace longnet {
namespace {

template <class Shape, class Element = __nv_bfloat16>
constexpr CompiledBackward shape() {
  return {compiled_shape<Shape, Element>("", backward_kernel<false, Shape, Element>),
          compiled_shape<Shape, Element>("", backward_kernel<true, Shape, Element>)};
}

constexpr CompiledBackward kShapes[] = {
    shape<Backward64>(),
    shape<Backward128>(),
    shape<Backward64, __half>(),
    shape<Backward128, __half>(),
};

}  // namespace

std::span<const CompiledBackward> tile_backward_shapes() { return kShapes; }

}  // namespace longnet
