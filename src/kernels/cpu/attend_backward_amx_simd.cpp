// Gradients of a block of queries and keys by AMX tiles: attend_amx_simd.h has the method.
//
// The products of a panel of 128 keys with 64 queries, 32 keys at a time (a step), 32 queries at a
// time (a pair of 16). X' is X transposed; each product sums over 32 numbers at a time.
//
//   product         tiles A of     tiles B of         sums over   goes to
//   S' = K Q'       k              q                  head_dim    s, then P' in p
//   dP' = V dO'     v              grad_out           head_dim    dp, then dS' in ds, ds_columns
//   dV += P' dO     p              grad_out_columns   queries     grad_v
//   dK += dS' Q     ds             q_columns          queries     grad_k
//   dQ' += K' dS'   k_columns      ds_columns         keys        grad_q
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/cpu/attend_amx_simd.h"
#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend_backward_amx_simd.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/amx_tiles-inl.h"
#include "kernels/cpu/tile_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86_64

// Scratch memory of a block. Words of tiles are two bf16 values each.
struct AmxBackwardWorkspace {
  int64_t head_dim, padded, pieces;
  uint32_t *q, *grad_out;                  // [kAmxBackwardRows / 16][padded / 32][pieces] tiles B
  uint32_t *q_columns, *grad_out_columns;  // [kAmxBackwardRows / 32][padded / 16][pieces] tiles B
  uint32_t *k, *v;                         // [kPanelKeys / 16][padded / 32][pieces] tiles A
  uint32_t* k_columns;                     // [padded / 16][kPanelSteps][pieces] tiles A
  uint32_t *p, *ds;                        // [kAmxBackwardTileRows / 32][2][pieces] tiles A
  uint32_t* ds_columns;    // [kPanelSteps][kAmxBackwardTileRows / 16][pieces] tiles B
  float *s, *dp;           // [kAmxBackwardTileRows / 16][32][16]; s: sums of gradients too
  float* grad_q;           // [kAmxBackwardRows / 16][padded][16]
  float *grad_k, *grad_v;  // [kPanelSteps][padded / 16][32][16]
  float *lse, *delta;      // [kAmxBackwardRows]; lse times log2(e)
  int64_t floats;

  AmxBackwardWorkspace(std::byte* base, const AttendOptions& options)
      : head_dim(options.head_dim),
        padded(round_up(head_dim, kTileDepth)),
        pieces(options.dtype == DType::kFloat32 ? kPiecesOf<float> : kPiecesOf<Bf16Bits>) {
    ScratchFloats scratch(base);
    const auto tiles = [&](int64_t rows, int64_t columns) {
      return reinterpret_cast<uint32_t*>(scratch.take(rows * columns / 2 * pieces));
    };
    for (uint32_t** const queries : {&q, &grad_out, &q_columns, &grad_out_columns})
      *queries = tiles(kAmxBackwardRows, padded);
    for (uint32_t** const keys : {&k, &v, &k_columns}) *keys = tiles(kPanelKeys, padded);
    for (uint32_t** const powers : {&p, &ds}) *powers = tiles(kTileDepth, kAmxBackwardTileRows);
    ds_columns = tiles(kPanelKeys, kAmxBackwardTileRows);
    for (float** const scores : {&s, &dp})
      *scores = scratch.take(kTileDepth * kAmxBackwardTileRows);
    grad_q = scratch.take(kAmxBackwardRows * padded);
    for (float** const keys : {&grad_k, &grad_v}) *keys = scratch.take(kPanelKeys * padded);
    for (float** const rows : {&lse, &delta}) *rows = scratch.take(kAmxBackwardRows);
    floats = scratch.floats;
  }
};

// The query rows of a block and one panel of keys.
template <class Storage>
class AmxBlock {
 public:
  static constexpr int64_t kRows = kAmxBackwardTileRows;

  AmxBlock(const AmxBackwardWorkspace& ws, const BackwardTask& task, const AttendOptions& options)
      : ws_(ws),
        task_(task),
        causal_(options.causal),
        score_scale_(float(1.0 / std::sqrt(double(ws.head_dim)))),
        output_scale_(options.output_scale) {}

