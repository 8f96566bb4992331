// Register tiles and the exponential, once per instruction set (included by foreach_target).
//
// Both products of attention are one shape, out[R][C vectors] (+)= a[R][depth] * b[depth][C
// vectors]: C vectors of b are loaded and R scalars of a broadcast for R * C multiply-adds. R * C
// accumulators hide the latency of a multiply-add (4 cycles, 2 per cycle at 256 bits, 1 at 512 on
// Zen 4): 6 x 4 with the 32 registers of AVX-512 and NEON (10 loads per 24 multiply-adds), 6 x 2
// with 16 registers.
#if defined(LONGNET_KERNELS_CPU_TILE_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGNET_KERNELS_CPU_TILE_KERNELS_INL_H_
#undef LONGNET_KERNELS_CPU_TILE_KERNELS_INL_H_
#else
#define LONGNET_KERNELS_CPU_TILE_KERNELS_INL_H_
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
constexpr int kLanes = int(hn::MaxLanes(FloatTag()));
constexpr int kTileHeight = 6;
constexpr int kTileVectors = (HWY_MAX_BYTES == 64 || HWY_ARCH_ARM_A64) ? 4 : 2;
constexpr int kTileWidth = kTileVectors * kLanes;  // floats

// 2^x for x <= 127 as 2^n 2^f, |f| <= 1/2: a minimax polynomial in f with relative error 9e-8 that
// is exactly 1 at 0. 0 for x <= -127, -inf included. Adding kMagic rounds x to an integer n and
// leaves n + 127, the exponent bits of 2^n, in the low byte.
HWY_INLINE FloatVec exp2_below_127(FloatVec x) {
  const FloatTag df;
  const hn::RebindToUnsigned<FloatTag> du;
  const FloatVec magic = hn::Set(df, 12582912.0f + 127.0f);  // 1.5 * 2^23 + 127
  x = hn::Max(x, hn::Set(df, -127.0f));
  const FloatVec shifted = hn::Add(x, magic);
  const FloatVec f = hn::Sub(x, hn::Sub(shifted, magic));
  const FloatVec power = hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
  FloatVec p = hn::Set(df, 1.326472731e-03f);
  p = hn::MulAdd(p, f, hn::Set(df, 9.671512991e-03f));
  p = hn::MulAdd(p, f, hn::Set(df, 5.550733581e-02f));
  p = hn::MulAdd(p, f, hn::Set(df, 2.402224243e-01f));
  p = hn::MulAdd(p, f, hn::Set(df, 6.931470037e-01f));
  p = hn::MulAdd(p, f, hn::Set(df, 1.0f));
  return hn::Mul(p, power);
}

struct TileArgs {
  const float* a;  // [rows][depth], row pitch a_pitch
  int64_t a_pitch;
  const float* b;  // [depth][kTileWidth or narrower], row pitch b_pitch, aligned to vectors
  int64_t b_pitch;
  int64_t depth;
  float* out;  // [rows][columns], row pitch out_pitch, aligned to vectors
  int64_t out_pitch;
};

// out = a * b, or out += a * b with a fresh sum over depth: the innermost level of summation.
template <int kRows, int kVectors, bool kAddToOut>
HWY_NOINLINE void multiply_tile(const TileArgs& args) {
  const FloatTag df;
  FloatVec sum[kRows][kVectors];
// The unroll pragmas are needed: without full unrolling the sums live in memory.
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kVectors; ++c) sum[r][c] = hn::Zero(df);
  }
  const float* HWY_RESTRICT a = args.a;
  const float* HWY_RESTRICT b = args.b;
  float* HWY_RESTRICT out = args.out;
  const int64_t a_pitch = args.a_pitch, b_pitch = args.b_pitch, out_pitch = args.out_pitch;
  for (int64_t i = args.depth; i > 0; --i) {
    FloatVec row[kVectors];
#pragma GCC unroll 8
    for (int c = 0; c < kVectors; ++c) row[c] = hn::Load(df, b + c * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const FloatVec scalar = hn::Set(df, a[r * a_pitch]);
#pragma GCC unroll 8
      for (int c = 0; c < kVectors; ++c) sum[r][c] = hn::MulAdd(scalar, row[c], sum[r][c]);
    }
    ++a;
    b += b_pitch;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kVectors; ++c) {
      float* at = out + r * out_pitch + c * kLanes;
      hn::Store(kAddToOut ? hn::Add(sum[r][c], hn::Load(df, at)) : sum[r][c], df, at);
    }
  }
}

using TileFunction = void (*)(const TileArgs&);

template <bool kAddToOut, size_t... kIndex>
constexpr std::array<TileFunction, sizeof...(kIndex)> tile_table(std::index_sequence<kIndex...>) {
  return {multiply_tile<kIndex / kTileVectors + 1, kIndex % kTileVectors + 1, kAddToOut>...};
}

// The tile of 1 to kTileHeight rows and 1 to kTileVectors vectors: row counts are rarely multiples
// of 6.
template <bool kAddToOut>
HWY_INLINE TileFunction tile_function(int64_t rows, int64_t vectors) {
  static constexpr auto kTiles =
      tile_table<kAddToOut>(std::make_index_sequence<size_t(kTileHeight * kTileVectors)>());
  return kTiles[size_t((rows - 1) * kTileVectors + vectors - 1)];
}

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();
#endif
