// A block's warps and what they share: memory, barriers, copies under way.
#pragma once
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "emulation/ptx_instructions.h"
#include "emulation/ptx_machine.h"
#include "emulation/ptx_shared.h"
#include "emulation/ptx_warp.h"

namespace longnet::ptx {

class Block {
 public:
  // `parameters` outlive it.
  Block(const PtxKernel& kernel, const PtxLaunch& launch, const std::byte* parameters,
        unsigned number);
  std::deque<Warp>& warps() { return warps_; }
  // Returns the rules of instructions that need more than a warp's registers.
  static std::span<const Rule> rules();
  // Counts whatever another warp may wait for.
  int64_t& events() { return events_; }
  // Whether the last instruction waits in vain, so that others should have their turn.
  bool take_yield() { return std::exchange(yields_, false); }
  // Throws Error when something is still under way.
  void require_all_done(const std::string& kernel) const;

 private:
  using In = const PtxInstruction&;
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

  void fill(Warp& warp, const PtxConstant& c, const std::byte* parameters, unsigned block);
  static uint64_t address64(Warp& w, const PtxOperand& o, int lane) {
    return w.value(o.row, lane) + uint64_t(o.offset);
  }
  static uint32_t address(Warp& w, const PtxOperand& o, int lane) {
    return uint32_t(address64(w, o, lane));
  }
  // Throws Error for an address of global memory outside of the device's buffers.
  template <class T>
  T* reachable(uint64_t at, int64_t bytes);
  void load(Warp& w, In in, uint32_t m);
  void store(Warp& w, In in, uint32_t m);
  void add_atomically(Warp& w, In in, uint32_t m);
  void copy_async(Warp& w, In in, uint32_t m);
  void commit_copies(Warp& w, In in, uint32_t m);
  void wait_for_copies(Warp& w, In in, uint32_t m);
  void matrices(Warp& w, In in, uint32_t m);
  void multiply(Warp& w, In in, uint32_t m);
  void issue_product(Warp& w, In in, uint32_t m);
  void commit_products(Warp& w, In in, uint32_t m);
  void wait_for_products(Warp& w, In in, uint32_t m);
  void fence_group(Warp& w, In in, uint32_t m);
  void fence_proxy(Warp& w, In in, uint32_t m);
  void fence_map(Warp& w, In in, uint32_t m);
  // Adds `work` to the open group. If not `late`, it is done here; the kernel must still wait.
  template <class F>
  static void start(Asynchronous& list, bool late, const F& work) {
    if (!late) work();
    list.open.emplace_back(late ? std::function<void()>(work) : [] {});
  }
  void sync(Warp& w, In in, uint32_t m);
  void arrive(Warp& w, In in, uint32_t m);
  void join(Warp& w, NamedBarrier& barrier, int threads);
  void make_barriers(Warp& w, In in, uint32_t m);
  void arrive_at_barriers(Warp& w, In in, uint32_t m);  // with or without bytes that are expected
  void try_wait(Warp& w, In in, uint32_t m);
  Barrier& barrier_at(Warp& w, uint32_t address);
  void complete(Barrier& b);
  void bulk_copies(Warp& w, In in, uint32_t m);
  void bulk_copy(Warp& w, In in, int lane);
  // The box at `first`; what is outside the tensor is zero. Pieces of 16 bytes keep together.
  void land(const PtxTensorMap& map, const std::array<int64_t, PtxTensorMap::kMostDims>& first,
            uint32_t into, int barrier, const VectorClock& then);

  const PtxKernel& kernel_;
  const PtxLaunch& launch_;
  int64_t dynamic_at_;  // byte of shared memory
  SharedMemory shared_;
  std::deque<Warp> warps_;
  std::map<uint32_t, Barrier> barriers_;
  std::map<int, NamedBarrier> named_;
  std::set<uint64_t> fenced_maps_;
  std::pair<const std::byte*, const std::byte*> known_buffers_[4] = {};  // touched before
  unsigned next_known_ = 0;
  int64_t proxy_fences_ = 0;
  int64_t events_ = 0;
  bool yields_ = false;
};

}  // namespace longnet::ptx
