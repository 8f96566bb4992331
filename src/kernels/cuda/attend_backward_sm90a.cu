// The compiled tile shapes of the `cuda_sm90a` kernel's backward pass, for sm_90a alone.
#include "kernels/cuda/backward_group.cuh"
#include "kernels/cuda/compiled_shapes.h"

namespace longnet {
namespace {

template <class Queries, class Keys>
constexpr CompiledBackward shapes() {
  static_assert(Queries::kRows == Keys::kRows && Queries::kDim == Keys::kDim);
  return {compiled_shape<Queries>("", backward_group_kernel<false, Queries>),
          compiled_shape<Keys>("", backward_group_kernel<true, Keys>)};
}

constexpr CompiledBackward kShapes[] = {
    shapes<BackwardGroup64, BackwardGroup64Keys>(),
    shapes<BackwardGroup128, BackwardGroup128Keys>(),
};

}  // namespace

std::span<const CompiledBackward> group_backward_shapes() { return kShapes; }

}  // namespace longnet
