// The lanes of a warp and their registers; a block's warps and what they share: memory, barriers,
// copies under way; the tables of instructions, and the functions that execute them.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <ranges>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/random.h"
#include "emulation/ptx_machine.h"

namespace longnet::ptx {

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAll = 0xFFFFFFFF;

template <class To, class From>
To bits(From from) {
  To to{};
  std::memcpy(&to, &from, std::min(sizeof to, sizeof from));
  return to;
}

inline uint16_t to_bf16(float x) { return std::isnan(x) ? 0x7FFF : bf16_bits(x); }

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
  std::array<Asynchronous, kLanes> copies{};
  Asynchronous products{};

  // Steps of this warp in which instructions wrote rows of registers, products of wgmma aside, and
  // the step of the last wgmma.fence.
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
  std::string_view name;      // "mul.wide": instructions that begin with these words; longest first
  Execute execute = nullptr;  // null: a branch or a return
  Kind kind = Kind::kEachLane;
  bool whole_warp() const { return kind == Kind::kWholeWarp || kind == Kind::kProduct; }
};
inline constexpr auto kWholeWarp = Rule::Kind::kWholeWarp;
// Rules of instructions that use nothing but a warp's registers, and of the others.
std::span<const Rule> arithmetic_rules();
std::span<const Rule> block_rules();

inline void set_predicate(Warp& w, PtxRow row, uint32_t mask, uint32_t value) {
  uint32_t& p = w.predicate(row);
  p = (p & ~mask) | (value & mask);
}

// Vector clock: for each agent (a warp, or a barrier's bulk copies) the time up to which its
// accesses are known.
class VectorClock {
 public:
  uint32_t of(int agent) const { return size_t(agent) < done_.size() ? done_[size_t(agent)] : 0; }
  void set(int agent, uint32_t done);
  void join(const VectorClock& other);

 private:
  std::vector<uint32_t> done_;
};

// Shared memory of a block, with a check for races between warps.
//
// Every access is compared with those before it: two of different warps, one of them writing, must
// be ordered by a barrier between them, or it is a race, whatever the values say (vector clocks, as
// in FastTrack, Flanagan and Freund 2009). A bulk copy writes at any time between its issue and its
// barrier's completion; the copies of one barrier are an agent of their own.
class SharedMemory {
 public:
  SharedMemory(int64_t bytes, int warps);

  // Places to read from, or write to. Throw Error outside of the memory, and for a race.
  std::byte* read(uint64_t at, int64_t bytes, int warp);
  std::byte* write(uint64_t at, int64_t bytes, int warp);
  // Writes by a bulk copy on barrier `number` that was issued at the clock `then`.
  std::byte* write_bulk(uint64_t at, int64_t bytes, int number, const VectorClock& then);

  const VectorClock& clock(int warp) const { return clocks_[size_t(warp)]; }
  // Returns the warp's clock: a warp that acquires it comes after the warp's accesses so far.
  VectorClock release(int warp);
  VectorClock release_bulk(int number, const VectorClock& then);
  void acquire(int warp, const VectorClock& clock) { clocks_[size_t(warp)].join(clock); }

 private:
  // The last write to `grain_` bytes: the agent, and its time. The last reads are in `reads_`.
  struct Cell {
    int writer = -1;
    uint32_t written = 0;
  };
  std::byte* place(uint64_t at, int64_t bytes);
  auto cells_of(uint64_t at, int64_t bytes) const {
    const auto grain = uint64_t(grain_);
    return std::views::iota(at / grain, (at + uint64_t(bytes) - 1) / grain + 1);
  }
  [[noreturn]] void race(uint64_t at, int agent, const char* does, int other,
                         const char* did) const;
  std::byte* write(uint64_t at, int64_t bytes, int agent, uint32_t now, const VectorClock& known);

  int warps_;
  int64_t grain_;  // bytes of a cell
  std::vector<std::byte> memory_;
  std::vector<Cell> cells_;
  std::vector<uint32_t> reads_;  // [cell][warp]
  std::vector<VectorClock> clocks_;
  std::map<int, uint32_t> bulk_copies_;  // copies that have arrived, by barrier
};

struct Barrier {  // mbarrier
  int number = 0, arrivals = 0, pending = 0, phase = 0;
  int64_t bytes = 0;
  int unseen = 0;  // bulk copies that no warp has waited for yet
  int64_t made_at = 0;
  std::vector<std::function<void()>> copies{};
  VectorClock gathered{}, done{};  // in this phase, and in those that are over
};

struct NamedBarrier {
  int arrived = 0, threads = 0;
  std::vector<int> waiting{};
  VectorClock gathered{};
};

struct Block {
  // `parameters` outlive it.
  Block(const PtxKernel& of, const PtxLaunch& how, const std::byte* parameters, unsigned number);
  // Throws Error when something is still under way.
  void require_all_done() const;

  const PtxKernel& kernel;
  const PtxLaunch& launch;
  int64_t dynamic_at;  // byte of shared memory
  SharedMemory shared;
  std::deque<Warp> warps;
  std::map<uint32_t, Barrier> barriers;
  std::map<int, NamedBarrier> named;
  std::set<uint64_t> fenced_maps;
  std::pair<const std::byte*, const std::byte*> known_buffers[4] = {};  // buffers accessed before
  unsigned next_known = 0;
  int64_t proxy_fences = 0;
  int64_t events = 0;   // number of events that another warp may wait for
  bool yields = false;  // the last instruction must wait: other warps run next
};

// ---- matrices: tensor cores and their loads, by the PTX manual's pictures of fragments ----

// Byte of shared memory for byte `at` of a 128-byte swizzle: bits 4 to 6 xor bits 7 to 9 of the
// address.
inline uint64_t swizzled(uint64_t at) { return at ^ (at >> 7 & 7) << 4; }

void multiply(Warp& warp, const PtxInstruction& in);                             // mma.m16n8k16
void load_matrices(Warp& warp, const PtxInstruction& in, SharedMemory& shared);  // ldmatrix.x4

// wgmma.m64nNk16: the product, to be done between now and its wait. Throws Error where lanes do not
// agree on the operands that are no registers, or a wgmma.fence is missing.
std::function<void()> group_product(Warp& warp, const PtxInstruction& in, SharedMemory& shared);

}  // namespace longnet::ptx
