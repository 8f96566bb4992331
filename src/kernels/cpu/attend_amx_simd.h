// Exact attention of one task on one core by AMX tiles: Intel's cores since Sapphire Rapids.
//
// A tile product adds A[16][32] B[32][16] of bf16 numbers to C[16][16] of fp32, at 16 times the
// rate of fp32 multiply-adds. An fp32 number is the sum of three bf16 numbers of 8 bits each, and
// the product of two such sums that of six products of pieces up to 2^-24 ("bf16x3", Henry et al.,
// "Leveraging the bfloat16 artificial intelligence datatype", 2019): errors are those of fp32. With
// bf16 storage all have one piece, powers P too, which are rounded to it and summed in fp32 before;
// errors are those of kernels of GPUs (AttentionKernel::rounds_probabilities).
//
//   for each chunk of 2048 query rows       Q in tiles, by columns; sums of O by columns
//     for each panel of 128 keys            K in tiles; V in tiles, by columns
//       for each 32 query rows              S' = K Q';  P' = 2^(S' - m);  l += sum P;  O' += V' P'
//
// X' is X transposed: queries lie in the lanes of vectors, so that nothing is summed across lanes.
// Maxima are lazy and sums have levels as in attend_simd.h.
#pragma once
#include <string>

#include "kernels/cpu/attend_simd.h"

namespace longnet {

// Why tiles cannot be used here, or "".
std::string why_amx_absent();

// As attend_workspace_bytes() and attend_task().
int64_t amx_workspace_bytes(const AttendOptions& options);
void amx_attend_task(const AttendTask& task, const AttendOptions& options, std::byte* workspace);

// ---- gradients of a block of queries and keys (attend_backward_amx_simd.cpp)
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

inline constexpr int64_t kAmxBackwardTileRows = 64;
inline constexpr int64_t kAmxBackwardRows = 2048;  // the most queries of a block
static_assert(kAmxBackwardRows % kAmxBackwardTileRows == 0);

// As backward_block_bytes() and backward_block(), where why_amx_absent() is "".
int64_t amx_backward_block_bytes(const AttendOptions& options);
void amx_backward_block(const BackwardTask& task, KeyRange range, const AttendOptions& options,
                        std::byte* workspace);

}  // namespace longnet
