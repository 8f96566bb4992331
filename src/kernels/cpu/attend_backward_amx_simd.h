// Exact gradients of a block of queries and keys on one core by AMX tiles (see attend_amx_simd.h).
//
//   for each panel of 128 keys        K and V in tiles; K' in tiles; dK, dV in L2
//     for each 64 queries             Q, dO by rows and by columns, and dQ' stream from L2
//       for each 32 keys                S' = K Q';  P' = 2^(S' - L);  dP' = V dO';
//                                       dS' = P' (dP' - delta);  dV += P' dO;  dK += dS' Q
//       dQ' += K' dS'
//
// X' is X transposed. Queries lie in the lanes of vectors of P' and dS': those of 32 queries are a
// row of an operand A, and those of two keys a row of an operand B, as they are. Factors come last:
// dK and dQ get 1 / sqrt(d), dV the scale of dO. With bf16 storage dS is rounded to bf16, as P is.
//
// Sums are made on three levels (64 queries or a panel, block, all), as those of
// attend_backward_simd.h.
#pragma once
#include "kernels/attention_kernel.h"
#include "kernels/cpu/key_panels.h"

namespace longnet {

inline constexpr int64_t kAmxBackwardTileRows = 64;
inline constexpr int64_t kAmxBackwardRows = 2048;  // the most queries of a block
static_assert(kAmxBackwardRows % kAmxBackwardTileRows == 0);

// As backward_block_bytes() and backward_block(), where why_amx_absent() is "".
int64_t amx_backward_block_bytes(const AttendOptions& options);
void amx_backward_block(const BackwardTask& task, KeyRange range, const AttendOptions& options,
                        std::byte* workspace);

}  // namespace longnet
