// A block's warps and what they share: memory, barriers, copies under way.
#pragma once
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

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
  // One instruction, but for branches and returns. Throws Error for whatever is wrong with it.
  void execute(Warp& warp, const PtxInstruction& in, uint32_t mask);
  // Counts whatever another warp may wait for.
  int64_t& events() { return events_; }
  // Whether the last instruction waits in vain, so that others should have their turn.
  bool take_yield() { return std::exchange(yields_, false); }
  // Throws Error when something is still under way.
  void require_all_done(const std::string& kernel) const;

 private:
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
  struct Place {
    uint64_t at;
    bool shared;
  };
  static uint64_t address64(Warp& w, const PtxOperand& o, int lane) {
    return w.value(o.row, lane) + uint64_t(o.offset);
  }
  static uint32_t address(Warp& w, const PtxOperand& o, int lane) {
    return uint32_t(address64(w, o, lane));
  }
  Place place(uint64_t address, PtxSpace space, int64_t bytes);
  void access(Warp& w, const PtxInstruction& in, uint32_t m);
  void add_atomically(Warp& w, const PtxInstruction& in, uint32_t m);
  void copy_async(Warp& w, const PtxInstruction& in, uint32_t m);
  // What is done at once must be waited for all the same.
  template <class F>
  static void start(Asynchronous& list, bool late, const F& work) {
    if (!late) work();
    list.open.emplace_back(late ? std::function<void()>(work) : [] {});
  }
  void sync(Warp& w, const PtxInstruction& in);
  void arrive(Warp& w, const PtxInstruction& in);
  void joined(Warp& w, NamedBarrier& barrier, int threads);
  void make_barrier(Warp& w, uint32_t address, int arrivals);
  Barrier& barrier_at(Warp& w, uint32_t address);
  void complete(Barrier& b);
  void arrive_at(Warp& w, uint32_t address, int64_t expected);
  void try_wait(Warp& w, const PtxInstruction& in, uint32_t m);
  void bulk_copy(Warp& w, const PtxInstruction& in, int lane);
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
  int64_t proxy_fences_ = 0;
  int64_t events_ = 0;
  bool yields_ = false;
};

}  // namespace longnet::ptx