  template <class>
  void begin_panel(const KeyPanel& panel) {
    if (!loaded_) load_queries();  // causal blocks may see no key
    pack_keys_in_rows<Storage>(panel.k, panel.keys, ws_.head_dim, ws_.k);
    pack_keys_in_rows<Storage>(panel.v, panel.keys, ws_.head_dim, ws_.v);
    pack_keys_in_columns<Storage>(panel.k, panel.keys, ws_.head_dim, ws_.k_columns);
    first_rows_.find(panel, task_.q, causal_);
    std::fill_n(ws_.grad_k, round_up(panel.keys, kTileDepth) * ws_.padded, 0.0f);
    std::fill_n(ws_.grad_v, round_up(panel.keys, kTileDepth) * ws_.padded, 0.0f);
  }

  // As Block::attend_tile. Rows before `begin` that share its tiles see none of the keys.
  void attend_tile(const KeyPanel&, int64_t begin, int64_t rows, int64_t keys, const QueryRun*) {
    const int64_t first = begin / kRows * kRows;
    const int64_t pairs = (begin + rows - first + kTileDepth - 1) / kTileDepth;
    const int64_t steps = (keys + kTileDepth - 1) / kTileDepth;
    for (int64_t step = 0; step < steps; ++step) {
      multiply_rows(ws_.k, step, ws_.q, first, pairs, ws_.s);
      multiply_rows(ws_.v, step, ws_.grad_out, first, pairs, ws_.dp);
      for (int64_t pair = 0; pair < pairs; ++pair) {
        first_rows_.hide(step, first + pair * kTileDepth, ws_.s + 2 * pair * kStrip, kStrip);
        take_powers(step, first, pair);
      }
      add_products(ws_.p, ws_.grad_out_columns, first, pairs, step, ws_.grad_v);
      add_products(ws_.ds, ws_.q_columns, first, pairs, step, ws_.grad_k);
    }
    for (int64_t pair = 0; pair < pairs; ++pair)
      for (int64_t c = 0; c < ws_.padded; c += kTileDepth) {
        multiply_blocks<kPieces, kPieces>(
            {ws_.k_columns + c / kTileSide * kPanelSteps * kTile, kPanelSteps * kTile, kTile},
            {ws_.ds_columns + 2 * pair * kTile, kTile, kRows / kTileSide * kTile}, steps, ws_.s,
            kStrip);
        for (int64_t i = 0; i < 2; ++i)
          add_floats(ws_.grad_q + (first + (2 * pair + i) * kTileSide) * ws_.padded + c * kTileSide,
                     ws_.s + i * kStrip, kStrip);
      }
  }

  template <class>
  void end_panel(const KeyPanel& panel) const {
    const int64_t bytes = ws_.head_dim * int64_t(sizeof(float));
    for (int64_t key = 0; key < panel.keys; ++key) {
      prefetch_gradients<Storage>(task_, panel, key + kRowsAhead, bytes);
      const int64_t at = key / kTileDepth * kTileDepth * ws_.padded + key % kTileDepth * kTileSide;
      add_row(ws_.grad_k + at, kStrip, score_scale_,
              task_.gradient_of(panel.k[size_t(key)], sizeof(Storage)));
      add_row(ws_.grad_v + at, kStrip, output_scale_,
              task_.gradient_of(panel.v[size_t(key)], sizeof(Storage)));
    }
  }

  void add_to_queries() const {
    if (!loaded_) return;
    const int64_t stride = task_.q.row_stride, bytes = ws_.head_dim * int64_t(sizeof(float));
    for (int64_t row = 0; row < task_.q.rows; ++row) {
      float* const sums = ws_.grad_q + row / kTileSide * kTileSide * ws_.padded;
      if (row % kTileSide == 0)
        transpose_tiles(reinterpret_cast<uint32_t*>(sums), ws_.padded / kTileSide);
      float* const into = task_.grad_q + row * stride;
      if (row + kRowsAhead < task_.q.rows) prefetch_row(into + kRowsAhead * stride, bytes);
      add_row(sums + row % kTileSide * kTileSide, kTileWords, score_scale_, into);
    }
  }

