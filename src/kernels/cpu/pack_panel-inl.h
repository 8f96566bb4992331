// Packs the keys of a panel as fp32 for the register tiles, once per instruction set.
//
// K is transposed, so that a vector holds one coordinate of kLanes keys; columns stand in groups of
// kTileWidth: k[group][head_dim][kTileWidth]. V keeps its rows: v[group][kPanelKeys][group width].
// The cost is that of about 4 query rows per panel.
#if defined(LONGNET_KERNELS_CPU_PACK_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGNET_KERNELS_CPU_PACK_PANEL_INL_H_
#undef LONGNET_KERNELS_CPU_PACK_PANEL_INL_H_
#else
#define LONGNET_KERNELS_CPU_PACK_PANEL_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/attend_simd.h"
#include "kernels/cpu/key_panels.h"
#include "kernels/cpu/tile_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {

using Bf16Bits = uint16_t;

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D df, const float* from) {
  return hn::LoadU(df, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load_floats(D df, const Bf16Bits* from) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, from))));
}

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

// Stands in for the keys that a panel lacks.
alignas(64) constexpr float kZeroRow[kMaxHeadDim] = {};

template <class Storage>
HWY_INLINE const Storage* key_row(const KeyPanel& panel, int64_t key) {
  return key < panel.keys ? reinterpret_cast<const Storage*>(panel.k[size_t(key)])
                          : reinterpret_cast<const Storage*>(kZeroRow);
}

HWY_INLINE float* key_column(float* k, int64_t head_dim, int64_t key) {
  return k + key / kTileWidth * head_dim * kTileWidth + key % kTileWidth;
}

#if HWY_TARGET == HWY_SCALAR
template <class Storage>
HWY_INLINE void transpose_keys(const KeyPanel& panel, int64_t head_dim, float* HWY_RESTRICT k) {
  for (int64_t key = 0; key < panel.keys; ++key) {
    float* to = key_column(k, head_dim, key);
    for (int64_t c = 0; c < head_dim; ++c) {
      to[c * kTileWidth] = hn::GetLane(load_floats(FloatTag(), key_row<Storage>(panel, key) + c));
    }
  }
}
#else
// 4 keys x 4 coordinates at a time; kTileWidth is a multiple of 4.
template <class Storage>
HWY_INLINE void transpose_keys(const KeyPanel& panel, int64_t head_dim, float* HWY_RESTRICT k) {
  const hn::FixedTag<float, 4> d4;
  const hn::RepartitionToWide<decltype(d4)> d2;
  for (int64_t key = 0; key < panel.keys; key += 4) {
    const Storage* rows[4];
    for (int64_t i = 0; i < 4; ++i) rows[i] = key_row<Storage>(panel, key + i);
    float* to = key_column(k, head_dim, key);
    for (int64_t c = 0; c < head_dim; c += 4, to += 4 * kTileWidth) {
      const auto r0 = load_floats(d4, rows[0] + c), r1 = load_floats(d4, rows[1] + c);
      const auto r2 = load_floats(d4, rows[2] + c), r3 = load_floats(d4, rows[3] + c);
      const auto lo01 = hn::BitCast(d2, hn::InterleaveLower(d4, r0, r1));
      const auto lo23 = hn::BitCast(d2, hn::InterleaveLower(d4, r2, r3));
      const auto hi01 = hn::BitCast(d2, hn::InterleaveUpper(d4, r0, r1));
      const auto hi23 = hn::BitCast(d2, hn::InterleaveUpper(d4, r2, r3));
      hn::Store(hn::BitCast(d4, hn::InterleaveLower(d2, lo01, lo23)), d4, to);
      hn::Store(hn::BitCast(d4, hn::InterleaveUpper(d2, lo01, lo23)), d4, to + kTileWidth);
      hn::Store(hn::BitCast(d4, hn::InterleaveLower(d2, hi01, hi23)), d4, to + 2 * kTileWidth);
      hn::Store(hn::BitCast(d4, hn::InterleaveUpper(d2, hi01, hi23)), d4, to + 3 * kTileWidth);
    }
  }
}
#endif

template <class Storage>
HWY_NOINLINE void pack_keys(const KeyPanel& panel, int64_t head_dim, float* HWY_RESTRICT k) {
  transpose_keys<Storage>(panel, head_dim, k);
  // Columns up to the next whole vector are read by the tiles: they must hold numbers.
  for (int64_t key = (panel.keys + 3) / 4 * 4; key % kLanes != 0; ++key) {
    float* to = key_column(k, head_dim, key);
    for (int64_t c = 0; c < head_dim; ++c) to[c * kTileWidth] = 0.0f;
  }
}

template <class Storage>
HWY_NOINLINE void pack_values(const KeyPanel& panel, int64_t head_dim, float* HWY_RESTRICT v) {
  const hn::CappedTag<float, 8> d8;  // head_dim is a multiple of 8
  constexpr int64_t kStep = int64_t(hn::MaxLanes(d8));
  const ColumnGroups columns(head_dim);
  const int64_t padded = columns.vectors * kLanes;
  for (int64_t g = 0; g < columns.groups; ++g) {
    const int64_t begin = columns.begin(g) * kLanes, width = columns.width(g) * kLanes;
    float* group = v + begin * kPanelKeys;
    for (int64_t key = 0; key < panel.keys; ++key) {
      const Storage* row = reinterpret_cast<const Storage*>(panel.v[size_t(key)]);
      float* to = group + key * width - begin;
      const int64_t end = HWY_MIN(begin + width, head_dim);
      for (int64_t c = begin; c < end; c += kStep) hn::StoreU(load_floats(d8, row + c), d8, to + c);
      for (int64_t c = end; c < HWY_MIN(begin + width, padded); ++c) to[c] = 0.0f;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();
#endif
