// The lanes of a warp and their registers, for those who execute its instructions.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "emulation/ptx_program.h"

namespace longnet::ptx {

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAll = 0xFFFFFFFF;

template <class To, class From>
To bits(From from) {
  To to{};
  std::memcpy(&to, &from, std::min(sizeof to, sizeof from));
  return to;
}

inline float from_bf16(uint16_t x) { return bits<float>(uint32_t(x) << 16); }
inline float from_fp16(uint16_t x) { return float(bits<_Float16>(x)); }
inline uint16_t to_bf16(float x) {  // to nearest, ties to even
  const auto b = bits<uint32_t>(x);
  if (std::isnan(x)) return 0x7FFF;
  return uint16_t((b + 0x7FFF + (b >> 16 & 1)) >> 16);
}
inline uint16_t to_fp16(float x) {
  if (std::isnan(x)) return 0x7FFF;
  return bits<uint16_t>(_Float16(x));
}

template <class F>
void for_lanes(uint32_t mask, F f) {
  if (mask == kAll) {
    for (int l = 0; l < kLanes; ++l) f(l);
  } else {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) f(std::countr_zero(rest));
  }
}

// Asynchronous work that was issued and has not completed: the open group, and committed groups.
struct Asynchronous {
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
  bool empty() const { return open.empty() && groups.empty(); }
};

struct Warp {
  std::unique_ptr<std::byte[]> registers;
  std::array<int32_t, kLanes> pc{};
  uint32_t live = kAll, waiting = 0;
  int index = 0;
  int32_t stopped_at = 0;  // the instruction that ended its turn
  bool blocked = false;    // at a named barrier
  std::vector<std::byte> local{};
  std::array<Asynchronous, kLanes> copies{};
  Asynchronous products{};

  // When instructions wrote rows of registers, products of wgmma aside, and when the last
  // wgmma.fence was: in steps of this warp.
  std::vector<uint32_t> written{};
  uint32_t steps = 0, fenced = 0;
  uint32_t written_at(PtxRow row) const { return row.at < 0 ? 0 : written[size_t(row.at) / 32]; }
  void note_write(const PtxOperand& target) {
    if (target.row.at >= 0) written[size_t(target.row.at) / 32] = steps;
    for (const PtxOperand& part : target.parts) note_write(part);
  }

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

// ---- instructions by name, and the functions that execute them ----

struct Block;
// Executes an instruction for the lanes of `mask`. Throws Error for whatever is wrong with it.
using Execute = void (*)(Block&, Warp&, const PtxInstruction&, uint32_t mask);

struct Rule {
  enum class Kind { kEachLane, kWholeWarp, kProduct, kBranch, kReturn };
  std::string_view name;  // "mul.wide": of instructions that begin with these words; longest first
  Execute execute = nullptr;  // null: refused
  Kind kind = Kind::kEachLane;
  bool whole_warp() const { return kind == Kind::kWholeWarp || kind == Kind::kProduct; }
};
// Of instructions that touch nothing but a warp's registers, and of the others.
std::span<const Rule> arithmetic_rules();
std::span<const Rule> block_rules();

inline void set_predicate(Warp& w, PtxRow row, uint32_t mask, uint32_t value) {
  uint32_t& p = w.predicate(row);
  p = (p & ~mask) | (value & mask);
}

}  // namespace longnet::ptx
