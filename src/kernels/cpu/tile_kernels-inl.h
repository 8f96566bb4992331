// Register tiles and what is packed for them, once per instruction set.
//
// All products of attention, forward and backward, and of matrices are one shape,
//   out[R][C vectors] (+)= a[R][depth] * b[depth][C vectors],
// with `a` read by rows or by columns: C vectors of b are loaded and R scalars of a broadcast for
// R * C multiply-adds. R * C accumulators hide the latency of a multiply-add (4 cycles, 2 per cycle
// at 256 bits, 1 at 512 on Zen 4): 6 x 4 with the 32 registers of AVX-512 and NEON (10 loads per 24
// multiply-adds), 6 x 2 with 16 registers.
#if defined(LONGNET_KERNELS_CPU_TILE_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGNET_KERNELS_CPU_TILE_KERNELS_INL_H_
#undef LONGNET_KERNELS_CPU_TILE_KERNELS_INL_H_
#else
#define LONGNET_KERNELS_CPU_TILE_KERNELS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/attend_simd.h"
#include "kernels/cpu/key_panels.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {

constexpr int kTileHeight = 6;
constexpr int kTileVectors = (HWY_MAX_BYTES == 64 || HWY_ARCH_ARM_A64) ? 4 : 2;
constexpr int kTileWidth = kTileVectors * kLanes;  // floats

