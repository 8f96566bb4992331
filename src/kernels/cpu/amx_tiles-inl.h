// AMX tiles, once per instruction set that has AVX-512: registers, products, operands in memory.
#if defined(LONGNET_KERNELS_CPU_AMX_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGNET_KERNELS_CPU_AMX_TILES_INL_H_
#undef LONGNET_KERNELS_CPU_AMX_TILES_INL_H_
#else
#define LONGNET_KERNELS_CPU_AMX_TILES_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86_64

constexpr int64_t kTileSide = 16, kTileDepth = 32;     // A: [16][32], B: [32][16], C: [16][16]
constexpr int64_t kTileWords = kTileSide * kTileSide;  // of 32 bits

// ---- tile registers ----

template <int kTile>
HWY_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
HWY_INLINE void load_tile(const uint32_t* from) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(int64_t{64}), "i"(kTile)
               : "memory");
}
template <int kTile>
HWY_INLINE void store_tile(float* to) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(int64_t{64}), "i"(kTile) : "memory");
}
template <int kC, int kA, int kB>
HWY_INLINE void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

// Tile registers are 16 rows of 64 bytes while one lives.
class TileRegisters {
 public:
  TileRegisters() {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static_assert(sizeof(Config) == 64);
    const Config config;
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~TileRegisters() { asm volatile("tilerelease"); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

// Tiles in memory: the pieces of a tile lie behind each other, the most significant first; `other`
// and `step` lead to the tile beside and to the one of the next 32 terms of the sums.
struct TileOperand {
  const uint32_t* first;
  int64_t other, step;
};

// out[i][j] = sum of a[i] b[j] for two tiles i and two tiles j, each pair of pieces whose product
// counts: small ones first, each with an operand of the one before. out[1] lies behind out[0],
// out[..][1] `out_other` floats further.
template <int kAPieces, int kBPieces>
HWY_INLINE void multiply_blocks(TileOperand a, TileOperand b, int64_t steps, float* out,
                                int64_t out_other) {
  static constexpr int kPairs[][2] = {{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 0}};
  zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
  for (int64_t step = 0; step < steps; ++step) {
    int a_piece = -1, b_piece = -1;  // in registers
#pragma GCC unroll 6
    for (const auto& [i, j] : kPairs) {
      if (i >= kAPieces || j >= kBPieces) continue;
      if (i != a_piece) {
        load_tile<4>(a.first + i * kTileWords);
        load_tile<5>(a.first + i * kTileWords + a.other);
      }
      if (j != b_piece) {
        load_tile<6>(b.first + j * kTileWords);
        load_tile<7>(b.first + j * kTileWords + b.other);
      }
      a_piece = i, b_piece = j;
      multiply_tiles<0, 4, 6>();
      multiply_tiles<1, 4, 7>();
      multiply_tiles<2, 5, 6>();
      multiply_tiles<3, 5, 7>();
    }
    a.first += a.step;
    b.first += b.step;
  }
  store_tile<0>(out);
  store_tile<1>(out + out_other);
  store_tile<2>(out + kTileWords);
  store_tile<3>(out + kTileWords + out_other);
}

// ---- tiles in memory ----

// Numbers t and t + 16 of 32 terms of a sum share word t, in all operands.
template <int kPieces>
HWY_INLINE void store_pairs(FloatVec low, FloatVec high, uint32_t* to) {
  const FloatTag df;
  const hn::RebindToUnsigned<FloatTag> du;
  const auto upper = hn::Set(du, 0xFFFF0000u);
#pragma GCC unroll 3
  for (int piece = 0; piece < kPieces; ++piece) {
    const auto low_bits = hn::BitCast(du, low), high_bits = hn::And(hn::BitCast(du, high), upper);
    hn::Store(hn::Or(hn::ShiftRight<16>(low_bits), high_bits), du, to + piece * kTileWords);
    low = hn::Sub(low, hn::BitCast(df, hn::And(low_bits, upper)));
    high = hn::Sub(high, hn::BitCast(df, high_bits));
  }
}

// One piece is rounded: numbers that are all cut down would not average out.
template <int kPieces>
HWY_INLINE FloatVec rounded_to(FloatVec x) {
  if constexpr (kPieces > 1) return x;
  const hn::RebindToUnsigned<FloatTag> du;
  return hn::BitCast(FloatTag(), hn::Add(hn::BitCast(du, x), hn::Set(du, 0x8000u)));
}

HWY_INLINE void transpose(uint32_t* tile) {
  const auto lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  __m512i rows[kTileSide];
#pragma GCC unroll 16
  for (int i = 0; i < kTileSide; ++i) rows[i] = _mm512_load_si512(tile + i * kTileSide);
#pragma GCC unroll 4
  for (int half = 8; half > 0; half /= 2) {  // swaps the blocks beside the diagonal
    const auto step = _mm512_set1_epi32(half), behind = _mm512_set1_epi32(kTileSide);
    const __mmask16 right = _mm512_test_epi32_mask(lanes, step);
    const auto upper = _mm512_mask_sub_epi32(lanes, right, _mm512_add_epi32(lanes, behind), step);
    const auto lower = _mm512_mask_add_epi32(_mm512_add_epi32(lanes, step), right, lanes, behind);
#pragma GCC unroll 16
    for (int i = 0; i < kTileSide; ++i) {
      if ((i & half) != 0) continue;
      const auto a = rows[i], b = rows[i + half];
      rows[i] = _mm512_permutex2var_epi32(a, upper, b);
      rows[i + half] = _mm512_permutex2var_epi32(a, lower, b);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kTileSide; ++i) _mm512_store_si512(tile + i * kTileSide, rows[i]);
}

// The next 16 numbers of a row of which `left` remain, then zeros.
template <class Storage>
HWY_INLINE FloatVec load_numbers(const Storage* from, int64_t left) {
  const FloatTag df;
  if (left >= kTileSide) return load_floats(df, from);
  if (left <= 0) return hn::Zero(df);
  const hn::CappedTag<float, 8> d8;  // head_dim is a multiple of 8
  return hn::ZeroExtendVector(df, load_floats(d8, from));
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();
#endif
