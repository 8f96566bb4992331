#include "core/cuda/testing/ptx_machine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include "core/check.h"

namespace longnet {
namespace {

constexpr int kLanes = 32;
constexpr uint32_t kAll = 0xFFFFFFFF;
constexpr int kQuantum = 20000;  // instructions of a warp before the next one has its turn

enum Code : int {
  kMov,
  kPack,
  kUnpack,
  kAdd,
  kSub,
  kMulLo,
  kMulHi,
  kMulWide,
  kDiv,
  kRem,
  kMin,
  kMax,
  kAbs,
  kNeg,
  kAnd,
  kOr,
  kXor,
  kNot,
  kShl,
  kShr,
  kFma,
  kSetp,
  kSelp,
  kCvt,
  kCvtPair,
  kCvta,
  kToShared,
  kFromShared,
  kLoad,
  kStore,
  kAtomicAdd,
  kBfi,
  kEx2,
  kShuffle,
  kVoteAny,
  kBranch,
  kReturn,
  kTrap,
  kNothing,
  kBarSync,
  kBarArrive,
  kWarpSync,
  kMma,
  kLdmatrix,
  kCopyAsync,
  kCommitCopies,
  kWaitCopies,
  kBarrierInit,
  kBarrierArrive,
  kBarrierExpect,
  kBarrierTry,
  kBulkCopy,
  kWgmma,
  kWgmmaCommit,
  kWgmmaWait
};

Code code_of(const PtxInstruction& in) {
  const std::string& name = in.words[0];
  const auto is = [&](std::string_view prefix) { return in.op.starts_with(prefix); };
  if (name == "mov") {
    if (!in.operands.at(0).parts.empty()) return kUnpack;
    return in.operands.at(1).parts.empty() ? kMov : kPack;
  }
  if (is("cvta.to.shared")) return kToShared;
  if (is("cvta.shared")) return kFromShared;
  if (is("mul.wide")) return kMulWide;
  if (is("mul.hi")) return kMulHi;
  if (is("cvt.") && (in.has("bf16x2") || in.has("f16x2"))) return kCvtPair;
  if (is("bar.warp.sync")) return kWarpSync;
  if (is("bar.sync") || is("barrier.sync")) return kBarSync;
  if (is("bar.arrive") || is("barrier.arrive")) return kBarArrive;
  if (is("mma.sync.aligned.m16n8k16.row.col.f32.")) return kMma;
  if (is("ldmatrix.sync.aligned.m8n8.x4.") && in.has("b16")) return kLdmatrix;
  if (is("cp.async.cg.shared.global")) return kCopyAsync;
  if (is("cp.async.commit_group")) return kCommitCopies;
  if (is("cp.async.wait_group")) return kWaitCopies;
  if (is("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"))
    return kBulkCopy;
  if (is("mbarrier.init.shared::cta.b64")) return kBarrierInit;
  if (is("mbarrier.arrive.expect_tx.shared::cta.b64")) return kBarrierExpect;
  if (is("mbarrier.arrive.shared::cta.b64")) return kBarrierArrive;
  if (is("mbarrier.try_wait.parity.shared::cta.b64")) return kBarrierTry;
  if (is("wgmma.mma_async.sync.aligned.m64n")) return kWgmma;
  if (is("wgmma.commit_group")) return kWgmmaCommit;
  if (is("wgmma.wait_group")) return kWgmmaWait;
  if (is("wgmma.fence") || is("fence.") || is("setmaxnreg.")) return kNothing;
  if (is("ex2.approx.ftz.f32")) return kEx2;
  if (is("shfl.sync.")) return kShuffle;
  if (is("vote.sync.any.pred")) return kVoteAny;
  if (is("atom.global.add.u64")) return kAtomicAdd;
  static const std::map<std::string_view, Code> plain{
      {"add", kAdd},   {"sub", kSub},    {"mul", kMulLo}, {"div", kDiv},    {"rem", kRem},
      {"min", kMin},   {"max", kMax},    {"abs", kAbs},   {"neg", kNeg},    {"and", kAnd},
      {"or", kOr},     {"xor", kXor},    {"not", kNot},   {"shl", kShl},    {"shr", kShr},
      {"fma", kFma},   {"setp", kSetp},  {"selp", kSelp}, {"cvt", kCvt},    {"cvta", kCvta},
      {"ld", kLoad},   {"st", kStore},   {"bfi", kBfi},   {"bra", kBranch}, {"ret", kReturn},
      {"trap", kTrap}, {"exit", kReturn}};
  const auto found = plain.find(name);
  if (found == plain.end()) throw Error(concat("PTX line ", in.line, ": no instruction ", in.op));
  return found->second;
}

// Only modifiers whose meaning is done below may stand in an instruction.
void require_known_words(const PtxInstruction& in) {
  static const std::vector<std::string_view> known{
      "rn", "rm",     "lo",     "hi",    "wide",  "eq",  "ne",  "lt",  "le",
      "gt", "ge",     "equ",    "neu",   "ltu",   "leu", "gtu", "geu", "sat",
      "to", "global", "shared", "param", "local", "v2",  "v4",  "uni", "pred"};
  const bool checked = in.code <= kStore || in.code == kBranch;
  for (size_t i = 1; checked && i < in.words.size(); ++i) {
    const std::string& w = in.words[i];
    const bool type =
        w.size() <= 4 && w.size() >= 2 && std::isdigit(static_cast<unsigned char>(w[1])) != 0;
    if (!type && w != "bf16x2" && w != "f16x2" &&
        std::find(known.begin(), known.end(), w) == known.end())
      throw Error(concat("PTX line ", in.line, ": '", w, "' of ", in.op, " is not known here"));
  }
}

template <class To, class From>
To bits(From from) {
  To to{};
  std::memcpy(&to, &from, std::min(sizeof to, sizeof from));
  return to;
}

float from_bf16(uint16_t x) { return bits<float>(uint32_t(x) << 16); }
float from_fp16(uint16_t x) { return float(bits<_Float16>(x)); }
uint16_t to_bf16(float x) {  // to nearest, ties to even
  const auto b = bits<uint32_t>(x);
  if (std::isnan(x)) return 0x7FFF;
  return uint16_t((b + 0x7FFF + (b >> 16 & 1)) >> 16);
}
uint16_t to_fp16(float x) {
  if (std::isnan(x)) return 0x7FFF;
  return bits<uint16_t>(_Float16(x));
}

struct Barrier {  // mbarrier
  int arrivals = 0, pending = 0, phase = 0;
  int64_t bytes = 0;
  std::vector<std::function<void()>> copies{};
};

struct NamedBarrier {
  int arrived = 0;
  std::vector<int> waiting{};
};

struct Block;

struct Warp {
  std::unique_ptr<std::byte[]> registers;
  std::array<int32_t, kLanes> pc{};
  uint32_t live = kAll, waiting = 0;
  int index = 0;
  int32_t stopped_at = 0;  // the instruction that ended its turn
  bool blocked = false;    // at a named barrier
  std::vector<std::byte> local{};

