// A block's warps and what they share: memory, barriers, copies under way; and the instructions of
// tensor cores.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "emulation/ptx_machine.h"
#include "emulation/ptx_shared.h"
#include "emulation/ptx_warp.h"

namespace longnet::ptx {

struct Barrier {  // mbarrier
  int number = 0, arrivals = 0, pending = 0, phase = 0;
  int64_t bytes = 0;
  int unseen = 0;  // bulk copies that nobody has waited for yet
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
  std::pair<const std::byte*, const std::byte*> known_buffers[4] = {};  // touched before
  unsigned next_known = 0;
  int64_t proxy_fences = 0;
  int64_t events = 0;   // whatever another warp may wait for
  bool yields = false;  // the last instruction waits in vain: others should have their turn
};

// ---- matrices: what tensor cores and their loads do, by the PTX manual's pictures of fragments ----

// Byte of shared memory for byte `at` of a 128-byte swizzle: bits 4 to 6 xor bits 7 to 9 of the
// address.
inline uint64_t swizzled(uint64_t at) { return at ^ (at >> 7 & 7) << 4; }

void multiply(Warp& warp, const PtxInstruction& in);                             // mma.m16n8k16
void load_matrices(Warp& warp, const PtxInstruction& in, SharedMemory& shared);  // ldmatrix.x4

// wgmma.m64nNk16: the product, to be done between now and its wait. Throws Error where lanes do not
// agree on the operands that are no registers, or a wgmma.fence is missing.
std::function<void()> group_product(Warp& warp, const PtxInstruction& in, SharedMemory& shared);

}  // namespace longnet::ptx
