// The tile shapes that are compiled. Head dimensions between are padded with zeros to the next one.
//
// The default of each head dimension is a guess from registers and shared memory; the variants are
// there for gpu_kernels_benchmark to find a better one on a real device (LONGNET_CUDA_VARIANTS).
#pragma once
#include <cmath>

#include "kernels/cuda/tile_layout.h"

namespace longnet {

template <int kDim>
struct DefaultShapeOf;
template <>
struct DefaultShapeOf<64> {
  using Type = TileShape<64, 2, 64, true, 2>;
};
template <>
struct DefaultShapeOf<128> {
  using Type = TileShape<128, 2, 64, false, 2>;
};
template <>
struct DefaultShapeOf<256> {
  using Type = TileShape<256, 1, 32, false, 1>;
};
template <int kDim>
using DefaultShape = typename DefaultShapeOf<kDim>::Type;

using Shape64Lean = TileShape<64, 2, 64, false, 3>;  // three blocks per SM
using Shape64Wide = TileShape<64, 2, 128, true, 2>;  // FlashAttention-2's
using Shape64Small = TileShape<64, 1, 64, true, 4>;
using Shape128Lean = TileShape<128, 2, 32, false, 2>;
using Shape128Small = TileShape<128, 1, 64, true, 3>;

template <class F>
void for_each_shape(F f) {
  f(DefaultShape<64>{});
  f(DefaultShape<128>{});
  f(DefaultShape<256>{});
  f(Shape64Lean{});
  f(Shape64Wide{});
  f(Shape64Small{});
  f(Shape128Lean{});
  f(Shape128Small{});
}

inline TileInputs tile_inputs(const TileTask* tasks, const TileRun* runs, const TileRef* tiles,
                              int64_t head_dim, bool causal, bool merge, float output_scale) {
  return {.tasks = tasks,
          .runs = runs,
          .tiles = tiles,
          .head_dim = int32_t(head_dim),
          .causal = causal,
          .merge = merge,
          .scale_log2 = 1.44269504089f / std::sqrt(float(head_dim)),
          .output_scale = output_scale};
}

}  // namespace longnet
