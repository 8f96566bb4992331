// A cluster whose speeds of attention, or whose links, GPUs have measured.
#pragma once
#include <string>

#include "simulate/cluster.h"

namespace longnet {

// `base` with the figures of `file`, what gpu_kernels_benchmark --json wrote, for `kernel` ("cuda",
// "cudnn"): dense attention in bf16. Of a head_dim and mask that were measured, published rows give
// way; others stay. Throws UsageError when the file holds no such figures.
ClusterSpec with_measured_attention(ClusterSpec base, const std::string& file,
                                    const std::string& kernel);

// `base` with the latency and bandwidth of the link between ranks 0 and 1 of `file`, what `lnbench
// comm --transport ... --json` wrote of GPUs: fitted to messages in both directions at once, as
// rings use links. Ranks of one host are the link inside a node, else that between nodes. Throws
// UsageError when the file holds no such figures.
ClusterSpec with_measured_link(ClusterSpec base, const std::string& file);

}  // namespace longnet
