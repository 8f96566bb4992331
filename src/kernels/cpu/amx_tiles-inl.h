// AMX tiles, once per instruction set that has AVX-512: registers, products, operands in memory.
// X' is X transposed.
#if defined(LONGNET_KERNELS_CPU_AMX_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGNET_KERNELS_CPU_AMX_TILES_INL_H_
#undef LONGNET_KERNELS_CPU_AMX_TILES_INL_H_
#else
#define LONGNET_KERNELS_CPU_AMX_TILES_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/attend_simd.h"
#include "kernels/cpu/key_panels.h"
#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86_64

constexpr int64_t kTileSide = 16, kTileDepth = 32;     // A: [16][32], B: [32][16], C: [16][16]
constexpr int64_t kTileWords = kTileSide * kTileSide;  // words of 32 bits

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
// and `step` lead to the tile beside and to the one of the next kTileDepth columns or rows that a
// product sums over.
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

// Values i and i + 16 of the 32 that a product sums over share word i, in all operands.
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

// One piece is rounded: values that are all cut down would not average out. NaN stays NaN.
template <int kPieces>
HWY_INLINE FloatVec rounded_to(FloatVec x) {
  if constexpr (kPieces > 1) return x;
  const FloatTag df;
  const hn::RebindToUnsigned<FloatTag> du;
  const auto rounded = hn::BitCast(df, hn::Add(hn::BitCast(du, x), hn::Set(du, 0x8000u)));
  return hn::IfThenElse(hn::Eq(x, x), rounded,
                        hn::Set(df, std::numeric_limits<float>::quiet_NaN()));
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

// The next 16 values of a row of which `left` remain, then zeros.
template <class Storage>
HWY_INLINE FloatVec load_values(const Storage* from, int64_t left) {
  const FloatTag df;
  if (left >= kTileSide) return load_floats(df, from);
  if (left <= 0) return hn::Zero(df);
  const hn::CappedTag<float, 8> d8;  // head_dim is a multiple of 8
  return hn::ZeroExtendVector(df, load_floats(d8, from));
}

template <class Storage>
inline constexpr int kPiecesOf = sizeof(Storage) == 4 ? 3 : 1;

HWY_INLINE void transpose_tiles(uint32_t* tiles, int64_t count) {
  for (int64_t i = 0; i < count; ++i) transpose(tiles + i * kTileWords);
}

// 16 rows at row_of(0), row_of(1), ... as tiles A of X: [padded / 32][pieces]. Transposed they are
// tiles B of X'. Rows from `rows` on are zeros.
template <class RowOf>
HWY_INLINE void pack_rows(const RowOf& row_of, int64_t rows, int64_t head_dim, uint32_t* tiles) {
  constexpr int kPieces = kPiecesOf<std::remove_cvref_t<decltype(*row_of(0))>>;
  for (int64_t c = 0; c < head_dim; c += kTileDepth, tiles += kPieces * kTileWords)
    for (int64_t i = 0; i < kTileSide; ++i) {
      const int64_t left = i < rows ? head_dim - c : 0;
      const auto* const from = left > 0 ? row_of(i) + c : nullptr;
      store_pairs<kPieces>(
          load_values(from, left),
          load_values(left > kTileSide ? from + kTileSide : from, left - kTileSide),
          tiles + i * kTileSide);
    }
}

// 32 rows, which a product sums over, as tiles B of X: [padded / 16][pieces], `stride` words from
// 16 columns to the next. Transposed they are tiles A of X'.
template <class RowOf>
HWY_INLINE void pack_columns(const RowOf& row_of, int64_t rows, int64_t head_dim, uint32_t* tiles,
                             int64_t stride) {
  constexpr int kPieces = kPiecesOf<std::remove_cvref_t<decltype(*row_of(0))>>;
  for (int64_t c = 0; c < round_up(head_dim, kTileDepth); c += kTileSide, tiles += stride) {
    const auto values = [&](int64_t i) {
      return i < rows ? load_values(row_of(i) + c, head_dim - c) : hn::Zero(FloatTag());
    };
    for (int64_t i = 0; i < kTileSide; ++i)
      store_pairs<kPieces>(values(i), values(kTileSide + i), tiles + i * kTileSide);
  }
}

// Rows of queries (or of dO) as tiles B of Q': [row / 16][padded / 32][pieces], whole pairs of 16.
template <class Storage>
HWY_INLINE void pack_queries(const Storage* rows, int64_t stride, int64_t count, int64_t head_dim,
                             uint32_t* tiles) {
  const int64_t of_row = round_up(head_dim, kTileDepth) / kTileDepth * kPiecesOf<Storage>;
  for (int64_t begin = 0; begin < round_up(count, kTileDepth); begin += kTileSide) {
    pack_rows([&](int64_t i) { return rows + (begin + i) * stride; }, count - begin, head_dim,
              tiles);
    transpose_tiles(tiles, of_row);
    tiles += of_row * kTileWords;
  }
}

template <class Storage>
HWY_INLINE auto rows_from(const PanelRows& rows, int64_t begin) {
  return [&rows, begin](int64_t i) {
    return reinterpret_cast<const Storage*>(rows[size_t(begin + i)]);
  };
}

// Keys (or values) as tiles A of K: [key / 16][padded / 32][pieces], whole pairs of 16.
template <class Storage>
HWY_INLINE void pack_keys_in_rows(const PanelRows& rows, int64_t keys, int64_t head_dim,
                                  uint32_t* tiles) {
  const int64_t of_row = round_up(head_dim, kTileDepth) / kTileDepth * kPiecesOf<Storage>;
  for (int64_t begin = 0; begin < round_up(keys, kTileDepth); begin += kTileSide)
    pack_rows(rows_from<Storage>(rows, begin), keys - begin, head_dim,
              tiles + begin / kTileSide * of_row * kTileWords);
}

constexpr int64_t kPanelSteps = kPanelKeys / kTileDepth;  // steps of 32 keys

// Keys (or values) as tiles A of K': [padded / 16][kPanelSteps][pieces].
template <class Storage>
HWY_INLINE void pack_keys_in_columns(const PanelRows& rows, int64_t keys, int64_t head_dim,
                                     uint32_t* tiles) {
  constexpr int64_t kTile = kPiecesOf<Storage> * kTileWords;
  for (int64_t begin = 0; begin < keys; begin += kTileDepth, tiles += kTile) {
    pack_columns(rows_from<Storage>(rows, begin), keys - begin, head_dim, tiles,
                 kPanelSteps * kTile);
    for (int64_t c = 0; c < round_up(head_dim, kTileDepth); c += kTileSide)
      transpose_tiles(tiles + c / kTileSide * kPanelSteps * kTile, kPiecesOf<Storage>);
  }
}

// ---- causal masks ----

// The first row of queries that sees each key of a panel: positions of queries ascend. None sees
// those behind the last.
class FirstRows {
 public:
  void find(const KeyPanel& panel, const QueryRun& q, bool causal) {
    rows_.fill(std::numeric_limits<int64_t>::max());
    last_.fill(0);
    for (const PanelSegment& s : panel.active())
      for (int64_t i = 0; i < s.keys; ++i)
        rows_[size_t(s.begin + i)] = causal ? visible_rows(q.first_token, q.token_step, q.rows,
                                                           s.first_token + i * s.token_step - 1)
                                            : 0;
    for (int64_t key = 0; key < kPanelKeys; ++key) {
      int64_t& last = last_[size_t(key / kTileDepth)];
      last = HWY_MAX(last, rows_[size_t(key)]);
    }
  }

  // Scores of 32 rows from `begin` on and of 32 keys, s[2][`pitch`] with [32][16] each, become -inf
  // where a row does not see a key.
  HWY_INLINE void hide(int64_t step, int64_t begin, float* s, int64_t pitch) const {
    if (last_[size_t(step)] <= begin) return;
    const FloatTag df;
    const auto hidden = hn::Set(df, -std::numeric_limits<float>::infinity());
    for (int64_t key = 0; key < kTileDepth; ++key)
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t lanes = rows_[size_t(step * kTileDepth + key)] - begin - i * kTileSide;
        if (lanes > 0)
          hn::BlendedStore(hidden, hn::FirstN(df, size_t(HWY_MIN(lanes, kTileSide))), df,
                           s + i * pitch + key * kTileSide);
      }
  }

 private:
  std::array<int64_t, kPanelKeys> rows_;
  std::array<int64_t, kPanelSteps> last_;  // by 32 keys
};

#endif
}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();
#endif