 private:
  static constexpr int kPieces = kPiecesOf<Storage>;
  static constexpr int64_t kTile = kPieces * kTileWords;
  static constexpr int64_t kStrip = 2 * kTileWords;  // floats of [32][16]

  int64_t words_of_columns() const { return ws_.padded / kTileSide * kTile; }  // for 32 queries

  void load_queries() {
    loaded_ = true;
    const int64_t rows = task_.q.rows, stride = task_.q.row_stride;
    const auto load = [&](const void* from, uint32_t* by_rows, uint32_t* by_columns) {
      const auto* const first = static_cast<const Storage*>(from);
      pack_queries(first, stride, rows, ws_.head_dim, by_rows);
      for (int64_t begin = 0; begin < rows; begin += kTileDepth)
        pack_columns([&](int64_t i) { return first + (begin + i) * stride; }, rows - begin,
                     ws_.head_dim, by_columns + begin / kTileDepth * words_of_columns(), kTile);
    };
    load(task_.q.q, ws_.q, ws_.q_columns);
    load(task_.grad_out, ws_.grad_out, ws_.grad_out_columns);
    load_statistics(task_, ws_.lse, ws_.delta);
    const int64_t whole = round_up(rows, kTileDepth);
    std::fill(ws_.lse + rows, ws_.lse + whole, std::numeric_limits<float>::infinity());
    std::fill(ws_.delta + rows, ws_.delta + whole, 0.0f);
    std::fill_n(ws_.grad_q, whole * ws_.padded, 0.0f);
  }

  // out[pair][2][32][16] = rows of 32 keys (or values) times those of pairs of 16 queries (or of
  // dO) from `first` on.
  HWY_INLINE void multiply_rows(const uint32_t* keys, int64_t step, const uint32_t* queries,
                                int64_t first, int64_t pairs, float* out) const {
    const int64_t words = ws_.padded / kTileDepth * kTile;  // for 16 keys or queries
    for (int64_t pair = 0; pair < pairs; ++pair)
      multiply_blocks<kPieces, kPieces>(
          {keys + 2 * step * words, words, kTile},
          {queries + (first / kTileSide + 2 * pair) * words, words, kTile}, ws_.padded / kTileDepth,
          out + 2 * pair * kStrip, kStrip);
  }

  // Adds what queries from `first` on give 32 keys: powers (or dS) times rows of dO (or of Q).
  HWY_INLINE void add_products(const uint32_t* powers, const uint32_t* rows, int64_t first,
                               int64_t pairs, int64_t step, float* sums) const {
    for (int64_t c = 0; c < ws_.padded; c += kTileDepth) {
      multiply_blocks<kPieces, kPieces>(
          {powers, kTile, 2 * kTile},
          {rows + first / kTileDepth * words_of_columns() + c / kTileSide * kTile, kTile,
           words_of_columns()},
          pairs, ws_.s, kStrip);
      add_floats(sums + step * kTileDepth * ws_.padded + c * kTileDepth, ws_.s, 2 * kStrip);
    }
  }

