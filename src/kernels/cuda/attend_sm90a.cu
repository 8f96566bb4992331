// The compiled tile shapes of the `cuda_sm90a` kernel, for sm_90a alone.
#include "kernels/cuda/compiled_shapes.h"
#include "kernels/cuda/group_tile.cuh"

namespace longnet {
namespace {

constexpr CompiledShape<GroupInputs> kShapes[] = {
    compiled_shape<Group64>("192x128-4", attend_group_kernel<Group64>),
    compiled_shape<Group128>("128x160-2", attend_group_kernel<Group128>),
    compiled_shape<Group128Causal>("128x128-2", attend_group_kernel<Group128Causal>,
                                   /*causal=*/true),
};

}  // namespace

std::span<const CompiledShape<GroupInputs>> group_shapes() { return kShapes; }

}  // namespace longnet
