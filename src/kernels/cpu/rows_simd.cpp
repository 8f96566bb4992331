#include "kernels/cpu/rows_simd.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/prefetch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows_simd.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/vectors-inl.h"

#ifndef LONGNET_ROWS_SIMD_ONCE
#define LONGNET_ROWS_SIMD_ONCE
namespace longnet {

struct WordKeys {
  alignas(64) uint64_t key[kMaxRowWords];
  WordKeys() {
    for (uint64_t k = 0; k < uint64_t(kMaxRowWords); ++k) key[k] = word_key(k);
  }
};
inline const WordKeys kWordKeys;

}  // namespace longnet
#endif

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {

using EightFloats = hn::CappedTag<float, 8>;  // at most: rows are multiples of 8
constexpr int64_t kFloats = int64_t(hn::MaxLanes(EightFloats()));

HWY_INLINE void prefetch_partial(const PartialRun& run, int64_t row, int64_t head_dim) {
  prefetch_row(run.o + row * run.o_stride, head_dim * int64_t(sizeof(float)));
  hwy::Prefetch(run.lse + row * run.lse_stride);
}

// into[c] = into_weight * into[c] + from_weight * from[c]; head_dim is a multiple of 8.
void blend_row(const float* HWY_RESTRICT from, float from_weight, float* HWY_RESTRICT into,
               float into_weight, int64_t head_dim) {
  const EightFloats d8;
  const auto wf = hn::Set(d8, from_weight), wi = hn::Set(d8, into_weight);
  for (int64_t c = 0; c < head_dim; c += kFloats) {
    const auto kept = hn::Mul(wi, hn::LoadU(d8, into + c));
    hn::StoreU(hn::MulAdd(wf, hn::LoadU(d8, from + c), kept), d8, into + c);
  }
}

void merge_on_target(const MergeTask& task, MergeRule rule, int64_t head_dim) {
  for (int64_t i = 0; i < task.rows; ++i) {
    if (i + kRowsAhead < task.rows) {
      prefetch_partial(task.from, i + kRowsAhead, head_dim);
      prefetch_partial(task.into, i + kRowsAhead, head_dim);
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

void add_on_target(const PackTask& task, int64_t head_dim) {
  const float* from = static_cast<const float*>(task.from);
  float* into = static_cast<float*>(task.into);
  const int64_t row_bytes = head_dim * int64_t(sizeof(float));
  for (int64_t i = 0; i < task.rows; ++i, from += task.from_stride, into += task.into_stride) {
    if (i + kRowsAhead < task.rows) {
      prefetch_row(from + kRowsAhead * task.from_stride, row_bytes);
      prefetch_row(into + kRowsAhead * task.into_stride, row_bytes);
    }
    blend_row(from, 1.0f, into, 1.0f, head_dim);  // exact: 1 * into + 1 * from rounds once
  }
}

template <class From, class Into, class Convert>
HWY_INLINE void convert_rows(const PackTask& task, int64_t head_dim, const Convert& convert) {
  for (int64_t i = 0; i < task.rows; ++i) {
    const From* const from = static_cast<const From*>(task.from) + i * task.from_stride;
    Into* const into = static_cast<Into*>(task.into) + i * task.into_stride;
    for (int64_t c = 0; c < head_dim; c += kFloats) convert(from + c, into + c);
  }
}

void copy_rows(const PackTask& task, int64_t row_bytes, int64_t element_bytes) {
  const std::byte* from = static_cast<const std::byte*>(task.from);
  std::byte* into = static_cast<std::byte*>(task.into);
  const int64_t from_pitch = task.from_stride * element_bytes;
  const int64_t into_pitch = task.into_stride * element_bytes;
  for (int64_t i = 0; i < task.rows; ++i) {
    if (i + kRowsAhead < task.rows) prefetch_row(from + kRowsAhead * from_pitch, row_bytes);
    std::memcpy(into, from, size_t(row_bytes));
    from += from_pitch;
    into += into_pitch;
  }
}

void pack_on_target(const PackTask& task, Conversion conversion, int64_t head_dim,
                    int64_t element_bytes) {
  const EightFloats d8;
  switch (conversion) {
    case Conversion::kNone:
      return copy_rows(task, head_dim * element_bytes, element_bytes);
    case Conversion::kRound:
      return convert_rows<float, uint16_t>(task, head_dim,
                                           [&](const float* from, uint16_t* into) HWY_ATTR {
                                             store_floats(hn::LoadU(d8, from), d8, into);
                                           });
    case Conversion::kWiden:
      return convert_rows<uint16_t, float>(task, head_dim,
                                           [&](const uint16_t* from, float* into) HWY_ATTR {
                                             hn::StoreU(load_floats(d8, from), d8, into);
                                           });
  }
}

// ---- generator, digests and sums ----

#if HWY_TARGET == HWY_SCALAR

template <class T>
void generate_rows(const FillRows& task, const RowFormat& f) {
  for (int64_t i = 0; i < task.rows; ++i)
    generate_row({f.seed, task.tensor, task.first_token + i * task.token_step, task.head},
                 f.head_dim, static_cast<T*>(task.out) + i * task.row_stride);
}

uint64_t hash_words(const std::byte* row, int64_t words) {
  uint64_t sum = 0;
  for (int64_t k = 0; k < words; ++k) {
    uint64_t w;
    std::memcpy(&w, row + k * 8, 8);
    sum += hash_word(w, kWordKeys.key[k]);
  }
  return sum;
}

#else

using WordTag = hn::ScalableTag<uint64_t>;
using Words = hn::Vec<WordTag>;
using HalfTag = hn::Repartition<uint32_t, WordTag>;
constexpr int64_t kWordLanes = int64_t(hn::MaxLanes(WordTag()));

// The four words of a Philox block in four vectors of 64-bit lanes, a block per lane. Only the low
// halves count: multiplications read nothing else, and exclusive ors keep the halves apart.
struct Blocks {
  Words c[4];
};

HWY_INLINE Blocks philox(Words counter0, Words counter1, Words counter2, Words counter3,
                         uint64_t seed) {
  const WordTag d;
  const HalfTag half;
  const auto m0 = hn::BitCast(half, hn::Set(d, uint64_t{0xD2511F53u}));
  const auto m1 = hn::BitCast(half, hn::Set(d, uint64_t{0xCD9E8D57u}));
  uint32_t key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const auto a = hn::MulEven(m0, hn::BitCast(half, counter0));
    const auto b = hn::MulEven(m1, hn::BitCast(half, counter2));
    counter0 = hn::Xor(hn::ShiftRight<32>(b), hn::Xor(counter1, hn::Set(d, uint64_t{key0})));
    counter2 = hn::Xor(hn::ShiftRight<32>(a), hn::Xor(counter3, hn::Set(d, uint64_t{key1})));
    counter1 = b;
    counter3 = a;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{counter0, counter1, counter2, counter3}};
}

// unit_normal_like of each 32-bit lane.
HWY_INLINE hn::Vec<hn::RebindToFloat<HalfTag> > normals(hn::Vec<HalfTag> x) {
  const HalfTag du;
  const hn::RebindToSigned<HalfTag> di;
  const hn::RebindToFloat<HalfTag> df;
  const auto mask = hn::Set(du, 0x00FF00FFu);
  const auto pairs = hn::Add(hn::And(x, mask), hn::And(hn::ShiftRight<8>(x), mask));
  const auto sum = hn::And(hn::Add(pairs, hn::ShiftRight<16>(pairs)), hn::Set(du, 0x7FFu));
  const auto centred = hn::Sub(hn::BitCast(di, sum), hn::Set(di, 510));
  return hn::Mul(hn::ConvertTo(df, centred), hn::Set(df, 0.00676587509f));
}

HWY_INLINE hn::Vec<HalfTag> low_halves(Words even, Words odd) {
  const WordTag d;
  return hn::BitCast(
      HalfTag(), hn::Or(hn::And(even, hn::Set(d, uint64_t{0xFFFFFFFFu})), hn::ShiftLeft<32>(odd)));
}

// Four lanes of the row per block. Lanes 0 2 of a block go together, and 1 3: one shift and one or
// then put four bf16 values in order; for fp32 two interleaves do, when the blocks of even and of
// odd vector lanes are those of the first and of the second half.
HWY_INLINE void store_blocks(const Blocks& b, uint16_t* out) {
  const HalfTag du;
  const auto even = rounded(du, hn::BitCast(du, normals(low_halves(b.c[0], b.c[2]))));
  const auto odd = rounded(du, hn::BitCast(du, normals(low_halves(b.c[1], b.c[3]))));
  const hn::Repartition<uint16_t, WordTag> d16;
  hn::StoreU(hn::BitCast(d16, hn::Or(even, hn::ShiftLeft<16>(odd))), d16, out);
}
HWY_INLINE void store_blocks(const Blocks& b, float* out) {
  const hn::RebindToFloat<HalfTag> df;
  const auto even = normals(low_halves(b.c[0], b.c[2]));
  const auto odd = normals(low_halves(b.c[1], b.c[3]));
  hn::StoreU(hn::InterleaveLower(df, even, odd), df, out);
  hn::StoreU(hn::InterleaveUpper(df, even, odd), df, out + 2 * kWordLanes);
}

// Number of the block that each vector lane makes.
HWY_INLINE Words block_numbers(uint16_t*) { return hn::Iota(WordTag(), 0); }
HWY_INLINE Words block_numbers(float*) {
  alignas(64) uint64_t number[size_t(kWordLanes)];
  for (int64_t i = 0; i < kWordLanes; ++i) number[i] = uint64_t(i / 2 + i % 2 * (kWordLanes / 2));
  return hn::Load(WordTag(), number);
}

template <class T>
void generate_rows(const FillRows& task, const RowFormat& f) {
  const WordTag d;
  const int64_t blocks = f.head_dim / 4;
  const auto head = hn::Set(d, uint64_t(uint32_t(task.head) | uint32_t(task.tensor) << 24));
  const auto number = block_numbers(static_cast<T*>(nullptr));
  for (int64_t i = 0; i < task.rows; ++i) {
    const uint64_t token = uint64_t(task.first_token + i * task.token_step);
    T* const row = static_cast<T*>(task.out) + i * task.row_stride;
    const auto low = hn::Set(d, token & 0xFFFFFFFFu), high = hn::Set(d, token >> 32);
    for (int64_t at = 0; at < blocks; at += kWordLanes) {
      const Blocks b = philox(low, high, head, hn::Add(number, hn::Set(d, uint64_t(at))), f.seed);
      if (at + kWordLanes <= blocks) {
        store_blocks(b, row + 4 * at);
      } else {
        alignas(64) T some[4 * kWordLanes];
        store_blocks(b, some);
        std::memcpy(row + 4 * at, some, size_t(blocks - at) * 4 * sizeof(T));
      }
    }
  }
}

uint64_t hash_words(const std::byte* row, int64_t words) {
  const WordTag d;
  const HalfTag half;
  auto sum = hn::Zero(d);
  int64_t k = 0;
  const auto fold = [&](Words w, Words key) HWY_ATTR {
    const auto x = hn::Add(hn::BitCast(half, w), hn::BitCast(half, key));
    const auto up = hn::BitCast(half, hn::ShiftRight<32>(hn::BitCast(d, x)));
    sum = hn::Add(sum, hn::MulEven(x, up));
  };
  const uint64_t* const from = reinterpret_cast<const uint64_t*>(row);
  for (; k + kWordLanes <= words; k += kWordLanes)
    fold(hn::LoadU(d, from + k), hn::Load(d, kWordKeys.key + k));
  // Not SumOfLanes: GCC adds the lanes of AVX-512 as signed numbers, which must not overflow.
  alignas(64) uint64_t lanes[size_t(kWordLanes)];
  hn::Store(sum, d, lanes);
  uint64_t total = 0;
  for (const uint64_t lane : lanes) total += lane;
  for (; k < words; ++k) {
    uint64_t w;
    std::memcpy(&w, row + k * 8, 8);
    total += hash_word(w, kWordKeys.key[k]);
  }
  return total;
}

#endif

void fill_on_target(const FillRows& task, const RowFormat& format) {
  if (format.dtype == DType::kFloat32)
    generate_rows<float>(task, format);
  else
    generate_rows<uint16_t>(task, format);
}

uint64_t digest_on_target(const FillRows& task, const RowFormat& format) {
  const int64_t element = dtype_bytes(format.dtype);
  const std::byte* row = static_cast<const std::byte*>(task.out);
  uint64_t digest = 0;
  for (int64_t i = 0; i < task.rows; ++i, row += task.row_stride * element)
    digest +=
        mix64(hash_words(row, format.head_dim * element / 8) +
              row_name(uint32_t(task.tensor), task.head, task.first_token + i * task.token_step));
  return digest;
}

// Sums of one row; a NaN anywhere makes `sum` NaN.
struct RowSums {
  double sum, sum_squares;
  float min, max;
};

HWY_INLINE RowSums sums_of(const float* row, int64_t head_dim) {
  const hn::CappedTag<double, 8> dd;
  const hn::Rebind<float, decltype(dd)> df;
  auto sum = hn::Zero(dd), squares = hn::Zero(dd);
  auto low = hn::LoadU(df, row), high = low;
  for (int64_t c = 0; c < head_dim; c += int64_t(hn::MaxLanes(dd))) {
    const auto x = hn::LoadU(df, row + c);
    const auto wide = hn::PromoteTo(dd, x);
    sum = hn::Add(sum, wide);
    squares = hn::MulAdd(wide, wide, squares);
    low = hn::Min(low, x);
    high = hn::Max(high, x);
  }
  return {hn::GetLane(hn::SumOfLanes(dd, sum)), hn::GetLane(hn::SumOfLanes(dd, squares)),
          hn::GetLane(hn::MinOfLanes(df, low)), hn::GetLane(hn::MaxOfLanes(df, high))};
}

OutputSummary summarize_on_target(const OutputRows& task, int64_t head_dim) {
  OutputSummary s{.rows = task.rows};
  for (int64_t i = 0; i < task.rows; ++i) {
    const float* const row = task.o + i * task.o_stride;
    const float lse = task.lse == nullptr ? 0.0f : task.lse[i * task.lse_stride];
    uint32_t lse_bits;
    std::memcpy(&lse_bits, &lse, sizeof lse);
    s.digest += output_row_hash(hash_words(reinterpret_cast<const std::byte*>(row), head_dim / 2),
                                lse_bits, task.head, task.first_token + i * task.token_step);
    const RowSums r = sums_of(row, head_dim);
    if (std::isnan(r.sum)) {
      for (int64_t c = 0; c < head_dim; ++c) s.nan_values += std::isnan(row[c]);
    } else {
      s.sum += r.sum;
      s.sum_squares += r.sum_squares;
      s.min = HWY_MIN(s.min, double(r.min));
      s.max = HWY_MAX(s.max, double(r.max));
    }
    if (std::isnan(lse))
      ++s.nan_values;
    else if (std::isinf(lse) && lse < 0)
      ++s.absent_rows;
    else
      s.lse_sum += double(lse);
  }
  return s;
}

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longnet {

HWY_EXPORT(merge_on_target);
HWY_EXPORT(add_on_target);
HWY_EXPORT(pack_on_target);
HWY_EXPORT(fill_on_target);
HWY_EXPORT(digest_on_target);
HWY_EXPORT(summarize_on_target);

void merge_rows(const MergeTask& task, MergeRule rule, int64_t head_dim) {
  HWY_DYNAMIC_DISPATCH(merge_on_target)(task, rule, head_dim);
}
void add_rows(const PackTask& task, int64_t head_dim) {
  HWY_DYNAMIC_DISPATCH(add_on_target)(task, head_dim);
}
void pack_rows(const PackTask& task, Conversion conversion, int64_t head_dim,
               int64_t element_bytes) {
  HWY_DYNAMIC_DISPATCH(pack_on_target)(task, conversion, head_dim, element_bytes);
}
void fill_rows(const FillRows& task, const RowFormat& format) {
  HWY_DYNAMIC_DISPATCH(fill_on_target)(task, format);
}
uint64_t digest_rows(const FillRows& task, const RowFormat& format) {
  return HWY_DYNAMIC_DISPATCH(digest_on_target)(task, format);
}
OutputSummary summarize_rows(const OutputRows& task, int64_t head_dim) {
  return HWY_DYNAMIC_DISPATCH(summarize_on_target)(task, head_dim);
}

}  // namespace longnet
#endif  // HWY_ONCE