struct TileArgs {
  const float* a;  // element (r, i) at r * a_pitch + i * a_step: a transposed `a` has a_pitch 1
  int64_t a_pitch, a_step;
  const float* b;  // [depth][kTileWidth or narrower], row pitch b_pitch, aligned to vectors
  int64_t b_pitch;
  int64_t depth;
  float* out;  // [rows][columns], row pitch out_pitch
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
  const int64_t a_pitch = args.a_pitch, a_step = args.a_step;
  const int64_t b_pitch = args.b_pitch, out_pitch = args.out_pitch;
// 64 or 128 rounds become 16 or 32: 1 to 2 % of the peak (Zen 4, AVX2), 4 % beside other programs.
#pragma GCC unroll 4
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
    a += a_step;
    b += b_pitch;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kVectors; ++c) {
      float* at = out + r * out_pitch + c * kLanes;
      hn::StoreU(kAddToOut ? hn::Add(sum[r][c], hn::LoadU(df, at)) : sum[r][c], df, at);
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

// out[rows][vectors] (+)= a b for any number of rows, in tiles of kTileHeight.
template <bool kAddToOut>
HWY_INLINE void multiply_rows(TileArgs args, int64_t rows, int64_t vectors) {
  for (int64_t r = 0; r < rows; r += kTileHeight) {
    tile_function<kAddToOut>(HWY_MIN(rows - r, kTileHeight), vectors)(args);
    args.a += kTileHeight * args.a_pitch;
    args.out += kTileHeight * args.out_pitch;
  }
}

// ---- columns packed as fp32 for the register tiles ----
//
// A matrix b[depth][columns] lies in groups of a tile's columns: b[group][depth][kTileWidth].
HWY_INLINE float* packed_column(float* b, int64_t depth, int64_t column) {
  return b + column / kTileWidth * depth * kTileWidth + column % kTileWidth;
}

// Packs a matrix whose columns are rows in memory: row_of(column) is where the numbers of one
// begin. Tiles read whole vectors, which must hold numbers: the last column replaces those that are
// absent.
#if HWY_TARGET == HWY_SCALAR
template <class RowOf>
HWY_INLINE void pack_transposed(const RowOf& row_of, int64_t columns, int64_t depth, float* b) {
  for (int64_t column = 0; column < columns; ++column) {
    const auto* const row = row_of(column);
    float* to = packed_column(b, depth, column);
    for (int64_t i = 0; i < depth; ++i, to += kTileWidth)
      *to = hn::GetLane(load_floats(FloatTag(), row + i));
  }
}
#else
// 4 columns x 4 numbers at a time; vectors have a multiple of 4.
template <class RowOf>
HWY_INLINE void pack_transposed(const RowOf& row_of, int64_t columns, int64_t depth, float* b) {
  const hn::FixedTag<float, 4> d4;
  const hn::RepartitionToWide<decltype(d4)> d2;
  for (int64_t column = 0; column < round_up(columns, kLanes); column += 4) {
    decltype(row_of(0)) rows[4];
    for (int64_t j = 0; j < 4; ++j) rows[j] = row_of(HWY_MIN(column + j, columns - 1));
    float* to = packed_column(b, depth, column);
    int64_t i = 0;
    for (; i + 4 <= depth; i += 4, to += 4 * kTileWidth) {
      const auto r0 = load_floats(d4, rows[0] + i), r1 = load_floats(d4, rows[1] + i);
      const auto r2 = load_floats(d4, rows[2] + i), r3 = load_floats(d4, rows[3] + i);
      const auto lo01 = hn::BitCast(d2, hn::InterleaveLower(d4, r0, r1));
      const auto lo23 = hn::BitCast(d2, hn::InterleaveLower(d4, r2, r3));
      const auto hi01 = hn::BitCast(d2, hn::InterleaveUpper(d4, r0, r1));
      const auto hi23 = hn::BitCast(d2, hn::InterleaveUpper(d4, r2, r3));
      hn::Store(hn::BitCast(d4, hn::InterleaveLower(d2, lo01, lo23)), d4, to);
      hn::Store(hn::BitCast(d4, hn::InterleaveUpper(d2, lo01, lo23)), d4, to + kTileWidth);
      hn::Store(hn::BitCast(d4, hn::InterleaveLower(d2, hi01, hi23)), d4, to + 2 * kTileWidth);
      hn::Store(hn::BitCast(d4, hn::InterleaveUpper(d2, hi01, hi23)), d4, to + 3 * kTileWidth);
    }
    for (; i < depth; ++i, to += kTileWidth)
      for (int64_t j = 0; j < 4; ++j) to[j] = hn::GetLane(load_floats(OneFloat(), rows[j] + i));
  }
}
#endif

HWY_INLINE void hide(float* scores, int64_t begin, int64_t end) {
  std::fill(scores + begin, scores + end, -std::numeric_limits<float>::infinity());
}

// Sets the scores of keys that a query at `token` does not see to -inf.
inline void mask_row(const KeyPanel& panel, int64_t token, int64_t width, float* scores) {
  for (const PanelSegment& s : panel.active()) {
    const int64_t visible = visible_rows(s.first_token, s.token_step, s.keys, token);
    hide(scores, HWY_MIN(s.begin + visible, width), HWY_MIN(s.begin + s.keys, width));
  }
  hide(scores, HWY_MIN(panel.keys, width), width);
}

// ---- keys of a panel, packed ----
//
// K is transposed, so that a vector holds one coordinate of kLanes keys:
// k[group][head_dim][kTileWidth]. V keeps its rows: v[group][kPanelKeys][group width]. The cost is
// that of about 4 query rows per panel.

// The columns of V and O are cut into groups of at most kTileVectors vectors, as equal as possible:
// 5 vectors make 3 + 2 (not 4 + 1, whose last group would have too few sums to hide latency).
struct ColumnGroups {
  int64_t vectors, groups;
  explicit ColumnGroups(int64_t head_dim)
      : vectors((head_dim + kLanes - 1) / kLanes),
        groups((vectors + kTileVectors - 1) / kTileVectors) {}
  int64_t begin(int64_t g) const {  // in vectors
    return g * (vectors / groups) + HWY_MIN(g, vectors % groups);
  }
  int64_t width(int64_t g) const { return begin(g + 1) - begin(g); }
};

template <class Storage>
HWY_NOINLINE void pack_keys(const PanelRows& from, int64_t keys, int64_t head_dim, float* k) {
  const auto row_of = [&](int64_t key) {
    return reinterpret_cast<const Storage*>(from[size_t(key)]);
  };
  pack_transposed(row_of, keys, head_dim, k);
}

template <class Storage>
HWY_NOINLINE void pack_grouped(const PanelRows& from, int64_t keys, int64_t head_dim,
                               float* HWY_RESTRICT v) {
  const hn::CappedTag<float, 8> d8;  // head_dim is a multiple of 8
  constexpr int64_t kStep = int64_t(hn::MaxLanes(d8));
  const ColumnGroups columns(head_dim);
  const int64_t padded = columns.vectors * kLanes;
  for (int64_t g = 0; g < columns.groups; ++g) {
    const int64_t begin = columns.begin(g) * kLanes, width = columns.width(g) * kLanes;
    float* group = v + begin * kPanelKeys;
    for (int64_t key = 0; key < keys; ++key) {
      const Storage* row = reinterpret_cast<const Storage*>(from[size_t(key)]);
      float* to = group + key * width - begin;
      const int64_t end = HWY_MIN(begin + width, head_dim);
      for (int64_t c = begin; c < end; c += kStep) hn::StoreU(load_floats(d8, row + c), d8, to + c);
      for (int64_t c = end; c < HWY_MIN(begin + width, padded); ++c) to[c] = 0.0f;
    }
  }
}

// Each tile fetches its share of the next panel (rows [begin, end) of K and V). Worth 2 to 3 % of
// the peak for dilated rows that come from memory.
HWY_INLINE void prefetch_rows(const KeyPanel& panel, int64_t begin, int64_t end,
                              int64_t row_bytes) {
  for (int64_t row = begin; row < end; ++row) {
    prefetch_row(panel.k[size_t(row)], row_bytes);
    prefetch_row(panel.v[size_t(row)], row_bytes);
  }
}

// Prefetches the gradients of a key and its value, if the panel has that key.
template <class Storage, class Task>
HWY_INLINE void prefetch_gradients(const Task& task, const KeyPanel& panel, int64_t key,
                                   int64_t row_bytes) {
  if (key >= panel.keys) return;
  prefetch_row(task.gradient_of(panel.k[size_t(key)], sizeof(Storage)), row_bytes);
  prefetch_row(task.gradient_of(panel.v[size_t(key)], sizeof(Storage)), row_bytes);
}

// L in units of log2, and delta, of a task's rows. L = -inf counts as +inf: P = 0.
template <class Task>
HWY_INLINE void load_statistics(const Task& task, float* lse, float* delta) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < task.q.rows; ++i) {
    const float* const statistics = task.statistics + i * task.statistics_stride;
    lse[i] = statistics[0] == -kInfinity ? kInfinity : float(statistics[0] * std::numbers::log2e);
    delta[i] = statistics[1];
  }
}

