#include "core/cuda/testing/ptx_machine.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include "core/check.h"
#include "core/cuda/testing/ptx_arithmetic.h"
#include "core/cuda/testing/ptx_codes.h"
#include "core/cuda/testing/ptx_shared.h"
#include "core/cuda/testing/ptx_tensor.h"
#include "core/cuda/testing/ptx_warp.h"

namespace longnet {
namespace {

using namespace ptx;

constexpr int kQuantum = 20000;  // instructions of a warp before the next one has its turn

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

class BlockRun {
 public:
  BlockRun(const PtxKernel& kernel, const PtxLaunch& launch, const std::byte* parameters,
           unsigned block)
      : kernel_(kernel),
        launch_(launch),
        dynamic_at_(first_dynamic(kernel, launch)),
        shared_(dynamic_at_ + launch.shared_bytes, int((launch.block + kLanes - 1) / kLanes)) {
    for (int w = 0; w * kLanes < int(launch.block); ++w) {
      Warp& warp = warps_.emplace_back();
      warp.index = w;
      warp.registers = std::make_unique<std::byte[]>(size_t(kernel.register_bytes));
      warp.written.resize(size_t(kernel.register_bytes) / 32 + 1);
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
    for (const Warp& warp : warps_) {
      check(warp.products.empty(), "PTX: ", kernel_.name, " ends with products under way");
      for (const Asynchronous& copies : warp.copies)
        check(copies.empty(), "PTX: ", kernel_.name,
              " ends with asynchronous copies that nobody waited for");
    }
    for (const auto& [address, barrier] : barriers_)
      check(barrier.unseen == 0 && barrier.bytes == 0, "PTX: ", kernel_.name,
            " ends with bulk copies on the barrier at ", address, " that nobody waited for");
  }

 private:
  // As badly aligned as its declaration allows, in half of the orders.
  static int64_t first_dynamic(const PtxKernel& kernel, const PtxLaunch& launch) {
    const int64_t unit = kernel.dynamic_alignment;
    const int64_t at = (kernel.shared_bytes + unit - 1) / unit * unit;
    return at + (launch.order.warps_backwards ? unit : 0);
  }

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
          value = uint64_t(dynamic_at_);
          break;
      }
      warp.set(c.row, l, value);
    }
  }

  // ---- control ----

