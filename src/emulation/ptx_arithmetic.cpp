#include "emulation/ptx_arithmetic.h"

#include <algorithm>
#include <cfenv>
#include <type_traits>

#include "core/check.h"
#include "emulation/ptx_codes.h"

namespace longnet::ptx {
namespace {

template <class T>
using Row = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class F>
void by_type(PtxType type, F f) {
  switch (type) {
    case PtxType::kU16:
    case PtxType::kB16:
      return f(uint16_t{});
    case PtxType::kS16:
      return f(int16_t{});
    case PtxType::kU32:
    case PtxType::kB32:
      return f(uint32_t{});
    case PtxType::kS32:
      return f(int32_t{});
    case PtxType::kF32:
      return f(float{});
    case PtxType::kU64:
    case PtxType::kB64:
      return f(uint64_t{});
    case PtxType::kS64:
      return f(int64_t{});
    case PtxType::kF64:
      return f(double{});
    case PtxType::kU8:
    case PtxType::kB8:
      return f(uint8_t{});
    case PtxType::kS8:
      return f(int8_t{});
    case PtxType::kF16:
      return f(_Float16{});
    default:
      throw Error("a type that is not done here");
  }
}

template <class T>
const Row<T>* in_row(Warp& w, const PtxOperand& o) {
  if (o.row.bytes != sizeof(Row<T>)) throw Error("an operand of another width");
  return reinterpret_cast<const Row<T>*>(w.registers.get() + o.row.at);
}
template <class T>
Row<T>* out_row(Warp& w, const PtxOperand& o) {
  return const_cast<Row<T>*>(in_row<T>(w, o));
}

template <class T, class R = T, class F>
void unary(Warp& w, const PtxInstruction& in, uint32_t m, F f) {
  auto* const d = out_row<R>(w, in.operands[0]);
  const auto* const a = in_row<T>(w, in.operands[1]);
  for_lanes(m, [&](int l) { d[l] = bits<Row<R>>(R(f(bits<T>(a[l])))); });
}
// As a conversion reads it: of a wider register the low bits.
template <class T, class R, class F>
void converted(Warp& w, const PtxInstruction& in, uint32_t m, F f) {
  auto* const d = out_row<R>(w, in.operands[0]);
  for_lanes(m, [&](int l) { d[l] = bits<Row<R>>(R(f(bits<T>(w.value(in.operands[1].row, l))))); });
}
template <class T, class R = T, class F>
void binary(Warp& w, const PtxInstruction& in, uint32_t m, F f) {
  auto* const d = out_row<R>(w, in.operands[0]);
  const auto* const a = in_row<T>(w, in.operands[1]);
  const auto* const b = in_row<T>(w, in.operands[2]);
  for_lanes(m, [&](int l) { d[l] = bits<Row<R>>(R(f(bits<T>(a[l]), bits<T>(b[l])))); });
}

// Sums and products wrap around.
template <class T, class F>
T wrapping(T a, T b, F f) {
  if constexpr (std::is_floating_point_v<T> || std::is_same_v<T, _Float16>) {
    return f(a, b);
  } else {
    using U = std::make_unsigned_t<T>;
    using Wide = std::common_type_t<U, unsigned>;
    return T(U(f(Wide(U(a)), Wide(U(b)))));
  }
}

void predicates(Warp& w, const PtxInstruction& in, uint32_t m) {
  const auto value = [&](size_t i) {
    const uint32_t p = w.predicate(in.operands.at(i).row);
    return in.operands[i].negated ? ~p : p;
  };
  uint32_t result = 0;
  switch (in.code) {
    case kMov:
      result = value(1);
      break;
    case kNot:
      result = ~value(1);
      break;
    case kAnd:
      result = value(1) & value(2);
      break;
    case kOr:
      result = value(1) | value(2);
      break;
    case kXor:
      result = value(1) ^ value(2);
      break;
    default:
      throw Error("not done for predicates");
  }
  set_predicate(w, in.operands[0].row, m, result);
}

template <class T>
bool compare(std::string_view how, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    const bool unordered = std::isnan(a) || std::isnan(b);
    if (how.size() == 3 && how[2] == 'u') return unordered || compare(how.substr(0, 2), a, b);
    if (unordered) return false;
  }
  if (how == "eq") return a == b;
  if (how == "ne") return a != b;
  if (how == "lt") return a < b;
  if (how == "le") return a <= b;
  if (how == "gt") return a > b;
  if (how == "ge") return a >= b;
  throw Error(concat("no comparison ", how));
}

float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

template <class F>
void arithmetic(Warp& w, const PtxInstruction& in, uint32_t m, F f) {
  by_type(in.type, [&](auto t) {
    using T = decltype(t);
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>)
      binary<T>(w, in, m, f);
    else
      binary<T>(w, in, m, [&](T a, T b) { return wrapping(a, b, f); });
  });
}
template <class F>
void bitwise(Warp& w, const PtxInstruction& in, uint32_t m, F f) {
  if (bytes_of(in.type) == 8)
    binary<uint64_t>(w, in, m, f);
  else
    binary<uint32_t>(w, in, m, f);
}

