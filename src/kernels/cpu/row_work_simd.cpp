#include <array>
#include <cmath>
#include <cstring>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/rows_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/row_work_simd.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#ifndef LONGNET_ROW_WORK_ONCE
#define LONGNET_ROW_WORK_ONCE
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
namespace hn = hwy::HWY_NAMESPACE;

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

// bf16_bits of each 32-bit lane, in its low 16 bits.
HWY_INLINE hn::Vec<HalfTag> rounded(hn::Vec<hn::RebindToFloat<HalfTag> > x) {
  const HalfTag du;
  const auto bits = hn::BitCast(du, x);
  const auto tie = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  return hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), tie));
}

// Four lanes of the row per block. Lanes 0 2 of a block go together, and 1 3: one shift and one or
// then put four bf16 values in order; for fp32 two interleaves do, when the blocks of even and of
// odd vector lanes are those of the first and of the second half.
HWY_INLINE void store_blocks(const Blocks& b, uint16_t* out) {
  const HalfTag du;
  const auto even = rounded(normals(low_halves(b.c[0], b.c[2])));
  const auto odd = rounded(normals(low_halves(b.c[1], b.c[3])));
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

HWY_EXPORT(fill_on_target);
HWY_EXPORT(digest_on_target);
HWY_EXPORT(summarize_on_target);

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
