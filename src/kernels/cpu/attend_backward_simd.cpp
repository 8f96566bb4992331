#include "kernels/cpu/attend_backward_simd.h"

#include <cmath>
#include <numbers>

#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend_backward_simd.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/tile_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {

constexpr int64_t kScorePitch = BackwardWorkspace::kScorePitch;
using EightFloats = hn::CappedTag<float, 8>;  // at most: rows are multiples of 8
constexpr int64_t kStep = int64_t(hn::MaxLanes(EightFloats()));

// The query rows of a block and one panel of keys.
class Block {
 public:
  static constexpr int64_t kRows = kBackwardTileRows;

  Block(const BackwardWorkspace& ws, const BackwardTask& task, float output_scale)
      : ws_(ws),
        columns_(ws.head_dim),
        task_(task),
        rows_(task.q.rows),
        output_scale_(output_scale) {}

  template <class Storage>
  void begin_panel(const KeyPanel& panel) {
    if (!loaded_) load_queries<Storage>();  // causal blocks may see no key
    pack_keys<Storage>(panel.k, panel.keys, ws_.head_dim, ws_.k_columns);
    pack_keys<Storage>(panel.v, panel.keys, ws_.head_dim, ws_.v_columns);
    pack_grouped<Storage>(panel.k, panel.keys, ws_.head_dim, ws_.k);
    std::fill_n(ws_.grad_k, panel.keys * ws_.pitch, 0.0f);
    std::fill_n(ws_.grad_v, panel.keys * ws_.pitch, 0.0f);
  }

  // Adds what rows [begin, begin + rows) and the first `keys` keys of the panel give each other.
  void attend_tile(const KeyPanel& panel, int64_t begin, int64_t rows, int64_t keys,
                   const QueryRun* masked_q) {
    const int64_t vectors = (keys + kLanes - 1) / kLanes, at = begin * ws_.pitch;
    multiply_by_columns(ws_.q + at, ws_.k_columns, rows, vectors, ws_.p);
    multiply_by_columns(ws_.grad_out + at, ws_.v_columns, rows, vectors, ws_.ds);
    for (int64_t r = 0; r < rows; ++r) {
      if (masked_q != nullptr)
        mask_row(panel, masked_q->first_token + (begin + r) * masked_q->token_step,
                 vectors * kLanes, ws_.p + r * kScorePitch);
      power_row(begin + r, ws_.p + r * kScorePitch, ws_.ds + r * kScorePitch, vectors);
    }
    for (int64_t g = 0; g < columns_.groups; ++g) {
      const int64_t column = columns_.begin(g) * kLanes, width = columns_.width(g);
      multiply_rows<true>({.a = ws_.ds,
                           .a_pitch = kScorePitch,
                           .a_step = 1,
                           .b = ws_.k + column * kPanelKeys,
                           .b_pitch = width * kLanes,
                           .depth = keys,
                           .out = ws_.grad_q + at + column,
                           .out_pitch = ws_.pitch},
                          rows, width);
      TileArgs transposed{.a = ws_.p,
                          .a_pitch = 1,
                          .a_step = kScorePitch,
                          .b = ws_.grad_out + at + column,
                          .b_pitch = ws_.pitch,
                          .depth = rows,
                          .out = ws_.grad_v + column,
                          .out_pitch = ws_.pitch};
      multiply_rows<true>(transposed, keys, width);
      transposed.a = ws_.ds;
      transposed.b = ws_.q + at + column;
      transposed.out = ws_.grad_k + column;
      multiply_rows<true>(transposed, keys, width);
    }
  }

  template <class Storage>
  void end_panel(const KeyPanel& panel) const {
    const float ln2 = 0.6931471805599453f;
    const int64_t bytes = ws_.head_dim * int64_t(sizeof(float));
    for (int64_t key = 0; key < panel.keys; ++key) {
      prefetch_gradients<Storage>(task_, panel, key + kRowsAhead, bytes);
      add_row(ws_.grad_k + key * ws_.pitch, ln2,
              task_.gradient_of(panel.k[size_t(key)], sizeof(Storage)));
      add_row(ws_.grad_v + key * ws_.pitch, 1.0f,
              task_.gradient_of(panel.v[size_t(key)], sizeof(Storage)));
    }
  }

  void add_to_queries() const {
    if (!loaded_) return;
    const float scale = float(1.0 / std::sqrt(double(ws_.head_dim)));
    const int64_t stride = task_.q.row_stride, bytes = ws_.head_dim * int64_t(sizeof(float));
    float* into = task_.grad_q;
    for (int64_t i = 0; i < rows_; ++i, into += stride) {
      if (i + kRowsAhead < rows_) prefetch_row(into + kRowsAhead * stride, bytes);
      add_row(ws_.grad_q + i * ws_.pitch, scale, into);
    }
  }

 private:
  template <class Storage>
  void load_queries() {
    loaded_ = true;
    const float scale = float(std::numbers::log2e / std::sqrt(double(ws_.head_dim)));
    load_rows(static_cast<const Storage*>(task_.q.q), scale, ws_.q);
    load_rows(static_cast<const Storage*>(task_.grad_out), output_scale_, ws_.grad_out);
    load_statistics(task_, ws_.lse, ws_.delta);
    std::fill_n(ws_.grad_q, rows_ * ws_.pitch, 0.0f);
  }