  // Asynchronous copies of lanes, and products, that are not done yet.
  struct Copies {
    std::vector<std::function<void()>> open{};
    std::deque<std::vector<std::function<void()>>> groups{};
    void commit() {
      groups.push_back(std::move(open));
      open.clear();
    }
    void wait(size_t pending) {
      for (; groups.size() > pending; groups.pop_front())
        for (const auto& work : groups.front()) work();
    }
  };
  std::array<Copies, kLanes> copies{};
  Copies products{};

  uint32_t* words(PtxRow row) { return reinterpret_cast<uint32_t*>(registers.get() + row.at); }
  uint64_t* longs(PtxRow row) { return reinterpret_cast<uint64_t*>(registers.get() + row.at); }
  uint32_t& predicate(PtxRow row) { return *words(row); }
  uint64_t value(PtxRow row, int lane) {
    return row.bytes == 8   ? longs(row)[lane]
           : row.bytes == 4 ? words(row)[lane]
                            : predicate(row) >> lane & 1;
  }
  void set(PtxRow row, int lane, uint64_t value) {
    if (row.bytes == 8)
      longs(row)[lane] = value;
    else
      words(row)[lane] = uint32_t(value);
  }
  float real(PtxRow row, int lane) { return bits<float>(words(row)[lane]); }
};

template <class F>
void for_lanes(uint32_t mask, F f) {
  if (mask == kAll) {
    for (int l = 0; l < kLanes; ++l) f(l);
  } else {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) f(std::countr_zero(rest));
  }
}

template <class T>
using Row = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

class BlockRun {
 public:
  BlockRun(const PtxKernel& kernel, const PtxLaunch& launch, const std::byte* parameters,
           unsigned block)
      : kernel_(kernel),
        launch_(launch),
        // A shared address is 32 bits; nothing may be at 0.
        shared_(size_t(kernel.shared_bytes + launch.shared_bytes), std::byte{0xFF}) {
    const int warps = int((launch.block + kLanes - 1) / kLanes);
    for (int w = 0; w < warps; ++w) {
      Warp& warp = warps_.emplace_back();
      warp.index = w;
      warp.registers = std::make_unique<std::byte[]>(size_t(kernel.register_bytes));
      warp.local.resize(size_t(kernel.local_bytes) * kLanes, std::byte{0xFF});
      const int lanes = std::min(kLanes, int(launch.block) - w * kLanes);
      warp.live = lanes == kLanes ? kAll : (1u << lanes) - 1;
      for (const PtxConstant& c : kernel.constants) fill(warp, c, parameters, block);
    }
  }

