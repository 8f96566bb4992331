// The compiled tile shapes of the `cuda_sm90a` kernel, for sm_90a alone.
#include "kernels/cuda/compiled_shapes.h"
#include "kernels/cuda/group_tile.cuh"

namespace longnet {
namespace {

template <class Shape, class Element = __nv_bfloat16>
constexpr CompiledShape<GroupInputs> shape(std::string_view name, ShapeUse use = ShapeUse::kAny) {
  return compiled_shape<Shape, Element>(name, attend_group_kernel<Shape, Element>, use);
}

constexpr CompiledShape<GroupInputs> kShapes[] = {
    shape<Group64>("192x128-4"),
    shape<Group128>("128x176-2"),
    shape<Group128Causal>("128x128-3", ShapeUse::kCausal),
    shape<Group64, __half>("192x128-4"),
    shape<Group128, __half>("128x176-2"),
#ifdef LONGNET_CUDA_VARIANTS
    shape<Group64Own>("192x128-4o", ShapeUse::kVariant),
    shape<Group128Own>("128x128-3o", ShapeUse::kVariant),
#endif
};

}  // namespace

std::span<const CompiledShape<GroupInputs>> group_shapes() { return kShapes; }

}  // namespace longnet
