// Products of tiles of 16-bit rows in shared memory (tile_layout.h) by mma.sync, for a warp.
//
// Fragments of mma.m16n8k16 and ldmatrix: PTX ISA 8.x, sections 9.7.14.5.8 and 9.7.14.5.15.
#pragma once
#include <cstdint>

#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/tile_layout.h"

namespace longnet {

using Fragment = uint32_t[4];

// Element i of a lane's accumulators (16 rows x 8 columns).
__device__ __forceinline__ int accumulator_row(int lane, int i) {
  return (lane >> 2) + (i >> 1) * 8;
}
__device__ __forceinline__ int accumulator_column(int lane, int i) {
  return (lane & 3) * 2 + (i & 1);
}

template <int kM, int kN>
__device__ __forceinline__ void set_zero(float (&c)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0.0f;
    }
  }
}

// A operand of 16 columns of accumulators, two neighbouring blocks of them, rounded.
template <int kM, int kN>
__device__ __forceinline__ void pack_operand(Fragment (&a)[kM], const float (&p)[kM][kN][4],
                                             int k) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto& pair = p[m][2 * k + (i >> 1)];
      a[m][i] = pack_pair(pair[2 * (i & 1)], pair[2 * (i & 1) + 1]);
    }
  }
}

// Addresses that a lane gives to ldmatrix.x4. Matrices come in the order of the operands.
//   A (16 rows x 16 dims):  rows 0-7 | rows 8-15 of the first 8 dims, then of the last 8
//   B of P V (16 keys x 16 dims), transposed on the way: dims 0-7: keys 0-7 | 8-15, then dims 8-15
template <class Shape>
__device__ __forceinline__ int row_address(int lane, int row, int chunk) {
  return chunk_offset<Shape>(row + (lane & 15), chunk + (lane >> 4));
}
//   B of Q K^T (16 keys x 16 dims): keys 0-7: dims 0-7 | 8-15, then keys 8-15
template <class Shape>
__device__ __forceinline__ int key_address(int lane, int key, int chunk) {
  return chunk_offset<Shape>(key + (lane >> 4) * 8 + (lane & 7), chunk + (lane >> 3 & 1));
}

// Dims [16 k, 16 k + 16) of rows [row, row + 16 kM) of the tile at `tile`.
template <class Shape, int kM>
__device__ __forceinline__ void load_operand(Fragment (&a)[kM], uint32_t tile, int row, int k) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
    ldmatrix(a[m], tile + row_address<Shape>(lane_of_thread(), row + m * 16, k * 2));
}

// C = A B^T over all dims; the rows of the tile at `b` are C's columns. a(k) returns the operand of
// dims [16 k, 16 k + 16).
template <class Shape, int kM, int kN, class Operand>
__device__ __forceinline__ void multiply_rows(float (&c)[kM][kN][4], uint32_t b, Operand a) {
  set_zero(c);
#pragma unroll
  for (int k = 0; k < Shape::kDim / 16; ++k) {
    const Fragment(&rows)[kM] = a(k);
#pragma unroll
    for (int n = 0; n < kN / 2; ++n) {
      Fragment columns;
      ldmatrix(columns, b + uint32_t(key_address<Shape>(lane_of_thread(), n * 16, k * 2)));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma(c[m][2 * n], rows[m], columns[0], columns[1]);
        mma(c[m][2 * n + 1], rows[m], columns[2], columns[3]);
      }
    }
  }
}

// C += P B; the rows of the tile at `b` belong to P's columns.
template <class Shape, int kM, int kN>
__device__ __forceinline__ void add_weighted_rows(float (&c)[kM][Shape::kDim / 8][4],
                                                  const float (&p)[kM][kN][4], uint32_t b) {
#pragma unroll
  for (int k = 0; k < kN / 2; ++k) {
    Fragment weights[kM];
    pack_operand(weights, p, k);
#pragma unroll
    for (int n = 0; n < Shape::kDim / 16; ++n) {
      Fragment rows;
      ldmatrix_transposed(rows, b + uint32_t(row_address<Shape>(lane_of_thread(), k * 16, n * 2)));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma(c[m][2 * n], weights[m], rows[0], rows[1]);
        mma(c[m][2 * n + 1], weights[m], rows[2], rows[3]);
      }
    }
  }
}

}  // namespace longnet
