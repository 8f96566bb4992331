// The compiled tile shapes of the `cuda_sm90a` kernel, for sm_90a alone.
#include "kernels/cuda/group_tile.cuh"
#include "kernels/cuda/launch.cuh"

namespace longnet {
namespace {

template <class Shape, class Element = __nv_bfloat16>
constexpr GroupLauncher shape(std::string_view name) {
  return launcher<Shape, Element, GroupInputs, attend_group_kernel<Shape, Element>>(name);
}

constexpr GroupLauncher kLaunchers[] = {
    shape<Group64>("192x128-4t"),         shape<Group128>("128x128-3t"),
    shape<Group64, __half>("192x128-4t"), shape<Group128, __half>("128x128-3t"),
#ifdef LONGNET_CUDA_VARIANTS
    shape<Group64Free>("192x128-4"),      shape<Group64Two>("128x128-4t"),
    shape<Group64TwoFree>("128x128-4"),   shape<Group128Free>("128x128-3"),
#endif
};

}  // namespace

std::span<const GroupLauncher> group_launchers() { return kLaunchers; }

}  // namespace longnet
