#include "kernels/cpu/rows_simd.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows_simd.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Prefetches of strided rows, which hardware prefetchers do not follow.
constexpr int64_t kRowsAhead = 16;  // this far ahead hides the latency of memory

HWY_INLINE void prefetch_row(const void* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) hwy::Prefetch(static_cast<const char*>(row) + at);
}

HWY_INLINE void prefetch_row(const PartialRun& run, int64_t row, int64_t head_dim) {
  prefetch_row(run.o + row * run.o_stride, head_dim * int64_t(sizeof(float)));
  hwy::Prefetch(run.lse + row * run.lse_stride);
}

// into[c] = into_weight * into[c] + from_weight * from[c]; head_dim is a multiple of 8.
void blend_row(const float* HWY_RESTRICT from, float from_weight, float* HWY_RESTRICT into,
               float into_weight, int64_t head_dim) {
  const hn::CappedTag<float, 8> d8;
  const auto wf = hn::Set(d8, from_weight), wi = hn::Set(d8, into_weight);
  for (int64_t c = 0; c < head_dim; c += int64_t(hn::MaxLanes(d8))) {
    const auto kept = hn::Mul(wi, hn::LoadU(d8, into + c));
    hn::StoreU(hn::MulAdd(wf, hn::LoadU(d8, from + c), kept), d8, into + c);
  }
}

void merge_rows_on_target(const MergeTask& task, MergeRule rule, int64_t head_dim) {
  for (int64_t i = 0; i < task.rows; ++i) {
    if (i + kRowsAhead < task.rows) {
      prefetch_row(task.from, i + kRowsAhead, head_dim);
      prefetch_row(task.into, i + kRowsAhead, head_dim);
    }
    const float from = task.from.lse[i * task.from.lse_stride];
    float& into = task.into.lse[i * task.into.lse_stride];
    const float max = from > into ? from : into;
    if (max == -std::numeric_limits<float>::infinity()) continue;  // neither saw a key
    const float ratio = std::exp(-std::fabs(from - into));         // 0 when one side saw no key
    const float large = 1.0f / (1.0f + ratio), small = ratio * large;
    float from_weight = from > into ? large : small, into_weight = from > into ? small : large;
    if (rule == MergeRule::kSum) from_weight = into_weight = 1.0f;
    blend_row(task.from.o + i * task.from.o_stride, from_weight,
              task.into.o + i * task.into.o_stride, into_weight, head_dim);
    into = max + std::log1p(ratio);
  }
}

void round_rows_on_target(const PackTask& task, int64_t head_dim) {
  const hn::CappedTag<float, 8> d8;
  const hn::Rebind<uint16_t, decltype(d8)> d16;
  const hn::RebindToUnsigned<decltype(d8)> du;
  for (int64_t i = 0; i < task.rows; ++i) {
    const float* from = static_cast<const float*>(task.from) + i * task.from_stride;
    uint16_t* into = static_cast<uint16_t*>(task.into) + i * task.into_stride;
    for (int64_t c = 0; c < head_dim; c += int64_t(hn::MaxLanes(d8))) {
      // As bf16_bits of core/random.h, lane by lane.
      const auto bits = hn::BitCast(du, hn::LoadU(d8, from + c));
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
      const auto rounded = hn::Add(bits, hn::Add(hn::Set(du, 0x7FFF), odd));
      hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(rounded)), d16, into + c);
    }
  }
}

void widen_rows_on_target(const PackTask& task, int64_t head_dim) {
  const hn::CappedTag<float, 8> d8;
  const hn::Rebind<uint16_t, decltype(d8)> d16;
  const hn::RebindToUnsigned<decltype(d8)> du;
  for (int64_t i = 0; i < task.rows; ++i) {
    const uint16_t* from = static_cast<const uint16_t*>(task.from) + i * task.from_stride;
    float* into = static_cast<float*>(task.into) + i * task.into_stride;
    for (int64_t c = 0; c < head_dim; c += int64_t(hn::MaxLanes(d8))) {
      const auto bits = hn::PromoteTo(du, hn::LoadU(d16, from + c));
      hn::StoreU(hn::BitCast(d8, hn::ShiftLeft<16>(bits)), d8, into + c);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longnet {

HWY_EXPORT(merge_rows_on_target);
HWY_EXPORT(round_rows_on_target);
HWY_EXPORT(widen_rows_on_target);

void round_rows(const PackTask& task, int64_t head_dim) {
  HWY_DYNAMIC_DISPATCH(round_rows_on_target)(task, head_dim);
}
void widen_rows(const PackTask& task, int64_t head_dim) {
  HWY_DYNAMIC_DISPATCH(widen_rows_on_target)(task, head_dim);
}

void merge_rows(const MergeTask& task, MergeRule rule, int64_t head_dim) {
  HWY_DYNAMIC_DISPATCH(merge_rows_on_target)(task, rule, head_dim);
}

void pack_rows(const PackTask& task, int64_t row_bytes, int64_t element_bytes) {
  const std::byte* from = static_cast<const std::byte*>(task.from);
  std::byte* into = static_cast<std::byte*>(task.into);
  constexpr int64_t kAhead = HWY_NAMESPACE::kRowsAhead;
  const int64_t from_pitch = task.from_stride * element_bytes;
  const int64_t into_pitch = task.into_stride * element_bytes;
  for (int64_t i = 0; i < task.rows; ++i) {
    if (i + kAhead < task.rows) HWY_NAMESPACE::prefetch_row(from + kAhead * from_pitch, row_bytes);
    std::memcpy(into, from, size_t(row_bytes));
    from += from_pitch;
    into += into_pitch;
  }
}

}  // namespace longnet
#endif  // HWY_ONCE