  void run() {
    const int count = int(warps_.size());
    for (;;) {
      const int64_t before = events_;
      bool any = false;
      for (int i = 0; i < count; ++i) {
        Warp& warp = warps_[size_t(launch_.order.warps_backwards ? count - 1 - i : i)];
        if (warp.live == 0 || warp.blocked) continue;
        any = true;
        run(warp);
      }
      if (!any &&
          std::all_of(warps_.begin(), warps_.end(), [](const Warp& w) { return w.live == 0; }))
        break;
      check(events_ != before, "PTX: ", kernel_.name, " makes no progress: ", where());
    }
    for (Warp& warp : warps_)
      for (auto& copies : warp.copies)
        check(copies.open.empty() && copies.groups.empty(), "PTX: ", kernel_.name,
              " ends with asynchronous copies that nobody waited for");
  }

 private:
  std::string where() {
    std::string text;
    for (const Warp& w : warps_) {
      if (w.live == 0) continue;
      const auto& in = kernel_.instructions[size_t(w.stopped_at)];
      text += concat(text.empty() ? "" : ", ", "warp ", w.index, " at line ", in.line, " (", in.op,
                     ")");
    }
    return text;
  }

  void fill(Warp& warp, const PtxConstant& c, const std::byte* parameters, unsigned block) {
    using Kind = PtxConstant::Kind;
    if (c.row.bytes == 0) {
      warp.predicate(c.row) = c.value != 0 ? kAll : 0;
      return;
    }
    for (int l = 0; l < kLanes; ++l) {
      uint64_t value = c.value;
      switch (c.kind) {
        case Kind::kValue:
          break;
        case Kind::kTidX:
          value = uint64_t(warp.index * kLanes + l);
          break;
        case Kind::kCtaidX:
          value = block;
          break;
        case Kind::kNtidX:
          value = launch_.block;
          break;
        case Kind::kNctaidX:
          value = launch_.grid;
          break;
        case Kind::kParam:
          value = std::bit_cast<uint64_t>(parameters + c.value);
          break;
        case Kind::kLocal:
          value = std::bit_cast<uint64_t>(warp.local.data() + l * kernel_.local_bytes +
                                          int64_t(c.value));
          break;
        case Kind::kDynamicShared:
          value = uint64_t(kernel_.shared_bytes);
          break;
      }
      warp.set(c.row, l, value);
    }
  }

  // ---- control ----

  // Lanes that stand at the lowest place, and may go on.
  uint32_t choose(const Warp& warp, int32_t& at) const {
    const uint32_t free = warp.live & ~warp.waiting;
    if (free == 0)
      throw Error(concat("PTX: ", kernel_.name, ": lanes of warp ", warp.index,
                         " wait for each other at different instructions"));
    at = std::numeric_limits<int32_t>::max();
    for_lanes(free, [&](int l) { at = std::min(at, warp.pc[size_t(l)]); });
    uint32_t group = 0;
    for_lanes(warp.live, [&](int l) { group |= uint32_t(warp.pc[size_t(l)] == at) << l; });
    return group;
  }

