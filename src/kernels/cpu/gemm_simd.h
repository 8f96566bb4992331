// Products of matrices on one core, for the best instruction set of the machine.
//
// Method (Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008): a
// block of C is the work of one thread.
//   for each panel of 256 of the depth k
//     pack B's panel as fp32, in groups of the tile's columns     it stays in L2
//     for each 96 rows of the block
//       pack them of A's panel as fp32                            a tile's 6 rows stay in L1
//       for each tile, for each half of the depth: C += A B       multiply_tile of attention
//
// Each number of C is the sum of sums over halves of a panel, however C is cut into blocks: the
// bits depend neither on the block nor on threads.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/model_kernel.h"

namespace longnet {

// The most rows and columns of C in a block: a panel of B takes 1 MB.
inline constexpr int64_t kGemmRows = 960, kGemmColumns = 1024;
inline constexpr int64_t kGemmRowStep = 96;  // rows that are packed at a time

struct GemmBlock {
  int64_t row, rows, column, columns;  // in C
};

// Bytes of scratch memory that one gemm_block needs, a multiple of 64.
int64_t gemm_workspace_bytes();

// `workspace`: at a multiple of 64, any contents.
void gemm_block(const GemmTask& task, const GemmBlock& block, std::byte* workspace);

}  // namespace longnet