  // Lanes that stand at the lowest place, and may go on.
  uint32_t choose(Warp& warp, int32_t& at) const {
    uint32_t free = warp.live & ~warp.waiting;
    if (free == 0) {  // others may have ended since: do all that are left wait for the same?
      const int32_t first = warp.pc[size_t(std::countr_zero(warp.live))];
      uint32_t same = 0;
      for_lanes(warp.live, [&](int l) { same |= uint32_t(warp.pc[size_t(l)] == first) << l; });
      if (same == warp.live) free = warp.live;
    }
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
      if (takes_whole_warp(in.code) && active != 0 && active != group)
        throw Error(concat("PTX: ", kernel_.name, ", line ", in.line, " (", in.op,
                           "): lanes of a warp do not agree whether to execute it"));
      if (takes_whole_warp(in.code) && group != warp.live) {
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
        ++warp.steps;
        if (active != 0) execute(warp, in, active);
        if (in.code != kWgmma && !in.operands.empty()) warp.note_write(in.operands[0]);
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

  void execute(Warp& w, const PtxInstruction& in, uint32_t m) {
    if (in.code <= kLastArithmetic) return execute_arithmetic(w, in, m);
    const auto& o = in.operands;
    switch (Code(in.code)) {
      case kLoad:
      case kStore:
        return access(w, in, m);
      case kAtomicAdd:
        return add_atomically(w, in, m);
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
        return load_matrices(w, in, shared_);
      case kCopyAsync:
        return copy_async(w, in, m);
      case kCommitCopies:
        return for_lanes(m, [&](int l) { w.copies[size_t(l)].commit(); });
      case kWaitCopies:
        return for_lanes(m, [&](int l) {
          w.copies[size_t(l)].wait(o.empty() ? 0 : size_t(w.value(o[0].row, l)));
        });
      case kBarrierInit:
        return for_lanes(
            m, [&](int l) { make_barrier(w, address(w, o[0], l), int(w.value(o[1].row, l))); });
      case kBarrierArrive:
        check(o.size() == 2, "arrivals by number are not done here");
        return for_lanes(m, [&](int l) { arrive_at(w, address(w, o[1], l), 0); });
      case kBarrierExpect:
        return for_lanes(m, [&](int l) {
          arrive_at(w, address(w, o.at(1), l), int64_t(w.value(o.at(2).row, l)));
        });
      case kGroupFence:
        w.fenced = w.steps;
        return;
      case kProxyFence:
        ++proxy_fences_;
        return;
      case kMapFence:
        return for_lanes(m, [&](int l) { fenced_maps_.insert(address64(w, o[0], l)); });
      case kBarrierTry:
        return try_wait(w, in, m);
      case kBulkCopy:
        return for_lanes(m, [&](int l) { bulk_copy(w, in, l); });
      case kWgmma: {
        const auto product = [this, &w, &in, p = group_product(w, in)] {
          group_multiply(w, in, p, shared_);
        };
        start(w.products, launch_.order.products_late, product);
        return;
      }
      case kWgmmaCommit:
        return w.products.commit();
      case kWgmmaWait:
        return w.products.wait(size_t(w.value(o.at(0).row, 0)));
      default:
        throw Error("not an instruction of this kind");
    }
  }

  // ---- memory ----

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
  Place place(uint64_t address, PtxSpace space, int64_t bytes) {
    check(address % uint64_t(bytes) == 0, "address ", address, " is not aligned to ", bytes,
          " bytes");
    return {address, space == PtxSpace::kShared};
  }

  void access(Warp& w, const PtxInstruction& in, uint32_t m) {
    const bool loads = in.code == kLoad;
    const PtxOperand& address = in.operands[loads ? 1 : 0];
    const PtxOperand& data = in.operands[loads ? 0 : 1];
    const int each = bytes_of(in.type);
    const int64_t bytes = int64_t{each} * in.vector;
    const bool is_signed =
        in.type == PtxType::kS8 || in.type == PtxType::kS16 || in.type == PtxType::kS32;
    const auto row = [&](int i) {
      return in.vector == 1 ? data.row : data.parts.at(size_t(i)).row;
    };
    for_lanes(m, [&](int l) {
      const Place p = place(w.value(address.row, l) + uint64_t(address.offset), in.space, bytes);
      if (loads) {
        const std::byte* from =
            p.shared ? shared_.read(p.at, bytes, w.index) : std::bit_cast<const std::byte*>(p.at);
        for (int i = 0; i < in.vector; ++i, from += each) {
          uint64_t value = 0;
          std::memcpy(&value, from, size_t(each));
          if (is_signed) value = uint64_t(int64_t(value << (64 - 8 * each)) >> (64 - 8 * each));
          w.set(row(i), l, value);
        }
      } else {
        std::byte* into =
            p.shared ? shared_.write(p.at, bytes, w.index) : std::bit_cast<std::byte*>(p.at);
        for (int i = 0; i < in.vector; ++i, into += each) {
          const uint64_t value = w.value(row(i), l);
          std::memcpy(into, &value, size_t(each));
        }
      }
    });
  }

  void add_atomically(Warp& w, const PtxInstruction& in, uint32_t m) {
    static std::mutex atomics;
    const std::scoped_lock lock(atomics);
    const auto& o = in.operands;
    for_lanes(m, [&](int l) {
      const Place p = place(w.value(o[1].row, l) + uint64_t(o[1].offset), PtxSpace::kGlobal, 8);
      auto* const at = std::bit_cast<uint64_t*>(p.at);
      w.set(o[0].row, l, *at);
      *at += w.value(o[2].row, l);
    });
  }

  void copy_async(Warp& w, const PtxInstruction& in, uint32_t m) {
    const auto& o = in.operands;
    for_lanes(m, [&](int l) {
      const uint64_t into = address64(w, o[0], l), from = address64(w, o[1], l);
      const auto bytes = o.size() > 3 ? w.value(o[3].row, l) : 16;
      check(w.value(o[2].row, l) == 16 && bytes <= 16, "cp.async.cg takes 16 bytes");
      check(into % 16 == 0 && (bytes == 0 || from % 16 == 0),
            "an address that is not aligned: ", into, " or ", from);
      const auto copy = [this, &w, into, from, bytes] {
        std::byte* const to = shared_.write(into, 16, w.index);
        std::memset(to, 0, 16);
        if (bytes > 0) std::memcpy(to, std::bit_cast<const std::byte*>(from), bytes);
      };
      start(w.copies[size_t(l)], launch_.order.copies_land_late, copy);
    });
  }

  // What is done at once must be waited for all the same.
  template <class F>
  static void start(Asynchronous& list, bool late, const F& work) {
    if (!late) work();
    list.open.emplace_back(late ? std::function<void()>(work) : [] {});
  }

  // ---- barriers of the block ----

  void sync(Warp& w, const PtxInstruction& in) {
    const int id = in.operands.empty() ? 0 : int(w.value(in.operands[0].row, 0));
    NamedBarrier& barrier = named_[id];
    check(id >= 0 && id < 16, "a barrier ", id);
    barrier.waiting.push_back(w.index);
    w.blocked = true;
    joined(w, barrier,
           in.operands.size() > 1 ? int(w.value(in.operands[1].row, 0)) : int(launch_.block));
  }
  void arrive(Warp& w, const PtxInstruction& in) {
    joined(w, named_[int(w.value(in.operands[0].row, 0))], int(w.value(in.operands.at(1).row, 0)));
  }
  void joined(Warp& w, NamedBarrier& barrier, int threads) {
    ++events_;
    check(barrier.arrived == 0 || barrier.threads == threads, "a barrier of ", barrier.threads,
          " threads is used with ", threads);
    barrier.threads = threads;
    barrier.gathered.join(shared_.release(w.index));
    barrier.arrived += kLanes;
    check(barrier.arrived <= threads, "a barrier of ", threads, " threads has ", barrier.arrived);
    if (barrier.arrived < threads) return;
    for (const int i : barrier.waiting) {
      warps_[size_t(i)].blocked = false;
      shared_.acquire(i, barrier.gathered);
    }
    barrier = {};
  }

  // ---- mbarriers, and bulk copies that complete on them ----

  void make_barrier(Warp& w, uint32_t address, int arrivals) {
    check(address % 8 == 0, "a barrier at ", address);
    shared_.write(address, 8, w.index);
    barriers_[address] = {.number = int(barriers_.size()),
                          .arrivals = arrivals,
                          .pending = arrivals,
                          .made_at = proxy_fences_};
    ++events_;
  }
  Barrier& barrier_at(Warp& w, uint32_t address) {
    const auto found = barriers_.find(address);
    check(found != barriers_.end(), "no barrier was made at ", address);
    shared_.read(address, 8, w.index);  // what makes it must come before
    return found->second;
  }
  void complete(Barrier& b) {
    ++events_;
    if (b.pending > 0 || b.bytes != 0) return;
    b.pending = b.arrivals;
    ++b.phase;
    b.done.join(std::exchange(b.gathered, {}));
  }
  void arrive_at(Warp& w, uint32_t address, int64_t expected) {
    Barrier& b = barrier_at(w, address);
    b.bytes += expected;
    b.gathered.join(shared_.release(w.index));
    check(--b.pending >= 0, "too many arrivals at the barrier at ", address);
    complete(b);
  }
  void try_wait(Warp& w, const PtxInstruction& in, uint32_t m) {
    uint32_t done = 0;
    for_lanes(m, [&](int l) {
      Barrier& b = barrier_at(w, address(w, in.operands[1], l));
      const auto parity = int(w.value(in.operands[2].row, l));
      check(parity == 0 || parity == 1, "a parity of ", parity);
      const auto over = [&] { return b.phase % 2 != parity; };
      if (!over())
        for (const auto& copy : std::exchange(b.copies, {})) copy();
      if (over()) {
        shared_.acquire(w.index, b.done);
        if (b.bytes == 0) b.unseen = 0;
      }
      done |= uint32_t(over()) << l;
    });
    set_predicate(w, in.operands[0].row, m, done);
    if (done != m) yields_ = true;
  }

  void bulk_copy(Warp& w, const PtxInstruction& in, int lane) {
    const auto& o = in.operands;
    const uint32_t into = address(w, o[0], lane);
    Barrier& barrier = barrier_at(w, address(w, o[2], lane));
    check(proxy_fences_ > barrier.made_at,
          "a bulk copy on a barrier that no fence has shown to it");
    PtxTensorMap map;
    const uint64_t map_at = address64(w, o[1], lane);
    check(fenced_maps_.contains(map_at), "a tensor map that the host wrote, without a fence");
    check(map_at % 64 == 0 && into % 128 == 0, "a bulk copy of a map at ", map_at, " into ", into);
    std::memcpy(&map, std::bit_cast<const std::byte*>(map_at), sizeof map);
    check(map.valid == PtxTensorMap::kValid, "not a tensor map");
    std::array<int64_t, PtxTensorMap::kMostDims> first{};
    for (size_t d = 0; d < first.size(); ++d)
      first[d] = int32_t(uint32_t(w.value(o[1].parts.at(d).row, lane)));
    const auto copy = [this, &barrier, map, first, into, then = shared_.clock(w.index)] {
      land(map, first, into, barrier.number, then);
      int64_t elements = 1;
      for (const uint16_t n : map.box) elements *= n;
      barrier.bytes -= elements * 2;
      barrier.gathered.join(shared_.release_bulk(barrier.number, then));
      complete(barrier);
    };
    ++barrier.unseen;
    if (launch_.order.copies_land_late)
      barrier.copies.emplace_back(copy);
    else
      copy();
  }

  // The box at `first`; what is outside the tensor is zero. Pieces of 16 bytes keep together.
  void land(const PtxTensorMap& map, const std::array<int64_t, PtxTensorMap::kMostDims>& first,
            uint32_t into, int barrier, const VectorClock& then) {
    constexpr int kPiece = 8;
    check(map.box[0] % kPiece == 0, "a box of ", map.box[0], " elements");
    int64_t pieces = map.box[0] / kPiece;
    for (size_t d = 1; d < first.size(); ++d) pieces *= map.box[d];
    for (int64_t piece = 0; piece < pieces; ++piece) {
      int64_t rest = piece / (map.box[0] / kPiece), offset = 0;
      bool inside = true;
      for (size_t d = 1; d < first.size(); ++d) {
        const int64_t at = first[d] + rest % map.box[d];
        rest /= map.box[d];
        inside = inside && at >= 0 && at < int64_t{map.size[d]};
        offset += at * int64_t(map.stride[d - 1]);
      }
      std::array<uint16_t, kPiece> values{};
      for (int i = 0; inside && i < kPiece; ++i) {
        const int64_t at = first[0] + piece % (map.box[0] / kPiece) * kPiece + i;
        if (at >= 0 && at < int64_t{map.size[0]})
          std::memcpy(&values[size_t(i)],
                      std::bit_cast<const std::byte*>(map.address + uint64_t(offset + at * 2)), 2);
      }
      std::memcpy(shared_.write_bulk(swizzled(into + uint64_t(piece) * 16), 16, barrier, then),
                  values.data(), 16);
    }
  }

  const PtxKernel& kernel_;
  const PtxLaunch& launch_;
  int64_t dynamic_at_;  // byte of shared memory
  SharedMemory shared_;
  std::deque<Warp> warps_;
  std::map<uint32_t, Barrier> barriers_;
  std::map<int, NamedBarrier> named_;
  std::set<uint64_t> fenced_maps_;
  int64_t proxy_fences_ = 0;
  int64_t events_ = 0;  // whatever another warp may wait for
  bool yields_ = false;
};

}  // namespace

void PtxMachine::load(std::string_view text) {
  for (auto& [name, kernel] : parse_ptx(text)) {
    for (PtxInstruction& in : kernel.instructions) in.code = ptx::code_of(in);
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