  // Turns S into P = 2^(S - L) and dP into dS = P (dP - delta), in pieces, for 32 keys and two
  // groups of 16 queries.
  HWY_INLINE void take_powers(int64_t step, int64_t first, int64_t pair) const {
    const FloatTag df;
    const int64_t row = first + pair * kTileDepth;
    const float *const s = ws_.s + 2 * pair * kStrip, *const dp = ws_.dp + 2 * pair * kStrip;
    uint32_t *const p = ws_.p + 2 * pair * kTile, *const ds = ws_.ds + 2 * pair * kTile;
    uint32_t* const ds_columns = ws_.ds_columns + (step * kRows / kTileSide + 2 * pair) * kTile;
    const auto scale = hn::Set(df, float(std::numbers::log2e * score_scale_));
    const auto output_scale = hn::Set(df, output_scale_);
    const FloatVec lse[] = {hn::Load(df, ws_.lse + row), hn::Load(df, ws_.lse + row + kTileSide)};
    const FloatVec delta[] = {hn::Load(df, ws_.delta + row),
                              hn::Load(df, ws_.delta + row + kTileSide)};
    for (int64_t at = 0; at < kTileWords; at += kTileSide) {
      FloatVec power[2][2], gradient[2][2];  // [keys][queries]
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
          const int64_t from = j * kStrip + i * kTileWords + at;
          const FloatVec x = exp2_below_127(df, hn::MulSub(scale, hn::Load(df, s + from), lse[j]));
          const FloatVec difference = hn::MulSub(output_scale, hn::Load(df, dp + from), delta[j]);
          power[i][j] = rounded_to<kPieces>(x);
          gradient[i][j] = rounded_to<kPieces>(hn::Mul(x, difference));
        }
        store_pairs<kPieces>(power[i][0], power[i][1], p + i * kTile + at);
        store_pairs<kPieces>(gradient[i][0], gradient[i][1], ds + i * kTile + at);
      }
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j)
        store_pairs<kPieces>(gradient[0][j], gradient[1][j], ds_columns + j * kTile + at);
    }
  }

  // into += factor * sums of a row, whose next 16 values are `stride` floats further.
  void add_row(const float* sums, int64_t stride, float factor, float* into) const {
    const auto add = [&](auto d, const float* from, float* to) {
      hn::StoreU(hn::MulAdd(hn::Set(d, factor), hn::Load(d, from), hn::LoadU(d, to)), d, to);
    };
    int64_t c = 0;
    for (; c + kTileSide <= ws_.head_dim; c += kTileSide, sums += stride)
      add(FloatTag(), sums, into + c);
    if (c < ws_.head_dim) add(hn::CappedTag<float, 8>(), sums, into + c);
  }

  const AmxBackwardWorkspace& ws_;
  const BackwardTask& task_;
  const bool causal_;
  const float score_scale_, output_scale_;
  FirstRows first_rows_;
  bool loaded_ = false;
};

template <class Storage>
void amx_backward_storage(const BackwardTask& task, KeyRange range, const AttendOptions& options,
                          const AmxBackwardWorkspace& ws) {
  AmxBlock<Storage> block(ws, task, options);
  for_each_panel<Storage>(
      KeyPanels(task.kv, sizeof(Storage), options.causal ? task.q.last_token() : kAllTokens, range),
      task.q, options, block);
  block.add_to_queries();
}

int64_t amx_backward_floats(const AttendOptions& options) {
  return AmxBackwardWorkspace(nullptr, options).floats;
}

void amx_backward_on_target(const BackwardTask& task, KeyRange range, const AttendOptions& options,
                            std::byte* workspace) {
  const TileRegisters registers;
  const AmxBackwardWorkspace ws(workspace, options);
  options.dtype == DType::kFloat32 ? amx_backward_storage<float>(task, range, options, ws)
                                   : amx_backward_storage<Bf16Bits>(task, range, options, ws);
}

#else

int64_t amx_backward_floats(const AttendOptions&) { return 0; }
void amx_backward_on_target(const BackwardTask&, KeyRange, const AttendOptions&, std::byte*) {}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longnet {

HWY_EXPORT(amx_backward_floats);
HWY_EXPORT(amx_backward_on_target);

int64_t amx_backward_block_bytes(const AttendOptions& options) {
  return HWY_DYNAMIC_DISPATCH(amx_backward_floats)(options) * int64_t(sizeof(float));
}

void amx_backward_block(const BackwardTask& task, KeyRange range, const AttendOptions& options,
                        std::byte* workspace) {
  HWY_DYNAMIC_DISPATCH(amx_backward_on_target)(task, range, options, workspace);
}

}  // namespace longnet
#endif  // HWY_ONCE
