// A dilated branch over packed tensors of one device, as grids of tasks: for benchmarks and tests.
#pragma once
#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/attend_grid.h"

namespace longnet {

// Q [tokens][heads][head_dim], K and V [tokens][kv_heads][head_dim], all of `element_bytes`; O as Q
// and LSE [tokens][heads], fp32.
struct PackedAttention {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  float *o = nullptr, *lse = nullptr;
  int64_t tokens = 0, heads = 0, kv_heads = 0, head_dim = 64, element_bytes = 2;
  bool compact_results = false;  // O and LSE hold the branch's rows alone, task after task
};

// For tests: packed tensors at addresses that are compared, never read.
inline PackedAttention unread_packed(int64_t tokens, int64_t heads, int64_t kv_heads) {
  const auto address = [](int64_t tensor) { return std::bit_cast<void*>(tensor << 40); };
  return {.q = address(1),
          .k = address(2),
          .v = address(3),
          .o = static_cast<float*>(address(4)),
          .lse = static_cast<float*>(address(5)),
          .tokens = tokens,
          .heads = heads,
          .kv_heads = kv_heads};
}

// Tasks of the branch (w, r); head j has the offset j mod r; tokens behind the last whole segment
// are left out. The grids refer to `lists`.
std::vector<AttendGrid> branch_grids(const PackedAttention& packed, int64_t segment_length,
                                     int64_t dilation_rate, KvLists& lists);

// The grids of its backward pass: `o` of `packed` is dQ, and `lse` stands for the statistics
// [tokens][heads][2]. dO lies as Q; V behind K, and dV as far behind dK.
std::vector<BackwardGrid> backward_grids(const PackedAttention& packed, const void* grad_out,
                                         float* grad_keys, int64_t segment_length,
                                         int64_t dilation_rate, KvLists& lists);

}  // namespace longnet
