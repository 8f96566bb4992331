// The compiled tile shapes of the `cuda_sm90a` kernel, for sm_90a alone.
#include "kernels/cuda/compiled_shapes.h"
#include "kernels/cuda/group_tile.cuh"

namespace longnet {
namespace {

template <class Shape, class Element = __nv_bfloat16>
constexpr CompiledShape<GroupInputs> shape(std::string_view name, bool causal = false) {
  return compiled_shape<Shape, Element>(name, attend_group_kernel<Shape, Element>, causal);
}

constexpr CompiledShape<GroupInputs> kShapes[] = {
    shape<Group64>("192x128-4"),
    shape<Group128>("128x160-2"),
    shape<Group128Causal>("128x128-2", /*causal=*/true),
    shape<Group64, __half>("192x128-4"),
    shape<Group128, __half>("128x160-2"),
};

}  // namespace

std::span<const CompiledShape<GroupInputs>> group_shapes() { return kShapes; }

}  // namespace longnet
