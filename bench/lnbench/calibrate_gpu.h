// A cluster whose speeds of attention a GPU has measured.
#pragma once
#include <string>

#include "simulate/cluster.h"

namespace longnet {

// `base` with the figures of `file`, what gpu_kernels_benchmark --json wrote, for `kernel` ("cuda",
// "cudnn"): dense attention in bf16. Of a head_dim and mask that were measured, published rows give
// way; others stay. Throws UsageError when the file holds no such figures.
ClusterSpec with_measured_attention(ClusterSpec base, const std::string& file,
                                    const std::string& kernel);

}  // namespace longnet