void multiply_high(Warp& w, const PtxInstruction& in, uint32_t m) {
  __extension__ using Wide = unsigned __int128;
  switch (in.type) {
    case PtxType::kU64:
      return binary<uint64_t>(w, in, m,
                              [](uint64_t a, uint64_t b) { return uint64_t(Wide(a) * b >> 64); });
    case PtxType::kU32:
      return binary<uint32_t>(
          w, in, m, [](uint32_t a, uint32_t b) { return uint32_t(uint64_t{a} * b >> 32); });
    case PtxType::kS32:
      return binary<int32_t>(w, in, m,
                             [](int32_t a, int32_t b) { return int32_t(int64_t{a} * b >> 32); });
    default:
      throw Error("mul.hi of other types");
  }
}

// A count of the width or more leaves nothing (or the sign).
void shift(Warp& w, const PtxInstruction& in, uint32_t m) {
  by_type(in.type, [&](auto t) {
    using T = decltype(t);
    if constexpr (std::is_integral_v<T>) {
      constexpr uint32_t kBits = 8 * sizeof(T);
      auto* const d = out_row<T>(w, in.operands[0]);
      const auto* const a = in_row<T>(w, in.operands[1]);
      const uint32_t* const by = in_row<uint32_t>(w, in.operands[2]);
      for_lanes(m, [&](int l) {
        const T x = bits<T>(a[l]);
        T result{};
        if (in.code == kShl)
          result = by[l] < kBits ? T(std::make_unsigned_t<T>(x) << by[l]) : T{};
        else
          result = by[l] < kBits ? T(x >> by[l]) : T(x < T{} ? -1 : 0);
        d[l] = bits<Row<T>>(result);
      });
    } else {
      throw Error("a shift of other types");
    }
  });
}

void fused(Warp& w, const PtxInstruction& in, uint32_t m) {
  const auto each = [&](auto t) {
    using T = decltype(t);
    auto* const d = out_row<T>(w, in.operands[0]);
    const auto* const a = in_row<T>(w, in.operands[1]);
    const auto* const b = in_row<T>(w, in.operands[2]);
    const auto* const c = in_row<T>(w, in.operands[3]);
    for_lanes(m, [&](int l) {
      d[l] = bits<Row<T>>(std::fma(bits<T>(a[l]), bits<T>(b[l]), bits<T>(c[l])));
    });
  };
  const int before = std::fegetround();
  if (in.has("rm")) std::fesetround(FE_DOWNWARD);
  if (in.type == PtxType::kF32)
    each(float{});
  else
    each(double{});
  std::fesetround(before);
}

void convert(Warp& w, const PtxInstruction& in, uint32_t m) {
  by_type(in.from, [&](auto from) {
    using From = decltype(from);
    by_type(in.type, [&](auto to) {
      using To = decltype(to);
      constexpr bool kFromReal = !std::is_integral_v<From>, kToReal = !std::is_integral_v<To>;
      if constexpr (kFromReal && !kToReal) {
        throw Error("a number to an integer");
      } else if constexpr (std::is_same_v<To, _Float16> && std::is_same_v<From, float>) {
        converted<float, uint16_t>(w, in, m, to_fp16);
      } else if constexpr (std::is_same_v<From, _Float16> && std::is_same_v<To, float>) {
        converted<uint16_t, float>(w, in, m, from_fp16);
      } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, float>) {
        const bool saturates = in.has("sat");
        converted<float, float>(w, in, m, [saturates](float x) {
          return !saturates ? x : std::isnan(x) ? 0.0f : std::clamp(x, 0.0f, 1.0f);
        });
      } else if constexpr (!std::is_same_v<To, _Float16> && !std::is_same_v<From, _Float16>) {
        converted<From, To>(w, in, m, [](From x) { return To(x); });
      } else {
        throw Error("a conversion that is not done here");
      }
    });
  });
}

