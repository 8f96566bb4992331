// The tile shapes that the `cuda_sm90a` kernel is compiled for.
//
// The default of each head dimension is a guess from registers and shared memory; the variants are
// there for gpu_kernels_benchmark to find a better one on a real device (LONGNET_CUDA_VARIANTS).
#pragma once
#include <cmath>

#include "kernels/cuda/group_layout.h"

namespace longnet {

using Group64 = GroupShape<64, 3, 128, 4, true>;  // rows and keys of FlashAttention-3
using Group128 = GroupShape<128, 2, 128, 3, true>;

using Group64Free = GroupShape<64, 3, 128, 4, false>;  // no turns
using Group64Two = GroupShape<64, 2, 128, 4, true>;    // 2048 rows without a rest
using Group64TwoFree = GroupShape<64, 2, 128, 4, false>;
using Group128Free = GroupShape<128, 2, 128, 3, false>;

inline GroupInputs group_inputs(int64_t head_dim, bool causal, bool merge, float output_scale) {
  return {.tasks = nullptr,
          .runs = nullptr,
          .tiles = nullptr,
          .block_begin = nullptr,
          .maps = nullptr,
          .head_dim = int32_t(head_dim),
          .causal = causal,
          .merge = merge,
          .scale_log2 = 1.44269504089f / std::sqrt(float(head_dim)),
          .output_scale = output_scale};
}

}  // namespace longnet
