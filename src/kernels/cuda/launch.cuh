// Entry of a compiled tile shape in the lists of launchers.h.
#pragma once
#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/launchers.h"

namespace longnet {

template <class Shape, class Inputs, void (*kKernel)(Inputs)>
void launch_blocks(const Inputs& inputs, int64_t blocks, const Stream& stream) {
  check(blocks < (int64_t{1} << 31), "too many tiles for one launch: ", blocks);
  if (blocks == 0) return;
  // Cheap, and needed once per device and kernel.
  check_cuda(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  Shape::kSharedBytes),
             "shared memory of the attention kernel");
  kKernel<<<unsigned(blocks), Shape::kThreads, Shape::kSharedBytes, stream.handle()>>>(inputs);
  check_cuda(cudaGetLastError(), "launch of the attention kernel");
}

template <class Shape, class Element, class Inputs, void (*kKernel)(Inputs)>
constexpr Launcher<Inputs> launcher(std::string_view name) {
  return {name,
          Shape::kDim,
          std::is_same_v<Element, __half> ? DeviceElement::kFloat16 : DeviceElement::kBFloat16,
          Shape::kRows,
          Shape::kKeys,
          launch_blocks<Shape, Inputs, kKernel>};
}

}  // namespace longnet