void pack(Warp& w, const PtxInstruction& in, uint32_t m) {
  const auto& parts = in.operands[1].parts;
  const int each = 8 * bytes_of(in.type) / int(parts.size());
  for_lanes(m, [&](int l) {
    uint64_t whole = 0;
    for (size_t i = 0; i < parts.size(); ++i)
      whole |= (w.value(parts[i].row, l) & ((uint64_t{1} << each) - 1)) << (each * int(i));
    w.set(in.operands[0].row, l, whole);
  });
}
void unpack(Warp& w, const PtxInstruction& in, uint32_t m) {
  const auto& parts = in.operands[0].parts;
  const int each = 8 * bytes_of(in.type) / int(parts.size());
  for_lanes(m, [&](int l) {
    const uint64_t whole = w.value(in.operands[1].row, l);
    for (size_t i = 0; i < parts.size(); ++i)
      if (parts[i].row.at >= 0)
        w.set(parts[i].row, l, whole >> (each * int(i)) & ((uint64_t{1} << each) - 1));
  });
}

// PTX ISA, shfl.sync.
void shuffle(Warp& w, const PtxInstruction& in, uint32_t m) {
  const auto& o = in.operands;
  std::array<uint32_t, kLanes> source{};
  std::copy_n(w.words(o[1].row), kLanes, source.begin());
  uint32_t inside = 0;
  for_lanes(m, [&](int l) {
    check(uint32_t(w.value(o[4].row, l)) == kAll, "a shuffle of some lanes");
    const auto b = int(w.value(o[2].row, l) & 31), c = int(w.value(o[3].row, l));
    const int clamp = c & 31, segment = c >> 8 & 31;
    const int most = (l & segment) | (clamp & ~segment), least = l & segment;
    int j = l;
    bool ok = true;
    const std::string& mode = in.words[2];
    if (mode == "up")
      j = l - b, ok = j >= most;
    else if (mode == "down")
      j = l + b, ok = j <= most;
    else if (mode == "bfly")
      j = l ^ b, ok = j <= most;
    else
      j = least | (b & ~segment), ok = j <= most;
    if (!ok) j = l;
    check((m >> j & 1) != 0, "lane ", l, " reads lane ", j, ", which is not there");
    inside |= uint32_t(ok) << l;
    w.words(o[0].row)[l] = source[size_t(j)];
  });
  if (in.second.at >= 0) set_predicate(w, in.second, m, inside);
}

}  // namespace

void set_predicate(Warp& w, PtxRow row, uint32_t m, uint32_t value) {
  uint32_t& p = w.predicate(row);
  p = (p & ~m) | (value & m);
}

