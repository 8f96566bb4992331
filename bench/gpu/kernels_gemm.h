// Parts of gpu_kernels_benchmark: products of matrices by cuBLASLt, functions of layers, work on
// rows.
#pragma once
#include <cstddef>
#include <vector>

#include "gpu/support.h"

namespace longnet::gpu {

// A multiple of 64 normal numbers, made on the device.
DeviceBuffer normal_numbers(int64_t count, DType dtype, MemoryLedger& ledger);

// Products of a layer of the paper's base model (D = 768, feed-forward 4 D) for `tokens` rows, and
// of its gradients: adds a point each, and returns how many failed. None without cuBLASLt.
size_t time_products(int64_t tokens, bool quick, std::vector<Json>& points);

// Every function of a model's layers for `tokens` rows of the base model: GB/s, or TFLOP/s of
// products of activations in bf16 with weights in fp32. Adds a point each that is not too late;
// returns how many failed.
size_t time_model(int64_t tokens, bool quick, const std::function<bool()>& late,
                  std::vector<Json>& points);

// Times what a walk does with each shard beside attends, by the host's clock: inputs with their
// digest, digests and summaries alone, NaN. Returns the number of parts that were wrong.
size_t time_rows(int64_t tokens, std::vector<Json>& points);

}  // namespace longnet::gpu
