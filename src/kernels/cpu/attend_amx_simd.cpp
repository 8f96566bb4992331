#include "kernels/cpu/attend_amx_simd.h"

#include <cmath>
#include <limits>
#include <numbers>
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/key_panels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend_amx_simd.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/amx_tiles-inl.h"
#include "kernels/cpu/tile_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86_64

constexpr int64_t kAmxRows = 2 * kTileSide;  // two tiles of queries
constexpr int64_t kAmxChunkRows = 2048;
static_assert(kAmxChunkRows % kAmxRows == 0 && kPanelKeys % kTileDepth == 0);

// Scratch memory of a task. A block of 16 queries has vectors of maxima and of sums of each column.
struct AmxWorkspace {
  int64_t head_dim, padded, pieces;
  uint32_t* q;   // [kAmxChunkRows / 16][padded / 32][pieces] tiles B
  uint32_t* k;   // [kPanelKeys / 16][padded / 32][pieces] tiles A
  uint32_t* v;   // [padded / 16][kPanelKeys / 32][pieces] tiles A
  uint32_t* p;   // [2][kPanelKeys / 32][pieces] tiles B
  float* s;      // [2][kPanelKeys][16], scores; then [2][32][16], products with V
  float* sums;   // [kAmxChunkRows / 16][padded + 1][16]: O and l of the current group of panels
  float* outer;  // the same of the groups before
  float* m;      // [kAmxChunkRows], subtracted from scores times log2(e) / sqrt(head_dim)
  int64_t floats;

  AmxWorkspace(std::byte* base, const AttendOptions& options)
      : head_dim(options.head_dim),
        padded(round_up(head_dim, kTileDepth)),
        pieces(options.dtype == DType::kFloat32 ? 3 : 1) {
    ScratchFloats scratch(base);
    const auto words = [&](int64_t count) {
      return reinterpret_cast<uint32_t*>(scratch.take(count));
    };
    q = words(kAmxChunkRows * padded / 2 * pieces);
    k = words(kPanelKeys * padded / 2 * pieces);
    v = words(kPanelKeys * padded / 2 * pieces);
    p = words(kAmxRows * kPanelKeys / 2 * pieces);
    s = scratch.take(kAmxRows * kPanelKeys);
    sums = scratch.take(kAmxChunkRows * (padded + 1));
    outer = scratch.take(kAmxChunkRows * (padded + 1));
    m = scratch.take(kAmxChunkRows);
    floats = scratch.floats;
  }
};

// The query rows of one chunk and their sums.
template <class Storage>
class AmxChunk {
 public:
  static constexpr int64_t kRows = kAmxRows;
  static constexpr int kPieces = kPiecesOf<Storage>;

  AmxChunk(const AmxWorkspace& ws, const QueryRun& q, bool causal)
      : ws_(ws), q_(q), causal_(causal), blocks_(round_up(q.rows, kRows) / kTileSide) {
    scale_ = float(std::numbers::log2e / std::sqrt(double(ws.head_dim)));
    pack_queries(static_cast<const Storage*>(q.q), q.row_stride, q.rows, ws.head_dim, ws.q);
    std::fill_n(ws_.sums, blocks_ * sums_of_block(), 0.0f);
    std::fill_n(ws_.m, blocks_ * kTileSide, kNoMaximum);
  }

  template <class>
  void begin_panel(const KeyPanel& panel) {
    pack_keys_in_rows<Storage>(panel.k, panel.keys, ws_.head_dim, ws_.k);
    pack_keys_in_columns<Storage>(panel.v, panel.keys, ws_.head_dim, ws_.v);
    first_rows_.find(panel, q_, causal_);
  }

  // As ChunkRows::attend_tile. Rows before `begin` that share its tiles see none of the keys.
  void attend_tile(const KeyPanel&, int64_t begin, int64_t, int64_t keys, const QueryRun*) {
    const int64_t block = begin / kRows * 2, steps = (keys + kTileDepth - 1) / kTileDepth;
    const int64_t row = tiles_of_row() * kTileWords, tile = kPieces * kTileWords;
    for (int64_t step = 0; step < steps; ++step) {
      float* const s = ws_.s + 2 * step * kTileWords;
      multiply_blocks<kPieces, kPieces>({ws_.k + 2 * step * row, row, tile},
                                        {ws_.q + block * row, row, tile}, ws_.padded / kTileDepth,
                                        s, kBlockScores);
      first_rows_.hide(step, block * kTileSide, s, kBlockScores);
    }
    for (int64_t i = 0; i < 2; ++i)
      take_powers(block + i, ws_.s + i * kBlockScores, steps, ws_.p + i * kBlockPowers);
    for (int64_t c = 0; c < ws_.padded; c += 2 * kTileSide) {
      multiply_blocks<kPieces, kPieces>(
          {ws_.v + c / kTileSide * kPanelSteps * tile, kPanelSteps * tile, tile},
          {ws_.p, kBlockPowers, kPieces * kTileWords}, steps, ws_.s, 2 * kTileWords);
      for (int64_t i = 0; i < 2; ++i)
        add_floats(ws_.sums + (block + i) * sums_of_block() + c * kTileSide,
                   ws_.s + i * 2 * kTileWords, 2 * kTileWords);
    }
  }

