// The compiled tile shapes of the `cuda_sm90a` kernel, for sm_90a alone.
#include "kernels/cuda/group_tile.cuh"
#include "kernels/cuda/launchers.h"

namespace longnet {
namespace {

template <class Shape, class Element>
void launch_groups(const GroupInputs& inputs, int64_t blocks, const Stream& stream) {
  if (blocks == 0) return;
  constexpr int kBytes = Shape::kSharedBytes + Shape::kAlignment;  // it may begin anywhere
  const auto kernel = attend_group_kernel<Shape, Element>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "shared memory of the attention kernel");
  kernel<<<unsigned(blocks), Shape::kThreads, kBytes, stream.handle()>>>(inputs);
  check_cuda(cudaGetLastError(), "launch of the attention kernel");
}

template <class Shape, class Element = __nv_bfloat16>
constexpr GroupLauncher launcher(std::string_view name) {
  return {name,
          Shape::kDim,
          std::is_same_v<Element, __half> ? DeviceElement::kFloat16 : DeviceElement::kBFloat16,
          Shape::kRows,
          Shape::kKeys,
          launch_groups<Shape, Element>};
}

constexpr GroupLauncher kLaunchers[] = {
    launcher<Group64>("192x128-4t"),         launcher<Group128>("128x128-3t"),
    launcher<Group64, __half>("192x128-4t"), launcher<Group128, __half>("128x128-3t"),
#ifdef LONGNET_CUDA_VARIANTS
    launcher<Group64Free>("192x128-4"),      launcher<Group64Two>("128x128-4t"),
    launcher<Group64TwoFree>("128x128-4"),   launcher<Group128Free>("128x128-3"),
#endif
};

}  // namespace

std::span<const GroupLauncher> group_launchers() { return kLaunchers; }

}  // namespace longnet
