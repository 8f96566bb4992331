// Instructions that touch nothing but a warp's registers.
#include <algorithm>
#include <cfenv>
#include <concepts>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/check.h"
#include "emulation/ptx_block.h"

namespace longnet::ptx {
namespace {

using In = const PtxInstruction&;

template <class T>
using Row = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

// Calls f with a value of the type that stands for `type`. Throws Error where f takes none such.
template <class F>
void by_type(PtxType type, F f) {
  const auto call = [&](auto value) {
    if constexpr (std::invocable<F, decltype(value)>)
      f(value);
    else
      throw Error("not done here for this type");
  };
  if (type == PtxType{'u', 2}) return call(uint16_t{});
  if (type == PtxType{'s', 2}) return call(int16_t{});
  if (type == PtxType{'u', 4}) return call(uint32_t{});
  if (type == PtxType{'s', 4}) return call(int32_t{});
  if (type == PtxType{'u', 8}) return call(uint64_t{});
  if (type == PtxType{'s', 8}) return call(int64_t{});
  if (type == PtxType{'f', 4}) return call(float{});
  if (type == PtxType{'f', 8}) return call(double{});
  throw Error("a type that is not done here");
}

template <class T>
Row<T>* row_of(Warp& w, const PtxOperand& o) {
  if (o.row.bytes != sizeof(Row<T>)) throw Error("an operand of another width");
  return reinterpret_cast<Row<T>*>(w.registers.get() + o.row.at);
}

// Applies f to the operands behind the first one, which gets the result.
template <class R, class... T, class F>
void apply(Warp& w, In in, uint32_t m, F f) {
  auto* const d = row_of<R>(w, in.operands[0]);
  const auto from = [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::tuple(row_of<T>(w, in.operands.at(kIndex + 1))...);
  }
  (std::index_sequence_for<T...>());
  for_lanes(m, [&](int l) {
    d[l] = bits<Row<R>>(
        R(std::apply([&](const auto*... row) { return f(bits<T>(row[l])...); }, from)));
  });
}
// The result of setp, by how its operands compare.
struct Comparison {
  bool less, equal, greater, unordered;
  template <class T>
  bool holds(T a, T b) const {
    return a < b ? less : a == b ? equal : a > b ? greater : unordered;
  }
};
Comparison comparison_of(std::string_view name) {
  const bool unordered = name.size() == 3 && name[2] == 'u';
  const std::string_view how = unordered ? name.substr(0, 2) : name;
  if (how == "eq") return {false, true, false, unordered};
  if (how == "ne") return {true, false, true, unordered};
  if (how == "lt") return {true, false, false, unordered};
  if (how == "le") return {true, true, false, unordered};
  if (how == "gt") return {false, false, true, unordered};
  if (how == "ge") return {false, true, true, unordered};
  throw Error(concat("no comparison ", name));
}

uint32_t predicate_of(Warp& w, In in, size_t operand) {
  const uint32_t p = w.predicate(in.operands.at(operand).row);
  return in.operands[operand].negated ? ~p : p;
}

struct Divide {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) check(b != 0, "a division by zero");
    return T(a / b);
  }
};
struct Remainder {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (!std::is_integral_v<T>)
      throw Error("a remainder of reals");
    else
      return check(b != 0, "a division by zero"), T(a % b);
  }
};
template <bool kMost>
struct Extreme {  // NaN only if both are NaN
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return kMost ? std::fmax(a, b) : std::fmin(a, b);
    return kMost ? std::max(a, b) : std::min(a, b);
  }
};

template <class Op>
void typed(Block&, Warp& w, In in, uint32_t m) {
  by_type(in.type, [&]<class T>(T) { apply<T, T, T>(w, in, m, Op{}); });
}

// Sums and products, which wrap around.
template <class Op>
void wrapping(Block&, Warp& w, In in, uint32_t m) {
  by_type(in.type, [&]<class T>(T) {
    if constexpr (!std::is_integral_v<T>) {
      apply<T, T, T>(w, in, m, Op{});
    } else {
      using Wide = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
      apply<T, Wide, Wide>(w, in, m, Op{});
    }
  });
}

template <class Op>
void bitwise(Block&, Warp& w, In in, uint32_t m) {
  if (in.type.kind == 'p')
    set_predicate(w, in.operands[0].row, m, Op{}(predicate_of(w, in, 1), predicate_of(w, in, 2)));
  else
    by_type(in.type, [&]<std::integral T>(T) { apply<T, T, T>(w, in, m, Op{}); });
}

void invert(Block&, Warp& w, In in, uint32_t m) {
  if (in.type.kind == 'p') return set_predicate(w, in.operands[0].row, m, ~predicate_of(w, in, 1));
  by_type(in.type, [&]<std::integral T>(T) { apply<T, T>(w, in, m, std::bit_not<>{}); });
}