  template <class>
  void end_panel(const KeyPanel&) {
    if (++panels_ % kPanelsPerGroup != 0) return;
    if (!has_outer_) std::fill_n(ws_.outer, blocks_ * sums_of_block(), 0.0f);
    has_outer_ = true;
    add_and_clear(ws_.outer, ws_.sums, blocks_ * sums_of_block());
  }

  void store(const PartialRun& out, float output_scale) {
    for (int64_t block = 0; block < blocks_; ++block) {
      const int64_t first = block * kTileSide;
      const int64_t rows = HWY_MIN(kTileSide, q_.rows - first);
      float* const sums = ws_.sums + block * sums_of_block();
      if (has_outer_) add_floats(sums, ws_.outer + block * sums_of_block(), sums_of_block());
      float* const l = sums + ws_.padded * kTileSide;
      for (int64_t i = 0; i < rows; ++i) {
        const double ln2 = 0.6931471805599453;
        out.lse[(first + i) * out.lse_stride] =
            l[i] > 0.0f ? float(ws_.m[first + i] * ln2 + std::log(double(l[i])))
                        : -std::numeric_limits<float>::infinity();
        l[i] = l[i] > 0.0f ? output_scale / l[i] : 0.0f;
      }
      for (int64_t c = 0; c < ws_.head_dim; c += kTileSide) {
        float* const tile = sums + c * kTileSide;
        multiply_lanes(tile, kTileSide, hn::Load(FloatTag(), l));
        transpose(reinterpret_cast<uint32_t*>(tile));
        for (int64_t i = 0; i < rows; ++i)
          std::copy_n(tile + i * kTileSide, HWY_MIN(kTileSide, ws_.head_dim - c),
                      out.o + (first + i) * out.o_stride + c);
      }
    }
  }

 private:
  static constexpr int64_t kBlockScores = kPanelKeys * kTileSide;
  static constexpr int64_t kBlockPowers = kPanelSteps * kPieces * kTileWords;

  int64_t tiles_of_row() const { return ws_.padded / kTileDepth * kPieces; }
  int64_t sums_of_block() const { return (ws_.padded + 1) * kTileSide; }