  void run(Warp& warp) {
    int32_t at = 0;
    uint32_t group = choose(warp, at);
    const auto leave = [&] { for_lanes(group, [&](int l) { warp.pc[size_t(l)] = at; }); };
    for (int steps = 0; steps < kQuantum; ++steps) {
      const PtxInstruction& in = kernel_.instructions[size_t(at)];
      uint32_t active = group;
      if (in.guard.at >= 0) {
        const uint32_t guard = warp.predicate(in.guard);
        active &= in.guard_negated ? ~guard : guard;
      }
      if (together(in.code) && group != warp.live) {
        leave();
        warp.waiting |= group;
        group = choose(warp, at);
        continue;
      }
      warp.waiting &= ~group;
      if (in.code == kBranch) {
        if (active == group) {
          at = in.target;
          if (group == warp.live) continue;
        } else if (active == 0) {
          ++at;
          if (group == warp.live) continue;
        } else {
          for_lanes(group & ~active, [&](int l) { warp.pc[size_t(l)] = at + 1; });
          for_lanes(active, [&](int l) { warp.pc[size_t(l)] = in.target; });
          group = choose(warp, at);
          continue;
        }
        leave();
        group = choose(warp, at);
        continue;
      }
      if (in.code == kReturn) {
        at += 1;
        leave();
        warp.live &= ~active;
        ++events_;
        if (warp.live == 0) return;
        group = choose(warp, at);
        continue;
      }
      try {
        if (active != 0) execute(warp, in, active);
      } catch (const std::exception& e) {
        throw Error(concat("PTX: ", kernel_.name, ", warp ", warp.index, ", line ", in.line, " (",
                           in.op, "): ", e.what()));
      }
      ++at;
      if (yields_ || warp.blocked) {
        yields_ = false;
        warp.stopped_at = at - 1;
        leave();
        return;
      }
      if (group != warp.live) {  // others may stand there already
        leave();
        group = choose(warp, at);
      }
    }
    ++events_;  // still busy
    leave();
  }

  // Instructions that a whole warp executes together.
  static bool together(int code) {
    switch (code) {
      case kShuffle:
      case kVoteAny:
      case kBarSync:
      case kBarArrive:
      case kWarpSync:
      case kMma:
      case kLdmatrix:
      case kWgmma:
      case kWgmmaCommit:
      case kWgmmaWait:
        return true;
      default:
        return false;
    }
  }

  // ---- one instruction ----

