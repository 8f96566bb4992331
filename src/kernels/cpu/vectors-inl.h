// Vectors of floats, once per instruction set: loads and stores of fp32 and bf16, loops over rows
// of any length, the exponential.
#if defined(LONGNET_KERNELS_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGNET_KERNELS_CPU_VECTORS_INL_H_
#undef LONGNET_KERNELS_CPU_VECTORS_INL_H_
#else
#define LONGNET_KERNELS_CPU_VECTORS_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/model_kernel.h"

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
constexpr int kLanes = int(hn::MaxLanes(FloatTag()));

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

// bf16_bits of core/random.h, of floats given as their bits, in the low 16 bits of each lane.
template <class D>
HWY_INLINE hn::Vec<D> rounded(D du, hn::Vec<D> bits) {
  const auto tie = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  return hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), tie));
}

template <class D>
HWY_INLINE void store_floats(hn::Vec<D> x, D df, float* to) {
  hn::StoreU(x, df, to);
}
template <class D>
HWY_INLINE void store_floats(hn::Vec<D> x, D df, Bf16Bits* to) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  (void)df;
  hn::StoreU(hn::TruncateTo(d16, rounded(du, hn::BitCast(du, x))), d16, to);
}

// body(tag, i) for the floats [i, i + lanes of tag) of a row: whole vectors, then one at a time.
using OneFloat = hn::CappedTag<float, 1>;
template <class Body>
HWY_INLINE void for_each_vector(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(FloatTag(), i);
  for (; i < count; ++i) body(OneFloat(), i);
}

template <class Storage>
HWY_INLINE Storage* row_of(const Matrix& x, int64_t i) {
  return static_cast<Storage*>(x.data) + i * x.stride;
}
HWY_INLINE bool is_wide(const Matrix& x) { return x.dtype == DType::kFloat32; }
// Calls body(X{}, Y{}) with the element types of x and y.
template <class Body>
HWY_INLINE void with_storages(const Matrix& x, const Matrix& y, const Body& body) {
  if (is_wide(x))
    is_wide(y) ? body(float{}, float{}) : body(float{}, Bf16Bits{});
  else
    is_wide(y) ? body(Bf16Bits{}, float{}) : body(Bf16Bits{}, Bf16Bits{});
}

// A sum over a row, vector by vector; the lanes are added in the end.
class RowSum {
 public:
  HWY_INLINE RowSum() : whole_(hn::Zero(FloatTag())) {}
  template <class D>
  HWY_INLINE void add(D, hn::Vec<D> x) {
    if constexpr (hn::MaxLanes(D()) == size_t(kLanes))
      whole_ = hn::Add(whole_, x);
    else
      rest_ += hn::GetLane(x);
  }
  HWY_INLINE float total() const { return hn::GetLane(hn::SumOfLanes(FloatTag(), whole_)) + rest_; }

 private:
  FloatVec whole_;
  float rest_ = 0.0f;
};

// 1 + f (c4 + f (c3 + ...)): exactly 1 at 0.
template <class D>
HWY_INLINE hn::Vec<D> power_of_fraction(D df, hn::Vec<D> f, const float (&c)[5]) {
  auto p = hn::Set(df, c[0]);
#pragma GCC unroll 4
  for (int i = 1; i < 5; ++i) p = hn::MulAdd(p, f, hn::Set(df, c[i]));
  return hn::MulAdd(p, f, hn::Set(df, 1.0f));
}

// 2^x for x <= 127 as 2^n 2^f, f = x - n: a minimax polynomial in f with relative error 9e-8.
// 0 for x <= -127, -inf included.
#if HWY_TARGET <= HWY_AVX3
// n rounds down. AVX-512 has f in one instruction and the product with 2^n in another. Of a
// subnormal result that takes 200 cycles: it is left out (below -126; not of NaN).
HWY_INLINE __m512 fraction(__m512 x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF); }
HWY_INLINE __m128 fraction(__m128 x) { return _mm_reduce_ps(x, _MM_FROUND_TO_NEG_INF); }
HWY_INLINE __m512 times_power(__m512 p, __m512 x) {
  const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(normal, p, x);
}
HWY_INLINE __m128 times_power(__m128 p, __m128 x) {
  return _mm_maskz_scalef_ps(_mm_cmp_ps_mask(x, _mm_set1_ps(-126.0f), _CMP_NLT_UQ), p, x);
}
template <class D>
HWY_INLINE hn::Vec<D> exp2_below_127(D df, hn::Vec<D> x) {
  const auto p = power_of_fraction(
      df, hn::Vec<D>{fraction(x.raw)},
      {1.867128769e-03f, 9.016992524e-03f, 5.579992756e-02f, 2.401644737e-01f, 6.931512952e-01f});
  return hn::Vec<D>{times_power(p.raw, x.raw)};
}
#else
// n is the nearest: adding `magic` rounds x and leaves n + 127, the exponent bits of 2^n, in the
// low byte.
template <class D>
HWY_INLINE hn::Vec<D> exp2_below_127(D df, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto magic = hn::Set(df, 12582912.0f + 127.0f);  // 1.5 * 2^23 + 127
  x = hn::Max(x, hn::Set(df, -127.0f));
  const auto shifted = hn::Add(x, magic);
  const auto f = hn::Sub(x, hn::Sub(shifted, magic));
  const auto power = hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
  const auto p = power_of_fraction(
      df, f,
      {1.326472731e-03f, 9.671512991e-03f, 5.550733581e-02f, 2.402224243e-01f, 6.931470037e-01f});
  return hn::Mul(p, power);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();
#endif
