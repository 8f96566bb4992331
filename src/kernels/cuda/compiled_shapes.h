// The tile shapes that kernels `cuda` and `cuda_sm90a` are compiled for.
#pragma once
#include <span>
#include <string_view>

#include "kernels/cuda/backward_layout.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/group_layout.h"
#include "kernels/cuda/tile_layout.h"

namespace longnet {

template <class Inputs>
struct CompiledShape {
  std::string_view name;
  void (*kernel)(Inputs);     // a __global__ function
  int head_dim;               // the largest that fits
  int rows, keys;             // per tile
  int threads, shared_bytes;  // per block
  bool causal;                // preferred under a causal mask
};
template <class Shape, class Inputs>
constexpr CompiledShape<Inputs> compiled_shape(std::string_view name, void (*kernel)(Inputs),
                                               bool causal = false) {
  return {name,         kernel,          Shape::kDim,         Shape::kRows,
          Shape::kKeys, Shape::kThreads, Shape::kSharedBytes, causal};
}
// The shapes of a kernel: those that it takes by itself first, ascending head_dim. They are called
// rows x keys, "q" (Q fragments stay in registers), blocks per SM ...
std::span<const CompiledShape<TileInputs>> tile_shapes();
// ... and rows x keys - stages of K and V.
std::span<const CompiledShape<GroupInputs>> group_shapes();

// A tile shape of the backward pass: the kernels of dQ, and of dK and dV.
struct CompiledBackward {
  CompiledShape<BackwardInputs> queries, keys;
};
std::span<const CompiledBackward> tile_backward_shapes();
std::span<const CompiledBackward> group_backward_shapes();

}  // namespace longnet