  template <class Storage>
  void load_rows(const Storage* from, float factor, float* HWY_RESTRICT to) {
    const EightFloats d8;
    const int64_t stride = task_.q.row_stride, bytes = ws_.head_dim * int64_t(sizeof(Storage));
    for (int64_t i = 0; i < rows_; ++i, from += stride, to += ws_.pitch) {
      if (i + kRowsAhead < rows_) prefetch_row(from + kRowsAhead * stride, bytes);
      for (int64_t c = 0; c < ws_.head_dim; c += kStep)
        hn::Store(hn::Mul(hn::Set(d8, factor), load_floats(d8, from + c)), d8, to + c);
      for (int64_t c = ws_.head_dim; c < columns_.vectors * kLanes; ++c) to[c] = 0.0f;
    }
  }

  void add_row(const float* HWY_RESTRICT from, float factor, float* HWY_RESTRICT to) const {
    const EightFloats d8;
    const auto scale = hn::Set(d8, factor);
    for (int64_t c = 0; c < ws_.head_dim; c += kStep)
      hn::StoreU(hn::MulAdd(scale, hn::Load(d8, from + c), hn::LoadU(d8, to + c)), d8, to + c);
  }

  // out[rows][vectors] = a b, for the columns of keys that pack_keys made.
  HWY_INLINE void multiply_by_columns(const float* a, const float* b, int64_t rows, int64_t vectors,
                                      float* out) {
    for (int64_t c = 0; c < vectors; c += kTileVectors)
      multiply_rows<false>({.a = a,
                            .a_pitch = ws_.pitch,
                            .a_step = 1,
                            .b = b + c * kLanes * ws_.head_dim,
                            .b_pitch = kTileWidth,
                            .depth = ws_.head_dim,
                            .out = out + c * kLanes,
                            .out_pitch = kScorePitch},
                           rows, HWY_MIN(vectors - c, kTileVectors));
  }

  // S -> P = 2^(S - L), dP -> dS = P (dP - delta).
  HWY_INLINE void power_row(int64_t row, float* HWY_RESTRICT p, float* HWY_RESTRICT ds,
                            int64_t vectors) {
    const FloatTag df;
    const FloatVec lse = hn::Set(df, ws_.lse[row]), delta = hn::Set(df, ws_.delta[row]);
    for (int64_t c = 0; c < vectors; ++c, p += kLanes, ds += kLanes) {
      const FloatVec power = exp2_below_127(df, hn::Sub(hn::Load(df, p), lse));
      hn::Store(power, df, p);
      hn::Store(hn::Mul(power, hn::Sub(hn::Load(df, ds), delta)), df, ds);
    }
  }

  const BackwardWorkspace& ws_;
  const ColumnGroups columns_;
  const BackwardTask& task_;
  const int64_t rows_;
  const float output_scale_;
  bool loaded_ = false;
};

template <class Storage>
void backward_storage(const BackwardTask& task, KeyRange range, const AttendOptions& options,
                      std::byte* workspace) {
  const BackwardWorkspace ws(workspace, options.head_dim);
  Block block(ws, task, options.output_scale);
  for_each_panel<Storage>(
      KeyPanels(task.kv, sizeof(Storage), options.causal ? task.q.last_token() : kAllTokens, range),
      task.q, options, block);
  block.add_to_queries();
}

void backward_on_target(const BackwardTask& task, KeyRange range, const AttendOptions& options,
                        std::byte* workspace) {
  options.dtype == DType::kFloat32 ? backward_storage<float>(task, range, options, workspace)
                                   : backward_storage<Bf16Bits>(task, range, options, workspace);
}

template <class Storage>
void delta_storage(const DeltaTask& task, int64_t head_dim) {
  const EightFloats d8;
  for (int64_t i = 0; i < task.rows; ++i) {
    const float* o = task.out.o + i * task.out.o_stride;
    const auto* grad_out = static_cast<const Storage*>(task.grad_out) + i * task.grad_out_stride;
    auto sum = hn::Zero(d8);
    for (int64_t c = 0; c < head_dim; c += kStep)
      sum = hn::MulAdd(load_floats(d8, grad_out + c), hn::LoadU(d8, o + c), sum);
    float* statistics = task.statistics + i * task.statistics_stride;
    statistics[0] = task.out.lse[i * task.out.lse_stride];
    statistics[1] = hn::GetLane(hn::SumOfLanes(d8, sum));
  }
}

void delta_on_target(const DeltaTask& task, const AttendOptions& options) {
  options.dtype == DType::kFloat32 ? delta_storage<float>(task, options.head_dim)
                                   : delta_storage<Bf16Bits>(task, options.head_dim);
}

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longnet {

HWY_EXPORT(backward_on_target);
HWY_EXPORT(delta_on_target);

void backward_block(const BackwardTask& task, KeyRange range, const AttendOptions& options,
                    std::byte* workspace) {
  HWY_DYNAMIC_DISPATCH(backward_on_target)(task, range, options, workspace);
}

void delta_rows(const DeltaTask& task, const AttendOptions& options) {
  HWY_DYNAMIC_DISPATCH(delta_on_target)(task, options);
}

}  // namespace longnet
#endif  // HWY_ONCE
