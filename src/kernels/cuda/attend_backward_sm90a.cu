// The compiled tile shapes of the `cuda_sm90a` kernel's backward pass, for sm_90a alone.
#include "kernels/cuda/backward_group.cuh"
#include "kernels/cuda/compiled_shapes.h"

namespace longnet {
namespace {

template <class Queries, class Keys, class Element = __nv_bfloat16>
constexpr CompiledBackward shapes() {
  static_assert(Queries::kRows == Keys::kRows && Queries::kDim == Keys::kDim);
  return {compiled_shape<Queries, Element>("", backward_group_kernel<false, Queries, Element>),
          compiled_shape<Keys, Element>("", backward_group_kernel<true, Keys, Element>)};
}

constexpr CompiledBackward kShapes[] = {
    shapes<BackwardGroup64, BackwardGroup64Keys>(),
    shapes<BackwardGroup128, BackwardGroup128Keys>(),
    shapes<BackwardGroup64, BackwardGroup64Keys, __half>(),
    shapes<BackwardGroup128, BackwardGroup128Keys, __half>(),
};

}  // namespace

std::span<const CompiledBackward> group_backward_shapes() { return kShapes; }

}  // namespace longnet