// {a, b, ...} into one register, and back.
void pack(Warp& w, In in, uint32_t m) {
  const auto& parts = in.operands[1].parts;
  const int each = 8 * in.type.bytes / int(parts.size());
  for_lanes(m, [&](int l) {
    uint64_t whole = 0;
    for (size_t i = 0; i < parts.size(); ++i)
      whole |= (w.value(parts[i].row, l) & ((uint64_t{1} << each) - 1)) << (each * int(i));
    w.set(in.operands[0].row, l, whole);
  });
}
void unpack(Warp& w, In in, uint32_t m) {
  const auto& parts = in.operands[0].parts;
  const int each = 8 * in.type.bytes / int(parts.size());
  for_lanes(m, [&](int l) {
    const uint64_t whole = w.value(in.operands[1].row, l);
    for (size_t i = 0; i < parts.size(); ++i)
      if (parts[i].row.at >= 0)
        w.set(parts[i].row, l, whole >> (each * int(i)) & ((uint64_t{1} << each) - 1));
  });
}

void move(Block&, Warp& w, In in, uint32_t m) {
  if (!in.operands.at(0).parts.empty()) return unpack(w, in, m);
  if (!in.operands.at(1).parts.empty()) return pack(w, in, m);
  if (in.type.kind == 'p') return set_predicate(w, in.operands[0].row, m, predicate_of(w, in, 1));
  by_type(in.type, [&]<class T>(T) { apply<T, T>(w, in, m, std::identity{}); });
}

void multiply_high(Block&, Warp& w, In in, uint32_t m) {
  __extension__ using Wide = unsigned __int128;
  apply<uint64_t, uint64_t, uint64_t>(w, in, m, [](Wide a, Wide b) { return a * b >> 64; });
}

template <class T, class Wide>
void multiply_wide(Block&, Warp& w, In in, uint32_t m) {
  apply<Wide, T, T>(w, in, m, [](Wide a, Wide b) { return a * b; });
}

// A count of the width or more leaves nothing (or the sign).
template <bool kLeft>
void shift(Block&, Warp& w, In in, uint32_t m) {
  by_type(in.type, [&]<std::integral T>(T) {
    apply<T, T, uint32_t>(w, in, m, [](T x, uint32_t by) {
      constexpr uint32_t kBits = 8 * sizeof(T);
      if (by >= kBits) return T(!kLeft && x < T{} ? -1 : 0);
      return kLeft ? T(std::make_unsigned_t<T>(x) << by) : T(x >> by);
    });
  });
}

void fused(Block&, Warp& w, In in, uint32_t m) {
  const int before = std::fegetround();
  if (in.has("rm")) std::fesetround(FE_DOWNWARD);
  by_type(in.type, [&]<std::floating_point T>(T) {
    apply<T, T, T, T>(w, in, m, [](T a, T b, T c) { return std::fma(a, b, c); });
  });
  std::fesetround(before);
}

// Nothing is rounded to an integer.
template <class To, class From>
concept MadeOf = std::integral<From> || !std::integral<To>;
void convert(Block&, Warp& w, In in, uint32_t m) {
  by_type(in.from, [&]<class From>(From) {
    by_type(in.type,
            [&]<MadeOf<From> To>(To) { apply<To, From>(w, in, m, [](From x) { return To(x); }); });
  });
}
float saturated(float x) { return std::isnan(x) ? 0.0f : std::clamp(x, 0.0f, 1.0f); }

// The second operand is the low half.
void convert_pair(Block&, Warp& w, In in, uint32_t m) {
  for_lanes(m, [&](int l) {
    w.words(in.operands[0].row)[l] = uint32_t{to_bf16(w.real(in.operands[1].row, l))} << 16 |
                                     to_bf16(w.real(in.operands[2].row, l));
  });
}

void compare(Block&, Warp& w, In in, uint32_t m) {
  uint32_t result = 0;
  const Comparison comparison = comparison_of(in.words[1]);
  by_type(in.type, [&]<class T>(T) {
    const auto* const a = row_of<T>(w, in.operands[1]);
    const auto* const b = row_of<T>(w, in.operands[2]);
    for_lanes(
        m, [&](int l) { result |= uint32_t(comparison.holds(bits<T>(a[l]), bits<T>(b[l]))) << l; });
  });
  set_predicate(w, in.operands[0].row, m, result);
}

void select(Block&, Warp& w, In in, uint32_t m) {
  const auto& o = in.operands;
  const uint32_t p = w.predicate(o.at(3).row);
  for_lanes(m, [&](int l) { w.set(o[0].row, l, w.value(o[p >> l & 1 ? 1 : 2].row, l)); });
}

void insert_bits(Block&, Warp& w, In in, uint32_t m) {
  const auto& o = in.operands;
  for_lanes(m, [&](int l) {
    const auto at = w.value(o[3].row, l) & 0xFF, length = w.value(o[4].row, l) & 0xFF;
    const auto field = uint32_t(((uint64_t{1} << length) - 1) << at);
    w.words(o[0].row)[l] = (w.words(o[2].row)[l] & ~field) | (w.words(o[1].row)[l] << at & field);
  });
}

float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
float exponential(float x) { return flushed(std::exp2(flushed(x))); }