void execute_arithmetic(Warp& w, const PtxInstruction& in, uint32_t m) {
  const auto& o = in.operands;
  if (in.type == PtxType::kPred && in.code != kVoteAny) return predicates(w, in, m);
  switch (Code(in.code)) {
    case kMov:
      return by_type(in.type, [&](auto t) {
        using T = decltype(t);
        unary<T>(w, in, m, [](T x) { return x; });
      });
    case kPack:
      return pack(w, in, m);
    case kUnpack:
      return unpack(w, in, m);
    case kCvta:
      return unary<uint64_t>(w, in, m, [](uint64_t x) { return x; });
    case kAdd:
      return arithmetic(w, in, m, [](auto a, auto b) { return a + b; });
    case kSub:
      return arithmetic(w, in, m, [](auto a, auto b) { return a - b; });
    case kMulLo:
      return arithmetic(w, in, m, [](auto a, auto b) { return a * b; });
    case kMulHi:
      return multiply_high(w, in, m);
    case kMulWide:
      if (in.type == PtxType::kS32)
        return binary<int32_t, int64_t>(w, in, m,
                                        [](int32_t a, int32_t b) { return int64_t{a} * b; });
      if (in.type == PtxType::kU32)
        return binary<uint32_t, uint64_t>(w, in, m,
                                          [](uint32_t a, uint32_t b) { return uint64_t{a} * b; });
      throw Error("mul.wide of other types");
    case kDiv:
      return by_type(in.type, [&](auto t) {
        using T = decltype(t);
        binary<T>(w, in, m, [](T a, T b) {
          if constexpr (std::is_integral_v<T>) check(b != 0, "a division by zero");
          return T(a / b);
        });
      });
    case kRem:
      return by_type(in.type, [&](auto t) {
        using T = decltype(t);
        if constexpr (std::is_integral_v<T>)
          return binary<T>(w, in, m, [](T a, T b) {
            check(b != 0, "a division by zero");
            return T(a % b);
          });
        throw Error("rem of other types");
      });
    case kMin:
    case kMax:
      return by_type(in.type, [&](auto t) {
        using T = decltype(t);
        binary<T>(w, in, m, [least = in.code == kMin](T a, T b) {
          if constexpr (std::is_floating_point_v<T>)  // a number goes before NaN
            return least ? std::fmin(a, b) : std::fmax(a, b);
          else
            return least ? std::min(a, b) : std::max(a, b);
        });
      });
    case kAbs:
    case kNeg:
      return by_type(in.type, [&](auto t) {
        using T = decltype(t);
        unary<T>(w, in, m, [negates = in.code == kNeg](T a) {
          if constexpr (std::is_floating_point_v<T>)
            return negates ? -a : std::fabs(a);
          else
            return negates || a < T{} ? T(T{} - a) : a;
        });
      });
    case kAnd:
      return bitwise(w, in, m, [](auto a, auto b) { return a & b; });
    case kOr:
      return bitwise(w, in, m, [](auto a, auto b) { return a | b; });
    case kXor:
      return bitwise(w, in, m, [](auto a, auto b) { return a ^ b; });
    case kNot:
      if (bytes_of(in.type) == 8) return unary<uint64_t>(w, in, m, [](uint64_t a) { return ~a; });
      return unary<uint32_t>(w, in, m, [](uint32_t a) { return ~a; });
    case kShl:
    case kShr:
      return shift(w, in, m);
    case kFma:
      return fused(w, in, m);
    case kSetp: {
      uint32_t result = 0;
      by_type(in.type, [&](auto t) {
        using T = decltype(t);
        if constexpr (!std::is_same_v<T, _Float16>) {
          const auto* const a = in_row<T>(w, o[1]);
          const auto* const b = in_row<T>(w, o[2]);
          for_lanes(m, [&](int l) {
            result |= uint32_t(compare(in.words[1], bits<T>(a[l]), bits<T>(b[l]))) << l;
          });
        }
      });
      return set_predicate(w, o[0].row, m, result);
    }
    case kSelp: {
      const uint32_t p = w.predicate(o.at(3).row);
      return for_lanes(m,
                       [&](int l) { w.set(o[0].row, l, w.value(o[p >> l & 1 ? 1 : 2].row, l)); });
    }
    case kCvt:
      return convert(w, in, m);
    case kCvtPair:
      return for_lanes(m, [&](int l) {
        const auto half = [&](size_t i) {
          const float x = w.real(o[i].row, l);
          return in.has("bf16x2") ? to_bf16(x) : to_fp16(x);
        };
        w.words(o[0].row)[l] = uint32_t(half(1)) << 16 | half(2);
      });
    case kBfi:
      return for_lanes(m, [&](int l) {
        const auto at = w.value(o[3].row, l) & 0xFF, length = w.value(o[4].row, l) & 0xFF;
        const auto field = uint32_t(((uint64_t{1} << length) - 1) << at);
        w.words(o[0].row)[l] =
            (w.words(o[2].row)[l] & ~field) | (w.words(o[1].row)[l] << at & field);
      });
    case kEx2:
      return unary<float>(w, in, m, [](float x) { return flushed(std::exp2(flushed(x))); });
    case kShuffle:
      return shuffle(w, in, m);
    case kVoteAny: {
      const uint32_t p = w.predicate(o[1].row) & m;
      return set_predicate(w, o[0].row, m, p != 0 ? kAll : 0);
    }
    default:
      throw Error("not arithmetic");
  }
}

}  // namespace longnet::ptx