  template <class F>
  static void by_type(PtxType type, F f) {
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
  static const Row<T>* in_row(Warp& w, const PtxOperand& o) {
    if (o.row.bytes != sizeof(Row<T>)) throw Error("an operand of another width");
    return reinterpret_cast<const Row<T>*>(w.registers.get() + o.row.at);
  }
  template <class T>
  static Row<T>* out_row(Warp& w, const PtxOperand& o) {
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
    for_lanes(m,
              [&](int l) { d[l] = bits<Row<R>>(R(f(bits<T>(w.value(in.operands[1].row, l))))); });
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
  static T wrapping(T a, T b, F f) {
    if constexpr (std::is_floating_point_v<T> || std::is_same_v<T, _Float16>) {
      return f(a, b);
    } else {
      using U = std::make_unsigned_t<T>;
      using Wide = std::common_type_t<U, unsigned>;
      return T(U(f(Wide(U(a)), Wide(U(b)))));
    }
  }

  void set_predicate(Warp& w, PtxRow row, uint32_t m, uint32_t value) {
    uint32_t& p = w.predicate(row);
    p = (p & ~m) | (value & m);
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
  static bool compare(std::string_view how, T a, T b) {
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

  void execute(Warp& w, const PtxInstruction& in, uint32_t m) {
    const auto& o = in.operands;
    if (in.type == PtxType::kPred && in.code != kVoteAny && in.code != kBarrierTry)
      return predicates(w, in, m);
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
      case kToShared:
        return unary<uint64_t>(
            w, in, m, [&](uint64_t x) { return x - std::bit_cast<uint64_t>(shared_.data()); });
      case kFromShared:
        return unary<uint64_t>(
            w, in, m, [&](uint64_t x) { return x + std::bit_cast<uint64_t>(shared_.data()); });
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
      case kLoad:
      case kStore:
        return access(w, in, m);
      case kAtomicAdd: {
        static std::mutex atomics;
        const std::scoped_lock lock(atomics);
        return for_lanes(m, [&](int l) {
          auto* const at = pointer<uint64_t>(w.value(o[1].row, l) + uint64_t(o[1].offset));
          w.set(o[0].row, l, *at);
          *at += w.value(o[2].row, l);
        });
      }
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
      case kTrap:
        throw Error("a trap");
      case kNothing:
      case kWarpSync:
        return;
      case kBarSync:
        return sync(w, in);
      case kBarArrive:
        return arrive(w, in);
      case kMma:
        return multiply(w, in);
      case kLdmatrix:
        return load_matrices(w, in);
      case kCopyAsync:
        return copy_async(w, in, m);
      case kCommitCopies:
        return for_lanes(m, [&](int l) { w.copies[size_t(l)].commit(); });
      case kWaitCopies:
        return for_lanes(m, [&](int l) {
          w.copies[size_t(l)].wait(o.empty() ? 0 : size_t(w.value(o[0].row, l)));
        });
      case kBarrierInit:
        return for_lanes(m, [&](int l) {
          const auto count = int(w.value(o[1].row, l));
          const auto address = uint32_t(w.value(o[0].row, l));
          check(address % 8 == 0, "a barrier at ", address);
          shared_at(address, 8);
          barriers_[address] = {.arrivals = count, .pending = count};
          ++events_;
        });
      case kBarrierArrive:
        return for_lanes(m, [&](int l) { arrive_at(uint32_t(w.value(o.at(1).row, l)), 0); });
      case kBarrierExpect:
        return for_lanes(m, [&](int l) {
          arrive_at(uint32_t(w.value(o.at(1).row, l)), int64_t(w.value(o.at(2).row, l)));
        });
      case kBarrierTry:
        return try_wait(w, in, m);
      case kBulkCopy:
        return for_lanes(m, [&](int l) { bulk_copy(w, in, l); });
      case kWgmma: {
        const auto product = [this, &w, &in] { group_multiply(w, in); };
        if (launch_.order.products_late)
          w.products.open.emplace_back(product);
        else
          product();
        return;
      }
      case kWgmmaCommit:
        return w.products.commit();
      case kWgmmaWait:
        return w.products.wait(size_t(w.value(o.at(0).row, 0)));
      case kBranch:
      case kReturn:
        break;
    }
    throw Error("not an instruction of this kind");
  }

  static float flushed(float x) {
    return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
  }

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

  // ---- memory ----

  template <class T>
  static T* pointer(uint64_t address) {
    check(address % sizeof(T) == 0, "an address that is not aligned to ", sizeof(T),
          " bytes: ", address);
    return std::bit_cast<T*>(address);
  }
  std::byte* shared_at(uint64_t at, int64_t bytes) {
    check(at + uint64_t(bytes) <= shared_.size(), "byte ", at, " of ", shared_.size(),
          " of shared memory");
    return shared_.data() + at;
  }
  std::byte* place(uint64_t address, PtxSpace space, int64_t bytes) {
    check(address % uint64_t(bytes) == 0, "address ", address, " is not aligned to ", bytes,
          " bytes");
    return space == PtxSpace::kShared ? shared_at(address, bytes)
                                      : std::bit_cast<std::byte*>(address);
  }

  void access(Warp& w, const PtxInstruction& in, uint32_t m) {
    const bool loads = in.code == kLoad;
    const PtxOperand& address = in.operands[loads ? 1 : 0];
    const PtxOperand& data = in.operands[loads ? 0 : 1];
    const int each = bytes_of(in.type);
    const bool is_signed =
        in.type == PtxType::kS8 || in.type == PtxType::kS16 || in.type == PtxType::kS32;
    for_lanes(m, [&](int l) {
      std::byte* at = place(w.value(address.row, l) + uint64_t(address.offset), in.space,
                            int64_t{each} * in.vector);
      for (int i = 0; i < in.vector; ++i, at += each) {
        const PtxRow row = in.vector == 1 ? data.row : data.parts.at(size_t(i)).row;
        uint64_t value = 0;
        if (loads) {
          std::memcpy(&value, at, size_t(each));
          if (is_signed) value = uint64_t(int64_t(value << (64 - 8 * each)) >> (64 - 8 * each));
          w.set(row, l, value);
        } else {
          value = w.value(row, l);
          std::memcpy(at, &value, size_t(each));
        }
      }
    });
  }

  void copy_async(Warp& w, const PtxInstruction& in, uint32_t m) {
    const auto& o = in.operands;
    for_lanes(m, [&](int l) {
      const uint64_t into = w.value(o[0].row, l) + uint64_t(o[0].offset);
      const uint64_t from = w.value(o[1].row, l) + uint64_t(o[1].offset);
      const auto bytes = o.size() > 3 ? w.value(o[3].row, l) : 16;
      check(w.value(o[2].row, l) == 16 && bytes <= 16, "cp.async.cg takes 16 bytes");
      std::byte* const to = place(into, PtxSpace::kShared, 16);
      check(bytes == 0 || from % 16 == 0, "a source that is not aligned: ", from);
      const auto copy = [to, from, bytes] {
        std::memset(to, 0, 16);
        if (bytes > 0) std::memcpy(to, std::bit_cast<const std::byte*>(from), bytes);
      };
      if (launch_.order.copies_land_late)
        w.copies[size_t(l)].open.emplace_back(copy);
      else
        copy();
    });
  }

  // ---- between lanes ----

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

  void sync(Warp& w, const PtxInstruction& in) {
    const int id = in.operands.empty() ? 0 : int(w.value(in.operands[0].row, 0));
    NamedBarrier& barrier = named_[id];
    barrier.waiting.push_back(w.index);
    w.blocked = true;
    joined(barrier,
           in.operands.size() > 1 ? int(w.value(in.operands[1].row, 0)) : int(launch_.block));
  }
  void arrive(Warp& w, const PtxInstruction& in) {
    joined(named_[int(w.value(in.operands[0].row, 0))], int(w.value(in.operands.at(1).row, 0)));
  }
  void joined(NamedBarrier& barrier, int threads) {
    ++events_;
    barrier.arrived += kLanes;
    check(barrier.arrived <= threads, "a barrier of ", threads, " threads has ", barrier.arrived);
    if (barrier.arrived < threads) return;
    for (const int i : barrier.waiting) warps_[size_t(i)].blocked = false;
    barrier = {};
  }

  // PTX ISA, mma.m16n8k16: rows of A and C are groups of four lanes.
  void multiply(Warp& w, const PtxInstruction& in) {
    const bool bf16 = in.has("bf16");
    const auto value = [&](PtxRow row, int lane, int half) {
      const auto x = uint16_t(w.words(row)[lane] >> (16 * half));
      return bf16 ? from_bf16(x) : from_fp16(x);
    };
    std::array<float, size_t(16) * 16> a{};
    std::array<float, size_t(16) * 8> b{};
    for (int l = 0; l < kLanes; ++l)
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 4; ++i) {
          const int row = l / 4 + (i & 1) * 8, col = l % 4 * 2 + half + (i >> 1) * 8;
          a[size_t(row * 16 + col)] = value(in.operands[1].parts.at(size_t(i)).row, l, half);
        }
        for (int i = 0; i < 2; ++i)
          b[size_t((l % 4 * 2 + half + i * 8) * 8 + l / 4)] =
              value(in.operands[2].parts.at(size_t(i)).row, l, half);
      }
    for (int l = 0; l < kLanes; ++l)
      for (int i = 0; i < 4; ++i) {
        const int row = l / 4 + i / 2 * 8, col = l % 4 * 2 + i % 2;
        float sum = w.real(in.operands[3].parts.at(size_t(i)).row, l);
        for (int k = 0; k < 16; ++k) sum += a[size_t(row * 16 + k)] * b[size_t(k * 8 + col)];
        pending_[size_t(l)][size_t(i)] = sum;
      }
    for (int l = 0; l < kLanes; ++l)
      for (int i = 0; i < 4; ++i)
        w.words(in.operands[0].parts[size_t(i)].row)[l] =
            bits<uint32_t>(pending_[size_t(l)][size_t(i)]);
  }

  // PTX ISA, ldmatrix: lane 8 i + r says where row r of matrix i lies.
  void load_matrices(Warp& w, const PtxInstruction& in) {
    const bool transposed = in.has("trans");
    const PtxOperand& address = in.operands[1];
    std::array<std::array<uint16_t, 8>, kLanes> rows{};
    for (int l = 0; l < kLanes; ++l)
      std::memcpy(rows[size_t(l)].data(),
                  place(w.value(address.row, l) + uint64_t(address.offset), PtxSpace::kShared, 16),
                  16);
    for (int l = 0; l < kLanes; ++l)
      for (int i = 0; i < 4; ++i) {
        const auto element = [&](int e) -> uint32_t {
          return transposed ? rows[size_t(8 * i + l % 4 * 2 + e)][size_t(l / 4)]
                            : rows[size_t(8 * i + l / 4)][size_t(l % 4 * 2 + e)];
        };
        w.words(in.operands[0].parts.at(size_t(i)).row)[l] = element(0) | element(1) << 16;
      }
  }

  // ---- Hopper ----

  Barrier& barrier_at(uint32_t address) {
    const auto found = barriers_.find(address);
    check(found != barriers_.end(), "no barrier was made at ", address);
    return found->second;
  }
  void complete(Barrier& b) {
    ++events_;
    if (b.pending > 0 || b.bytes != 0) return;
    b.pending = b.arrivals;
    ++b.phase;
  }
  void arrive_at(uint32_t address, int64_t expected) {
    Barrier& b = barrier_at(address);
    b.bytes += expected;
    check(--b.pending >= 0, "too many arrivals at the barrier at ", address);
    complete(b);
  }
  void try_wait(Warp& w, const PtxInstruction& in, uint32_t m) {
    uint32_t done = 0;
    for_lanes(m, [&](int l) {
      Barrier& b = barrier_at(uint32_t(w.value(in.operands[1].row, l)));
      const auto parity = int(w.value(in.operands[2].row, l));
      const auto over = [&] { return b.phase % 2 != parity; };
      if (!over()) {
        const auto copies = std::exchange(b.copies, {});
        for (const auto& copy : copies) copy();
      }
      done |= uint32_t(over()) << l;
    });
    set_predicate(w, in.operands[0].row, m, done);
    if (done != m) yields_ = true;
  }

  // Byte of shared memory for byte `at` of a 128-byte swizzle: bits 4 to 6 xor bits 7 to 9 of the
  // address.
  static uint64_t swizzled(uint64_t at) { return at ^ (at >> 7 & 7) << 4; }

  void bulk_copy(Warp& w, const PtxInstruction& in, int lane) {
    const auto& o = in.operands;
    const auto into = uint32_t(w.value(o[0].row, lane)),
               barrier = uint32_t(w.value(o[2].row, lane));
    PtxTensorMap map;
    const uint64_t map_at = w.value(o[1].row, lane) + uint64_t(o[1].offset);
    check(map_at % 64 == 0 && into % 128 == 0, "a bulk copy of a map at ", map_at, " into ", into);
    std::memcpy(&map, std::bit_cast<const std::byte*>(map_at), sizeof map);
    check(map.valid == PtxTensorMap::kValid, "not a tensor map");
    std::array<int64_t, PtxTensorMap::kMostDims> first{};
    for (size_t d = 0; d < first.size(); ++d)
      first[d] = int32_t(uint32_t(w.value(o[1].parts.at(d).row, lane)));
    const auto copy = [this, map, first, into, barrier] {
      int64_t elements = 1;
      for (const uint16_t n : map.box) elements *= n;
      for (int64_t e = 0; e < elements; ++e) {
        int64_t rest = e, offset = 0;
        bool inside = true;
        for (size_t d = 0; d < first.size(); ++d) {
          const int64_t at = first[d] + rest % map.box[d];
          rest /= map.box[d];
          inside = inside && at >= 0 && at < int64_t{map.size[d]};
          offset += at * (d == 0 ? 2 : int64_t(map.stride[d - 1]));
        }
        uint16_t value = 0;
        if (inside)
          std::memcpy(&value, std::bit_cast<const std::byte*>(map.address + uint64_t(offset)), 2);
        std::memcpy(shared_at(swizzled(into + uint64_t(e) * 2), 2), &value, 2);
      }
      Barrier& b = barrier_at(barrier);
      b.bytes -= elements * 2;
      complete(b);
    };
    if (launch_.order.copies_land_late)
      barrier_at(barrier).copies.emplace_back(copy);
    else
      copy();
  }

  // PTX ISA, matrix descriptors of wgmma.
  struct Tile {
    uint64_t start, leading, stride;
    explicit Tile(uint64_t d)
        : start((d & 0x3FFF) << 4),
          leading((d >> 16 & 0x3FFF) << 4),
          stride((d >> 32 & 0x3FFF) << 4) {
      check(d >> 62 == 1 && (d >> 49 & 7) == 0, "not a 128-byte swizzle with base offset 0");
    }
  };
  float shared_value(uint64_t at, bool bf16) {
    uint16_t x = 0;
    std::memcpy(&x, shared_at(swizzled(at), 2), 2);
    return bf16 ? from_bf16(x) : from_fp16(x);
  }

  // PTX ISA, wgmma.m64nNk16: warp i of a warpgroup has rows 16 i to 16 i + 15.
  void group_multiply(Warp& w, const PtxInstruction& in) {
    const bool bf16 = in.has("bf16");
    const int n = std::atoi(in.words[4].c_str() + 4);
    const auto& o = in.operands;
    const bool from_registers = !o[1].parts.empty();
    const Tile b(w.value(o[2].row, 0));
    const bool add = w.value(o[3].row, 0) != 0;
    const auto number = [&](size_t i) { return int(w.value(o.at(i).row, 0)); };
    check(number(4) == 1 && number(5) == 1, "a negated operand");
    const bool b_along_rows = number(from_registers ? 6 : 7) == 1;  // N is the contiguous dimension
    check(from_registers || number(6) == 0, "a transposed A");
    std::array<float, size_t(16) * 16> a{};
    if (from_registers) {
      for (int l = 0; l < kLanes; ++l)
        for (int i = 0; i < 4; ++i)
          for (int half = 0; half < 2; ++half) {
            const auto x = uint16_t(w.words(o[1].parts.at(size_t(i)).row)[l] >> (16 * half));
            a[size_t((l / 4 + (i & 1) * 8) * 16 + l % 4 * 2 + half + (i >> 1) * 8)] =
                bf16 ? from_bf16(x) : from_fp16(x);
          }
    } else {
      const Tile t(w.value(o[1].row, 0));
      for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 16; ++k) {
          const auto r = uint64_t(w.index % 4 * 16 + row);
          a[size_t(row * 16 + k)] =
              shared_value(t.start + r / 8 * t.stride + r % 8 * 128 + uint64_t(k) * 2, bf16);
        }
    }
    std::vector<float> right(size_t(16) * size_t(n));
    for (int k = 0; k < 16; ++k)
      for (int col = 0; col < n; ++col) {
        const auto c = uint64_t(col), kk = uint64_t(k);
        right[size_t(k * n + col)] = shared_value(
            b_along_rows
                ? b.start + kk / 8 * b.stride + kk % 8 * 128 + c / 64 * b.leading + c % 64 * 2
                : b.start + c / 8 * b.stride + c % 8 * 128 + kk * 2,
            bf16);
      }
    for (int tile = 0; tile < n / 8; ++tile)
      for (int i = 0; i < 4; ++i) {
        uint32_t* const c = w.words(o[0].parts.at(size_t(tile * 4 + i)).row);
        for (int l = 0; l < kLanes; ++l) {
          const int row = l / 4 + i / 2 * 8, col = tile * 8 + l % 4 * 2 + i % 2;
          float sum = add ? bits<float>(c[l]) : 0.0f;
          for (int k = 0; k < 16; ++k) sum += a[size_t(row * 16 + k)] * right[size_t(k * n + col)];
          c[l] = bits<uint32_t>(sum);
        }
      }
  }

