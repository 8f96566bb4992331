#include "kernels/cpu/attend_simd.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend_simd.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/tile_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {

constexpr int64_t kPanelVectors = kPanelKeys / kLanes;

HWY_INLINE void scale_floats(float* x, int64_t count, float factor) {
  const FloatTag df;
  for (int64_t i = 0; i < count; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(df, x + i), hn::Set(df, factor)), df, x + i);
  }
}

// The query rows of one chunk and their sums.
class ChunkRows {
 public:
  static constexpr int64_t kRows = kTileRows;

  ChunkRows(const AttendWorkspace& ws, int64_t rows)
      : ws_(ws), columns_(ws.head_dim), rows_(rows) {}

  template <class Storage>
  void load_queries(const Storage* q, int64_t stride) {
    const hn::CappedTag<float, 8> d8;
    const auto scale = hn::Set(d8, float(std::numbers::log2e / std::sqrt(double(ws_.head_dim))));
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t c = 0; c < ws_.head_dim; c += int64_t(hn::MaxLanes(d8))) {
        hn::StoreU(hn::Mul(scale, load_floats(d8, q + i * stride + c)), d8,
                   ws_.q + i * ws_.head_dim + c);
      }
    }
    clear(ws_.o, rows_ * ws_.padded);
    clear(ws_.l, rows_ * kLanes);
    for (int64_t i = 0; i < rows_; ++i) ws_.m[i] = kNoMaximum;
  }

  template <class Storage>
  void begin_panel(const KeyPanel& panel) {
    pack_keys<Storage>(panel.k, panel.keys, ws_.head_dim, ws_.k);
    pack_grouped<Storage>(panel.v, panel.keys, ws_.head_dim, ws_.v);
  }

  // Attends rows [begin, begin + rows) to the first `keys` keys of the packed panel. With
  // `masked_q` each row sees those whose positions in `panel` are <= its own.
  void attend_tile(const KeyPanel& panel, int64_t begin, int64_t rows, int64_t keys,
                   const QueryRun* masked_q) {
    const int64_t vectors = (keys + kLanes - 1) / kLanes;
    multiply_by_keys(begin, rows, vectors);
    if (masked_q != nullptr) {
      for (int64_t r = 0; r < rows; ++r) {
        mask_row(panel, masked_q->first_token + (begin + r) * masked_q->token_step,
                 vectors * kLanes, ws_.s + r * kPanelKeys);
      }
    } else if (keys % kLanes != 0) {
      for (int64_t r = 0; r < rows; ++r) hide(ws_.s + r * kPanelKeys, keys, vectors * kLanes);
    }
    for (int64_t r = 0; r < rows; ++r) {
      if (vectors == kPanelVectors) {
        power_row<kPanelVectors>(begin + r, ws_.s + r * kPanelKeys, kPanelVectors);
      } else {
        power_row<0>(begin + r, ws_.s + r * kPanelKeys, vectors);
      }
    }
    multiply_by_values(begin, rows, keys);
  }

  template <class Storage>
  void end_panel(const KeyPanel&) {
    if (++panels_ % kPanelsPerGroup == 0) close_group();
  }

  void store(const PartialRun& out, float output_scale) {
    const FloatTag df;
    const hn::CappedTag<float, 8> d8;
    for (int64_t i = 0; i < rows_; ++i) {
      FloatVec lanes = hn::Load(df, ws_.l + i * kLanes);
      if (has_outer_) lanes = hn::Add(lanes, hn::Load(df, ws_.l_outer + i * kLanes));
      const float sum = hn::GetLane(hn::SumOfLanes(df, lanes));
      const bool saw_keys = sum > 0.0f;
      const auto factor = hn::Set(d8, saw_keys ? output_scale / sum : 0.0f);
      for (int64_t c = 0; c < ws_.head_dim; c += int64_t(hn::MaxLanes(d8))) {
        const int64_t at = i * ws_.padded + c;
        auto row = hn::LoadU(d8, ws_.o + at);
        if (has_outer_) row = hn::Add(row, hn::LoadU(d8, ws_.o_outer + at));
        hn::StoreU(hn::Mul(factor, row), d8, out.o + i * out.o_stride + c);
      }
      const double ln2 = 0.6931471805599453;
      out.lse[i * out.lse_stride] = saw_keys ? float(ws_.m[i] * ln2 + std::log(double(sum)))
                                             : -std::numeric_limits<float>::infinity();
    }
  }

 private:
  static void clear(float* x, int64_t count) { std::fill(x, x + count, 0.0f); }

  // The sums of a group of panels become one term of the outer sums, which the last group's are
  // added to when they are stored: up to 4096 keys need no outer sums.
  void close_group() {
    if (!has_outer_) {
      clear(ws_.o_outer, rows_ * ws_.padded);
      clear(ws_.l_outer, rows_ * kLanes);
      has_outer_ = true;
    }
    add_and_clear(ws_.o_outer, ws_.o, rows_ * ws_.padded);
    add_and_clear(ws_.l_outer, ws_.l, rows_ * kLanes);
  }

  void multiply_by_keys(int64_t begin, int64_t rows, int64_t vectors) {
    for (int64_t c = 0; c < vectors; c += kTileVectors)
      multiply_rows<false>({.a = ws_.q + begin * ws_.head_dim,
                            .a_pitch = ws_.head_dim,
                            .a_step = 1,
                            .b = ws_.k + c * kLanes * ws_.head_dim,
                            .b_pitch = kTileWidth,
                            .depth = ws_.head_dim,
                            .out = ws_.s + c * kLanes,
                            .out_pitch = kPanelKeys},
                           rows, HWY_MIN(vectors - c, kTileVectors));
  }

  void multiply_by_values(int64_t begin, int64_t rows, int64_t keys) {
    for (int64_t g = 0; g < columns_.groups; ++g) {
      const int64_t column = columns_.begin(g) * kLanes, width = columns_.width(g);
      multiply_rows<true>({.a = ws_.s,
                           .a_pitch = kPanelKeys,
                           .a_step = 1,
                           .b = ws_.v + column * kPanelKeys,
                           .b_pitch = width * kLanes,
                           .depth = keys,
                           .out = ws_.o + begin * ws_.padded + column,
                           .out_pitch = ws_.padded},
                          rows, width);
    }
  }

  // scores -> 2^(scores - m), summed into l. kVectors = 0: `vectors` at run time.
  template <int64_t kVectors>
  HWY_INLINE void power_row(int64_t row, float* HWY_RESTRICT s, int64_t vectors) {
    const FloatTag df;
    const int64_t count = kVectors > 0 ? kVectors : vectors;
    FloatVec max = hn::Load(df, s);
    for (int64_t c = 1; c < count; ++c) max = hn::Max(max, hn::Load(df, s + c * kLanes));
    if (HWY_UNLIKELY(!hn::AllFalse(df, hn::Gt(max, hn::Set(df, ws_.m[row] + kLazyMargin))))) {
      move_maximum(row, hn::GetLane(hn::MaxOfLanes(df, max)));
    }
    const FloatVec m = hn::Set(df, ws_.m[row]);
    FloatVec sum = hn::Zero(df);
    for (int64_t c = 0; c < count; ++c) {
      const FloatVec p = exp2_below_127(df, hn::Sub(hn::Load(df, s + c * kLanes), m));
      hn::Store(p, df, s + c * kLanes);
      sum = hn::Add(sum, p);
    }
    float* l = ws_.l + row * kLanes;
    hn::Store(hn::Add(hn::Load(df, l), sum), df, l);
  }

  HWY_NOINLINE void move_maximum(int64_t row, float max) {
    const FloatTag df;
    const float factor = hn::GetLane(exp2_below_127(df, hn::Set(df, ws_.m[row] - max)));
    scale_floats(ws_.o + row * ws_.padded, ws_.padded, factor);
    scale_floats(ws_.l + row * kLanes, kLanes, factor);
    if (has_outer_) {
      scale_floats(ws_.o_outer + row * ws_.padded, ws_.padded, factor);
      scale_floats(ws_.l_outer + row * kLanes, kLanes, factor);
    }
    ws_.m[row] = max;
  }

  const AttendWorkspace& ws_;
  const ColumnGroups columns_;
  const int64_t rows_;
  int64_t panels_ = 0;  // that have been attended to
  bool has_outer_ = false;
};

