#include "emulation/ptx_block.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/check.h"
#include "emulation/ptx_arithmetic.h"
#include "emulation/ptx_codes.h"
#include "emulation/ptx_tensor.h"

namespace longnet::ptx {
namespace {

// As badly aligned as its declaration allows, in half of the orders.
int64_t first_dynamic(const PtxKernel& kernel, const PtxLaunch& launch) {
  const int64_t unit = kernel.dynamic_alignment;
  const int64_t at = (kernel.shared_bytes + unit - 1) / unit * unit;
  return at + (launch.order.warps_backwards ? unit : 0);
}

}  // namespace

Block::Block(const PtxKernel& kernel, const PtxLaunch& launch, const std::byte* parameters,
             unsigned number)
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
    for (const PtxConstant& c : kernel.constants) fill(warp, c, parameters, number);
  }
}

void Block::require_all_done(const std::string& kernel) const {
  for (const Warp& warp : warps_) {
    check(warp.products.empty(), "PTX: ", kernel, " ends with products under way");
    for (const Asynchronous& copies : warp.copies)
      check(copies.empty(), "PTX: ", kernel,
            " ends with asynchronous copies that nobody waited for");
  }
  for (const auto& [address, barrier] : barriers_)
    check(barrier.unseen == 0 && barrier.bytes == 0, "PTX: ", kernel,
          " ends with bulk copies on the barrier at ", address, " that nobody waited for");
}

void Block::fill(Warp& warp, const PtxConstant& c, const std::byte* parameters, unsigned block) {
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
        value =
            std::bit_cast<uint64_t>(warp.local.data() + l * kernel_.local_bytes + int64_t(c.value));
        break;
      case Kind::kDynamicShared:
        value = uint64_t(dynamic_at_);
        break;
    }
    warp.set(c.row, l, value);
  }
}

void Block::execute(Warp& w, const PtxInstruction& in, uint32_t m) {
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

Block::Place Block::place(uint64_t address, PtxSpace space, int64_t bytes) {
  check(address % uint64_t(bytes) == 0, "address ", address, " is not aligned to ", bytes,
        " bytes");
  return {address, space == PtxSpace::kShared};
}

void Block::access(Warp& w, const PtxInstruction& in, uint32_t m) {
  const bool loads = in.code == kLoad;
  const PtxOperand& address = in.operands[loads ? 1 : 0];
  const PtxOperand& data = in.operands[loads ? 0 : 1];
  const int each = bytes_of(in.type);
  const int64_t bytes = int64_t{each} * in.vector;
  const bool is_signed =
      in.type == PtxType::kS8 || in.type == PtxType::kS16 || in.type == PtxType::kS32;
  const auto row = [&](int i) { return in.vector == 1 ? data.row : data.parts.at(size_t(i)).row; };
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

void Block::add_atomically(Warp& w, const PtxInstruction& in, uint32_t m) {
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

void Block::copy_async(Warp& w, const PtxInstruction& in, uint32_t m) {
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

void Block::sync(Warp& w, const PtxInstruction& in) {
  const int id = in.operands.empty() ? 0 : int(w.value(in.operands[0].row, 0));
  NamedBarrier& barrier = named_[id];
  check(id >= 0 && id < 16, "a barrier ", id);
  barrier.waiting.push_back(w.index);
  w.blocked = true;
  joined(w, barrier,
         in.operands.size() > 1 ? int(w.value(in.operands[1].row, 0)) : int(launch_.block));
}

void Block::arrive(Warp& w, const PtxInstruction& in) {
  joined(w, named_[int(w.value(in.operands[0].row, 0))], int(w.value(in.operands.at(1).row, 0)));
}

void Block::joined(Warp& w, NamedBarrier& barrier, int threads) {
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

void Block::make_barrier(Warp& w, uint32_t address, int arrivals) {
  check(address % 8 == 0, "a barrier at ", address);
  shared_.write(address, 8, w.index);
  barriers_[address] = {.number = int(barriers_.size()),
                        .arrivals = arrivals,
                        .pending = arrivals,
                        .made_at = proxy_fences_};
  ++events_;
}

Block::Barrier& Block::barrier_at(Warp& w, uint32_t address) {
  const auto found = barriers_.find(address);
  check(found != barriers_.end(), "no barrier was made at ", address);
  shared_.read(address, 8, w.index);  // what makes it must come before
  return found->second;
}

void Block::complete(Barrier& b) {
  ++events_;
  if (b.pending > 0 || b.bytes != 0) return;
  b.pending = b.arrivals;
  ++b.phase;
  b.done.join(std::exchange(b.gathered, {}));
}

void Block::arrive_at(Warp& w, uint32_t address, int64_t expected) {
  Barrier& b = barrier_at(w, address);
  b.bytes += expected;
  b.gathered.join(shared_.release(w.index));
  check(--b.pending >= 0, "too many arrivals at the barrier at ", address);
  complete(b);
}

void Block::try_wait(Warp& w, const PtxInstruction& in, uint32_t m) {
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

void Block::bulk_copy(Warp& w, const PtxInstruction& in, int lane) {
  const auto& o = in.operands;
  const uint32_t into = address(w, o[0], lane);
  Barrier& barrier = barrier_at(w, address(w, o[2], lane));
  check(proxy_fences_ > barrier.made_at, "a bulk copy on a barrier that no fence has shown to it");
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

void Block::land(const PtxTensorMap& map, const std::array<int64_t, PtxTensorMap::kMostDims>& first,
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

}  // namespace longnet::ptx