template <auto kFunction>
void of_float(Block&, Warp& w, In in, uint32_t m) {
  apply<float, float>(w, in, m, kFunction);
}

// PTX ISA, shfl.sync.
void shuffle(Block&, Warp& w, In in, uint32_t m) {
  const auto& o = in.operands;
  std::array<uint32_t, kLanes> source{};
  std::copy_n(w.words(o[1].row), kLanes, source.begin());
  uint32_t inside = 0;
  for_lanes(m, [&](int l) {
    check(uint32_t(w.value(o[4].row, l)) == kAll, "a shuffle of some lanes");
    const auto b = int(w.value(o[2].row, l) & 31), c = int(w.value(o[3].row, l));
    const int clamp = c & 31, segment = c >> 8 & 31;
    const int most = (l & segment) | (clamp & ~segment), least = l & segment;
    const std::string& mode = in.words[2];
    check(mode == "bfly" || mode == "idx", "a shuffle ", mode);
    const int wanted = mode == "bfly" ? l ^ b : least | (b & ~segment);
    const bool ok = wanted <= most;
    const int from = ok ? wanted : l;
    check((m >> from & 1) != 0, "lane ", l, " reads lane ", from, ", which takes no part");
    inside |= uint32_t(ok) << l;
    w.words(o[0].row)[l] = source[size_t(from)];
  });
  if (in.second.at >= 0) set_predicate(w, in.second, m, inside);
}

void vote_any(Block&, Warp& w, In in, uint32_t m) {
  set_predicate(w, in.operands[0].row, m, (predicate_of(w, in, 1) & m) != 0 ? kAll : 0);
}

// Wraps around: the sign does not matter.
void multiply_add(Block&, Warp& w, In in, uint32_t m) {
  apply<uint32_t, uint32_t, uint32_t, uint32_t>(
      w, in, m, [](uint32_t a, uint32_t b, uint32_t c) { return a * b + c; });
}

// Adds the products of four bytes each.
void multiply_add_bytes(Block&, Warp& w, In in, uint32_t m) {
  apply<uint32_t, uint32_t, uint32_t, uint32_t>(w, in, m, [](uint32_t a, uint32_t b, uint32_t sum) {
    for (int at = 0; at < 32; at += 8) sum += (a >> at & 0xFF) * (b >> at & 0xFF);
    return sum;
  });
}

void negate(Block&, Warp& w, In in, uint32_t m) {
  by_type(in.type, [&]<std::integral T>(T) {
    apply<T, std::make_unsigned_t<T>>(w, in, m, std::negate<>{});
  });
}

void square_root(Block&, Warp& w, In in, uint32_t m) {
  by_type(in.type, [&]<std::floating_point T>(T) {
    apply<T, T>(w, in, m, [](T x) { return std::sqrt(x); });
  });
}

void truncate(Block&, Warp& w, In in, uint32_t m) {
  apply<int64_t, float>(w, in, m, [](float x) { return int64_t(x); });
}

constexpr Rule kArithmeticRules[] = {
    {"mov", move},
    {"cvta.to.global", move},
    {"add", wrapping<std::plus<>>},
    {"sub", wrapping<std::minus<>>},
    {"mul", wrapping<std::multiplies<>>},
    {"mul.hi.u64", multiply_high},
    {"mad.lo.s32", multiply_add},
    {"dp4a.u32.u32", multiply_add_bytes},
    {"mul.wide.s32", multiply_wide<int32_t, int64_t>},
    {"mul.wide.u32", multiply_wide<uint32_t, uint64_t>},
    {"div", typed<Divide>},
    {"div.approx.f32", typed<Divide>},
    {"rem", typed<Remainder>},
    {"sqrt", square_root},
    {"rsqrt.approx.f32", of_float<[](float x) { return 1 / std::sqrt(x); }>},
    {"min", typed<Extreme<false>>},
    {"max", typed<Extreme<true>>},
    {"abs.f32", of_float<[](float x) { return std::fabs(x); }>},
    {"neg.f32", of_float<std::negate<>{}>},
    {"neg", negate},
    {"and", bitwise<std::bit_and<>>},
    {"or", bitwise<std::bit_or<>>},
    {"xor", bitwise<std::bit_xor<>>},
    {"not", invert},
    {"shl", shift<true>},
    {"shr", shift<false>},
    {"fma", fused},
    {"fma.rm.f32", fused},
    {"setp", compare},
    {"selp", select},
    {"cvt", convert},
    {"cvt.rzi.s64.f32", truncate},
    {"cvt.sat.f32.f32", of_float<saturated>},
    {"cvt.rn.bf16x2", convert_pair},
    {"bfi.b32", insert_bits},
    {"ex2.approx.ftz.f32", of_float<exponential>},
    {"shfl.sync", shuffle, kWholeWarp},
    {"vote.sync.any.pred", vote_any, kWholeWarp},
};

}  // namespace

std::span<const Rule> arithmetic_rules() { return kArithmeticRules; }

}  // namespace longnet::ptx