  const PtxKernel& kernel_;
  const PtxLaunch& launch_;
  std::vector<std::byte> shared_;
  std::deque<Warp> warps_;
  std::map<uint32_t, Barrier> barriers_;
  std::map<int, NamedBarrier> named_;
  std::array<std::array<float, 4>, kLanes> pending_{};
  int64_t events_ = 0;  // whatever another warp may wait for
  bool yields_ = false;
};

}  // namespace

void PtxMachine::load(std::string_view text) {
  for (auto& [name, kernel] : parse_ptx(text)) {
    for (PtxInstruction& in : kernel.instructions) {
      in.code = code_of(in);
      require_known_words(in);
    }
    kernels_[name] = std::move(kernel);
  }
}

const PtxKernel& PtxMachine::kernel(const std::string& name) const {
  const auto found = kernels_.find(name);
  check(found != kernels_.end(), "no PTX of kernel ", name);
  return found->second;
}

std::vector<std::byte> PtxMachine::gather(const PtxKernel& kernel, void* const* arguments) {
  std::vector<std::byte> all(static_cast<size_t>(kernel.parameter_bytes));
  for (size_t i = 0; i < kernel.parameters.size(); ++i)
    std::memcpy(all.data() + kernel.parameters[i].at, arguments[i],
                size_t(kernel.parameters[i].bytes));
  return all;
}

void PtxMachine::launch(const PtxKernel& kernel, const PtxLaunch& launch,
                        std::span<const std::byte> parameters) const {
  check(launch.grid > 0 && launch.block > 0, "a launch of nothing");
  check(kernel.threads == 0 || int(launch.block) <= kernel.threads, "PTX: ", kernel.name, " takes ",
        kernel.threads, " threads, not ", launch.block);
  check(int64_t(parameters.size()) == kernel.parameter_bytes, "PTX: parameters of ",
        parameters.size(), " bytes, not ", kernel.parameter_bytes);
  // Aligned as the device does it.
  std::vector<std::max_align_t> aligned(parameters.size() / sizeof(std::max_align_t) + 1);
  std::memcpy(aligned.data(), parameters.data(), parameters.size());
  for (unsigned block = 0; block < launch.grid; ++block)
    BlockRun(kernel, launch, reinterpret_cast<const std::byte*>(aligned.data()), block).run();
}

}  // namespace longnet
