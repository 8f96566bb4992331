// Scaled-dot-product attention and its backward pass as cuDNN's operation graphs.
//
// The composite graphs, which cuDNN recognises as flash attention. Source: the cuDNN 9 backend API
// reference, and for the backward pass the graph that its frontend makes. K is given with its last
// two dimensions swapped.
//
//   forward   S = scale Q K^T [mask], O = softmax(S) V, LSE = max + log(sum)
//   backward  delta = sum(dO * O), P = exp(scale Q K^T - LSE [mask]), dV = P^T dO,
//             dS = scale P * (dO V^T - delta), dK = dS^T Q, dQ = dS K
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/cuda/cudnn_operations.h"
#include "kernels/cuda/strided_view.h"

namespace longnet {

enum SdpaUid : int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kLse,
  kScale,
  kHidden,  // the score of keys that a row may not see
  // Tensors of the backward pass alone.
  kOne,
  kGradOut,
  kGradQ,
  kGradK,
  kGradV,
  kDelta,    // scratch memory: a float per row
  kGradQSum  // scratch memory where sums may have any order: dQ in fp32
};

// Bytes. Engines may insist on the alignment that cuDNN's own frontend gives to every tensor.
inline constexpr int64_t kTensorAlignment = 16;
// Alignments of LSE, in the order in which plans are tried.
std::vector<int64_t> lse_alignments(const SdpaShape& shape);
// `lse_alignment`: one of these. A graph without a handle is for a device description.
OperationGraph sdpa_graph(const SdpaShape& shape, int64_t lse_alignment, cudnnHandle_t handle);

}  // namespace longnet