  // scores -> 2^(scores - m), summed into l, in pieces.
  void take_powers(int64_t block, const float* s, int64_t steps, uint32_t* p) {
    const FloatTag df;
    const auto scale = hn::Set(df, scale_);
    FloatVec max[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) max[i] = hn::Load(df, s + i * kTileSide);
    for (int64_t key = 4; key < steps * kTileDepth; key += 4)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) max[i] = hn::Max(max[i], hn::Load(df, s + (key + i) * kTileSide));
    const auto highest = hn::Mul(scale, hn::Max(hn::Max(max[0], max[1]), hn::Max(max[2], max[3])));
    float* const m = ws_.m + block * kTileSide;
    if (HWY_UNLIKELY(
            !hn::AllFalse(df, hn::Gt(highest, hn::Add(hn::Load(df, m), hn::Set(df, kLazyMargin))))))
      move_maximum(block, highest);
    const auto maximum = hn::Load(df, m);
    FloatVec low_sum = hn::Zero(df), high_sum = hn::Zero(df);
    for (int64_t step = 0; step < steps; ++step, s += kTileDepth * kTileSide)
      for (int64_t i = 0; i < kTileSide; ++i) {
        const auto low =
            exp2_below_127(df, hn::MulSub(scale, hn::Load(df, s + i * kTileSide), maximum));
        const auto high = exp2_below_127(
            df, hn::MulSub(scale, hn::Load(df, s + (kTileSide + i) * kTileSide), maximum));
        low_sum = hn::Add(low_sum, low);
        high_sum = hn::Add(high_sum, high);
        store_pairs<kPieces>(rounded_to<kPieces>(low), rounded_to<kPieces>(high),
                             p + step * kPieces * kTileWords + i * kTileSide);
      }
    float* const l = ws_.sums + block * sums_of_block() + ws_.padded * kTileSide;
    hn::Store(hn::Add(hn::Load(df, l), hn::Add(low_sum, high_sum)), df, l);
  }

  static void multiply_lanes(float* x, int64_t rows, FloatVec factors) {
    const FloatTag df;
    for (int64_t i = 0; i < rows * kTileSide; i += kTileSide)
      hn::Store(hn::Mul(hn::Load(df, x + i), factors), df, x + i);
  }

  HWY_NOINLINE void move_maximum(int64_t block, FloatVec highest) {
    const FloatTag df;
    float* const m = ws_.m + block * kTileSide;
    const auto old = hn::Load(df, m), higher = hn::Max(old, highest);
    const auto factors = exp2_below_127(df, hn::Sub(old, higher));
    multiply_lanes(ws_.sums + block * sums_of_block(), ws_.padded + 1, factors);
    if (has_outer_) multiply_lanes(ws_.outer + block * sums_of_block(), ws_.padded + 1, factors);
    hn::Store(higher, df, m);
  }

  const AmxWorkspace& ws_;
  const QueryRun& q_;
  const bool causal_;
  const int64_t blocks_;  // 16 queries each
  float scale_;
  FirstRows first_rows_;
  int64_t panels_ = 0;  // that have been attended to
  bool has_outer_ = false;
};

template <class Storage>
void amx_attend_storage(const AttendTask& all, const AttendOptions& options,
                        const AmxWorkspace& ws) {
  for (int64_t begin = 0; begin < all.q.rows; begin += kAmxChunkRows) {
    const AttendTask task =
        rows_of(all, begin, HWY_MIN(kAmxChunkRows, all.q.rows - begin), sizeof(Storage));
    AmxChunk<Storage> chunk(ws, task.q, options.causal);
    for_each_panel<Storage>(
        KeyPanels(task.kv, sizeof(Storage), options.causal ? task.q.last_token() : kAllTokens),
        task.q, options, chunk);
    chunk.store(task.out, options.output_scale);
  }
}

int64_t amx_workspace_floats(const AttendOptions& options) {
  return AmxWorkspace(nullptr, options).floats;
}

void amx_attend_on_target(const AttendTask& task, const AttendOptions& options,
                          std::byte* workspace) {
  const TileRegisters registers;
  const AmxWorkspace ws(workspace, options);
  options.dtype == DType::kFloat32 ? amx_attend_storage<float>(task, options, ws)
                                   : amx_attend_storage<Bf16Bits>(task, options, ws);
}

bool has_vectors_beside_tiles() { return true; }

#else

int64_t amx_workspace_floats(const AttendOptions&) { return 0; }
void amx_attend_on_target(const AttendTask&, const AttendOptions&, std::byte*) {}
bool has_vectors_beside_tiles() { return false; }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longnet {
namespace {

HWY_EXPORT(amx_workspace_floats);
HWY_EXPORT(amx_attend_on_target);
HWY_EXPORT(has_vectors_beside_tiles);

// Tiles must be asked for, once a process, because they add 8 KB to what a thread's switch saves.
std::string ask_for_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  const unsigned bf16_and_tile = 1u << 22 | 1u << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & bf16_and_tile) != bf16_and_tile)
    return "this machine's cores have none";
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // asm/prctl.h, Linux 5.16
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0)
    return "the system does not grant them";
  return "";
#else
  return "only Linux on x86-64 has them";
#endif
}

}  // namespace

std::string why_amx_absent() {
  static const std::string why = ask_for_tiles();
  if (!why.empty()) return "it needs AMX tiles of bf16, and " + why;
  if (!HWY_DYNAMIC_DISPATCH(has_vectors_beside_tiles)()) return "it needs AVX-512 beside AMX";
  return "";
}

int64_t amx_workspace_bytes(const AttendOptions& options) {
  return HWY_DYNAMIC_DISPATCH(amx_workspace_floats)(options) * int64_t(sizeof(float));
}

void amx_attend_task(const AttendTask& task, const AttendOptions& options, std::byte* workspace) {
  HWY_DYNAMIC_DISPATCH(amx_attend_on_target)(task, options, workspace);
}

}  // namespace longnet
#endif  // HWY_ONCE
