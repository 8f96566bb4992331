// The compiled tile shapes of the `cuda_sm90a` kernel, for sm_90a alone.
#include "kernels/cuda/compiled_shapes.h"
#include "kernels/cuda/group_tile.cuh"

namespace longnet {
namespace {

template <class Shape, class Element = __nv_bfloat16>
constexpr CompiledShape<GroupInputs> shape(std::string_view name, bool variant = false) {
  return compiled_shape<Shape, Element>(name, attend_group_kernel<Shape, Element>, variant);
}
[[maybe_unused]] constexpr bool kVariant = true;

constexpr CompiledShape<GroupInputs> kShapes[] = {
    shape<Group64>("192x128-4t"),
    shape<Group64Causal>("128x128-4t"),
    shape<Group128>("128x176-2t"),
    shape<Group128Causal>("128x128-3t"),
    shape<Group64, __half>("192x128-4t"),
    shape<Group128, __half>("128x176-2t"),
#ifdef LONGNET_CUDA_VARIANTS
    shape<Group64Free>("192x128-4", kVariant),
    shape<Group64Keys176>("128x176-3t", kVariant),
    shape<Group64Keys192>("128x192-3t", kVariant),
    shape<Group64Keys224>("128x224-3t", kVariant),
    shape<Group64Polynomial>("192x128-4tp", kVariant),
    shape<Group128Free>("128x128-3", kVariant),
    shape<Group128Polynomial>("128x176-2tp", kVariant),
#endif
};

}  // namespace

std::span<const CompiledShape<GroupInputs>> group_shapes() { return kShapes; }

}  // namespace longnet