template <class Storage>
void attend_chunk(const AttendTask& task, const AttendOptions& options, const AttendWorkspace& ws) {
  const QueryRun& q = task.q;
  ChunkRows chunk(ws, q.rows);
  chunk.load_queries(static_cast<const Storage*>(q.q), q.row_stride);
  for_each_panel<Storage>(
      KeyPanels(task.kv, sizeof(Storage), options.causal ? q.last_token() : kAllTokens), q, options,
      chunk);
  chunk.store(task.out, options.output_scale);
}

template <class Storage>
void attend_storage(const AttendTask& task, const AttendOptions& options, std::byte* workspace) {
  const AttendWorkspace ws(workspace, options.head_dim);
  for (int64_t begin = 0; begin < task.q.rows; begin += kChunkRows) {
    const int64_t rows = HWY_MIN(kChunkRows, task.q.rows - begin);
    attend_chunk<Storage>(rows_of(task, begin, rows, sizeof(Storage)), options, ws);
  }
}

void attend_on_target(const AttendTask& task, const AttendOptions& options, std::byte* workspace) {
  options.dtype == DType::kFloat32 ? attend_storage<float>(task, options, workspace)
                                   : attend_storage<Bf16Bits>(task, options, workspace);
}

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longnet {

HWY_EXPORT(attend_on_target);

void attend_task(const AttendTask& task, const AttendOptions& options, std::byte* workspace) {
  HWY_DYNAMIC_DISPATCH(attend_on_target)(task, options, workspace);
}

}  // namespace longnet
#endif  // HWY_ONCE
