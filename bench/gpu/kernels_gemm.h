// Parts of gpu_kernels_benchmark: products of matrices by cuBLASLt, and work on rows.
#pragma once
#include <cstddef>
#include <vector>

#include "gpu/support.h"

namespace longnet::gpu {

// Products of a layer of the paper's base model (D = 768, feed-forward 4 D) for `tokens` rows, and
// of its gradients: adds a point each, and returns how many failed. None without cuBLASLt.
size_t time_products(int64_t tokens, bool quick, std::vector<Json>& points);

// Times what a walk does with each shard beside attends, by the host's clock: inputs with their
// digest, digests and summaries alone, NaN. Returns the number of parts that were wrong.
size_t time_rows(int64_t tokens, std::vector<Json>& points);

}  // namespace longnet::gpu