// ---- sums over panels ----

// Powers of 2 stay below 2^kLazyMargin: with 2^40 keys the sums stay below 2^56.
constexpr float kLazyMargin = 16.0f;
constexpr float kNoMaximum = -1e30f;  // finite: -inf - m of a masked score must not be NaN
constexpr int64_t kPanelsPerGroup = 4096 / kPanelKeys;

HWY_INLINE void add_floats(float* into, const float* from, int64_t count) {
  const FloatTag df;
  for (int64_t i = 0; i < count; i += kLanes)
    hn::Store(hn::Add(hn::Load(df, into + i), hn::Load(df, from + i)), df, into + i);
}

HWY_INLINE void add_and_clear(float* into, float* from, int64_t count) {
  add_floats(into, from, count);
  std::fill_n(from, count, 0.0f);
}

// Walks the keys of `kv` in panels, and the queries in tiles of Work::kRows:
//
//   for each panel       work.template begin_panel<Storage>(panel)
//     for each tile        work.attend_tile(panel, first row, rows, keys, masked)
//                        work.template end_panel<Storage>(panel)
//
// `masked`: null where each row sees each of the first `keys` keys. Rows that see none are left
// out. The progress hook is called behind each panel and between so many numbers of Q that a core
// needs 0.1 to 0.3 ms for a panel's products with them: a panel of 2048 rows at d = 256 takes 3 ms.
constexpr int64_t kNumbersBetweenHooks = 32768;

template <class Storage, class Work>
HWY_INLINE void for_each_panel(KeyPanels panels, const QueryRun& q, const AttendOptions& options,
                               Work& work) {
  const auto token = [&](int64_t row) { return q.first_token + row * q.token_step; };
  const auto call_hook = [&] {
    if (options.progress_hook != nullptr) (*options.progress_hook)();
  };
  KeyPanel two[2];
  panels.next(two[0]);
  for (int64_t n = 0; two[n % 2].keys > 0; ++n) {
    const KeyPanel& panel = two[n % 2];
    KeyPanel& following = two[(n + 1) % 2];
    panels.next(following);
    work.template begin_panel<Storage>(panel);
    int64_t numbers = 0;  // since the last call of the hook
    for (int64_t begin = 0; begin < q.rows; begin += Work::kRows) {
      const int64_t rows = HWY_MIN(Work::kRows, q.rows - begin);
      if (numbers >= kNumbersBetweenHooks) call_hook(), numbers = 0;
      numbers += rows * options.head_dim;
      prefetch_rows(following, following.keys * begin / q.rows,
                    following.keys * (begin + rows) / q.rows,
                    options.head_dim * int64_t(sizeof(Storage)));
      if (!options.causal || token(begin) >= panel.max_token) {
        work.attend_tile(panel, begin, rows, panel.keys, nullptr);
        continue;
      }
      const int64_t blind = visible_rows(token(begin), q.token_step, rows, panel.min_token - 1);
      if (blind < rows)
        work.attend_tile(panel, begin + blind, rows - blind,
                         panel.visible_end(token(begin + rows - 1)), &q);
    }
    work.template end_panel<Storage>(panel);
    call_hook();
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();
#endif
