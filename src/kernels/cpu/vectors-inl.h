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

// 2^x for x <= 127 as 2^n 2^f, |f| <= 1/2: a minimax polynomial in f with relative error 9e-8 that
// is exactly 1 at 0. 0 for x <= -127, -inf included. Adding `magic` rounds x to an integer n and
// leaves n + 127, the exponent bits of 2^n, in the low byte.
template <class D>
HWY_INLINE hn::Vec<D> exp2_below_127(D df, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto magic = hn::Set(df, 12582912.0f + 127.0f);  // 1.5 * 2^23 + 127
  x = hn::Max(x, hn::Set(df, -127.0f));
  const auto shifted = hn::Add(x, magic);
  const auto f = hn::Sub(x, hn::Sub(shifted, magic));
  const auto power = hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
  auto p = hn::Set(df, 1.326472731e-03f);
  p = hn::MulAdd(p, f, hn::Set(df, 9.671512991e-03f));
  p = hn::MulAdd(p, f, hn::Set(df, 5.550733581e-02f));
  p = hn::MulAdd(p, f, hn::Set(df, 2.402224243e-01f));
  p = hn::MulAdd(p, f, hn::Set(df, 6.931470037e-01f));
  p = hn::MulAdd(p, f, hn::Set(df, 1.0f));
  return hn::Mul(p, power);
}

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();
#endif
