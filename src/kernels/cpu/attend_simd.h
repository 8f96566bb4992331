// Exact attention of one task on one core, for the best instruction set of the machine.
//
// Method (FlashAttention-2, Dao 2023, with CPU caches in the place of shared memory):
//   for each chunk of 2064 query rows       Q, O and the sums of a chunk stream from L2 or L3
//     for each panel of 128 keys            K transposed, V, both as fp32, packed once per chunk
//       for each tile of 12 query rows
//         S = Q K^T;  P = 2^(S - m);  l += sum P;  O += P V
//
// m follows the row maximum lazily: it moves only when a score exceeds it by more than kLazyMargin,
// so that rescaling is rare; the powers stay below 2^kLazyMargin and the sums far from overflow.
//
// Sums are made on three levels (panel, group of panels, all), so that the rounding error of a row
// stays near that of 128 terms: a flat fp32 chain over 2^20 keys would lose 2 digits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/attention_kernel.h"

namespace longnet {

inline constexpr int64_t kMaxHeadDim = 256;

// Bytes of scratch memory that one attend_task needs, a multiple of 64.
int64_t attend_workspace_bytes(int64_t head_dim);

// `workspace`: attend_workspace_bytes(options.head_dim) bytes at a multiple of 64, any contents.
void attend_task(const AttendTask& task, const AttendOptions& options, std::byte* workspace);

}  // namespace longnet
