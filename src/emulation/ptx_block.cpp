#include "emulation/ptx_block.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/check.h"

namespace longnet::ptx {
namespace {

using In = const PtxInstruction&;

// First byte of dynamic memory: as badly aligned as declared, in half of the orders.
int64_t first_dynamic(const PtxKernel& kernel, const PtxLaunch& launch) {
  const int64_t unit = kernel.dynamic_alignment;
  const int64_t at = (kernel.shared_bytes + unit - 1) / unit * unit;
  return at + (launch.order.warps_backwards ? unit : 0);
}

uint64_t aligned_address(Warp& w, const PtxOperand& o, int lane, int64_t bytes) {
  const uint64_t at = w.value(o.row, lane) + uint64_t(o.offset);
  check(at % uint64_t(bytes) == 0, "address ", at, " is not aligned to ", bytes, " bytes");
  return at;
}

uint64_t address64(Warp& w, const PtxOperand& o, int lane) {
  return w.value(o.row, lane) + uint64_t(o.offset);
}
uint32_t address(Warp& w, const PtxOperand& o, int lane) { return uint32_t(address64(w, o, lane)); }

// Adds `work` to the open group. If not `late`, it is done here; the kernel must still wait.
template <class F>
void start(Asynchronous& list, bool late, const F& work) {
  if (!late) work();
  list.open.emplace_back(late ? std::function<void()>(work) : [] {});
}

// Throws Error for an address of global memory outside of the device's buffers.
template <class T>
T* reachable(Block& b, uint64_t at, int64_t bytes) {
  auto* const first = std::bit_cast<const std::byte*>(at);
  const auto inside = [&](const auto& buffer) {
    return first >= buffer.first && first + bytes <= buffer.second;
  };
  if (b.launch.buffer != nullptr && std::ranges::none_of(b.known_buffers, inside)) {
    const auto found = b.launch.buffer(first);
    check(inside(found), "no buffer of the device holds ", bytes, " bytes at ", at);
    b.known_buffers[b.next_known++ % std::size(b.known_buffers)] = found;
  }
  return std::bit_cast<T*>(at);
}

template <bool kLoads>
void access(Block& b, Warp& w, In in, uint32_t m) {
  const PtxOperand &data = in.operands[kLoads ? 0 : 1], &address = in.operands[kLoads ? 1 : 0];
  const int each = in.type.bytes;
  const int64_t bytes = int64_t{each} * in.vector;
  for_lanes(m, [&](int l) {
    const uint64_t at = aligned_address(w, address, l, bytes);
    std::byte* place = std::bit_cast<std::byte*>(at);
    if (in.space == PtxSpace::kShared)
      place = kLoads ? b.shared.read(at, bytes, w.index) : b.shared.write(at, bytes, w.index);
    else if (in.space != PtxSpace::kParam)
      place = reachable<std::byte>(b, at, bytes);
    for (int i = 0; i < in.vector; ++i, place += each) {
      const PtxRow row = in.vector == 1 ? data.row : data.parts.at(size_t(i)).row;
      uint64_t value = kLoads ? 0 : w.value(row, l);
      kLoads ? std::memcpy(&value, place, size_t(each)) : std::memcpy(place, &value, size_t(each));
      if (kLoads && in.type.kind == 's')
        value = uint64_t(int64_t(value << (64 - 8 * each)) >> (64 - 8 * each));
      if (kLoads) w.set(row, l, value);
    }
  });
}

void add_atomically(Block& b, Warp& w, In in, uint32_t m) {
  static std::mutex atomics;
  const std::scoped_lock lock(atomics);
  const auto& o = in.operands;
  for_lanes(m, [&](int l) {
    auto* const at = reachable<uint64_t>(b, aligned_address(w, o[1], l, 8), 8);
    w.set(o[0].row, l, *at);
    *at += w.value(o[2].row, l);
  });
}

void copy_async(Block& b, Warp& w, In in, uint32_t m) {
  const auto& o = in.operands;
  for_lanes(m, [&](int l) {
    const uint64_t into = address64(w, o[0], l), from = address64(w, o[1], l);
    const auto size = w.value(o[2].row, l), bytes = o.size() > 3 ? w.value(o[3].row, l) : size;
    check(size == 16 && bytes <= size, "cp.async takes 16 bytes");
    check(into % size == 0 && (bytes == 0 || from % size == 0),
          "an address that is not aligned: ", into, " or ", from);
    const auto copy = [&b, &w, into, from, size, bytes] {
      std::byte* const to = b.shared.write(into, int64_t(size), w.index);
      std::memset(to, 0, size);
      if (bytes > 0) std::memcpy(to, reachable<const std::byte>(b, from, int64_t(bytes)), bytes);
    };
    start(w.copies[size_t(l)], b.launch.order.copies_land_late, copy);
  });
}
void commit_copies(Block&, Warp& w, In, uint32_t m) {
  for_lanes(m, [&](int l) { w.copies[size_t(l)].commit(); });
}
void wait_for_copies(Block&, Warp& w, In in, uint32_t m) {
  for_lanes(m, [&](int l) { w.copies[size_t(l)].wait(size_t(w.value(in.operands[0].row, l))); });
}

void issue_product(Block& b, Warp& w, In in, uint32_t) {
  start(w.products, b.launch.order.products_late, group_product(w, in, b.shared));
}
void wait_for_products(Block&, Warp& w, In in, uint32_t) {
  w.products.wait(size_t(w.value(in.operands.at(0).row, 0)));
}
void fence_map(Block& b, Warp& w, In in, uint32_t m) {
  for_lanes(m, [&](int l) { b.fenced_maps.insert(address64(w, in.operands[0], l)); });
}

void join(Block& b, Warp& w, NamedBarrier& barrier, int threads) {
  ++b.events;
  check(barrier.arrived == 0 || barrier.threads == threads, "a barrier of ", barrier.threads,
        " threads is used with ", threads);
  barrier.threads = threads;
  barrier.gathered.join(b.shared.release(w.index));
  barrier.arrived += kLanes;
  check(barrier.arrived <= threads, "a barrier of ", threads, " threads has ", barrier.arrived);
  if (barrier.arrived < threads) return;
  for (const int i : barrier.waiting) {
    b.warps[size_t(i)].blocked = false;
    b.shared.acquire(i, barrier.gathered);
  }
  barrier = {};
}

void sync(Block& b, Warp& w, In in, uint32_t) {
  const int id = in.operands.empty() ? 0 : int(w.value(in.operands[0].row, 0));
  NamedBarrier& barrier = b.named[id];
  check(id >= 0 && id < 16, "a barrier ", id);
  barrier.waiting.push_back(w.index);
  w.blocked = true;
  join(b, w, barrier,
       in.operands.size() > 1 ? int(w.value(in.operands[1].row, 0)) : int(b.launch.block));
}

void arrive(Block& b, Warp& w, In in, uint32_t) {
  join(b, w, b.named[int(w.value(in.operands[0].row, 0))], int(w.value(in.operands.at(1).row, 0)));
}

void make_barriers(Block& b, Warp& w, In in, uint32_t m) {
  for_lanes(m, [&](int l) {
    const uint32_t at = address(w, in.operands[0], l);
    const int arrivals = int(w.value(in.operands[1].row, l));
    check(at % 8 == 0, "a barrier at ", at);
    b.shared.write(at, 8, w.index);
    b.barriers[at] = {.number = int(b.barriers.size()),
                      .arrivals = arrivals,
                      .pending = arrivals,
                      .made_at = b.proxy_fences};
    ++b.events;
  });
}

Barrier& barrier_at(Block& b, Warp& w, uint32_t address) {
  const auto found = b.barriers.find(address);
  check(found != b.barriers.end(), "no barrier was made at ", address);
  b.shared.read(address, 8, w.index);  // its initialisation must come before
  return found->second;
}

void complete(Block& b, Barrier& barrier) {
  ++b.events;
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.arrivals;
  ++barrier.phase;
  barrier.done.join(std::exchange(barrier.gathered, {}));
}

// mbarrier.arrive, with or without expect_tx.
void arrive_at_barriers(Block& b, Warp& w, In in, uint32_t m) {
  for_lanes(m, [&](int l) {
    const uint32_t at = address(w, in.operands[1], l);
    Barrier& barrier = barrier_at(b, w, at);
    if (in.has("expect_tx")) barrier.bytes += int64_t(w.value(in.operands.at(2).row, l));
    check(in.has("expect_tx") || in.operands.size() == 2, "arrivals by number are not done here");
    barrier.gathered.join(b.shared.release(w.index));
    check(--barrier.pending >= 0, "too many arrivals at the barrier at ", at);
    complete(b, barrier);
  });
}

void try_wait(Block& b, Warp& w, In in, uint32_t m) {
  uint32_t done = 0;
  for_lanes(m, [&](int l) {
    Barrier& barrier = barrier_at(b, w, address(w, in.operands[1], l));
    const auto parity = int(w.value(in.operands[2].row, l));
    check(parity == 0 || parity == 1, "a parity of ", parity);
    const auto over = [&] { return barrier.phase % 2 != parity; };
    if (!over())
      for (const auto& copy : std::exchange(barrier.copies, {})) copy();
    if (over()) {
      b.shared.acquire(w.index, barrier.done);
      if (barrier.bytes == 0) barrier.unseen = 0;
    }
    done |= uint32_t(over()) << l;
  });
  set_predicate(w, in.operands[0].row, m, done);
  if (done != m) b.yields = true;
}

// The box at `first`; what is outside the tensor is zero. Pieces of 16 bytes keep together.
void land(Block& b, const PtxTensorMap& map,
          const std::array<int64_t, PtxTensorMap::kMostDims>& first, uint32_t into, int barrier,
          const VectorClock& then) {
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
                    reachable<const std::byte>(b, map.address + uint64_t(offset + at * 2), 2), 2);
    }
    std::memcpy(b.shared.write_bulk(swizzled(into + uint64_t(piece) * 16), 16, barrier, then),
                values.data(), 16);
  }
}

void bulk_copy(Block& b, Warp& w, In in, int lane) {
  const auto& o = in.operands;
  const uint32_t into = address(w, o[0], lane);
  Barrier& barrier = barrier_at(b, w, address(w, o[2], lane));
  check(b.proxy_fences > barrier.made_at, "a bulk copy on a barrier that no fence has shown to it");
  PtxTensorMap map;
  const uint64_t map_at = address64(w, o[1], lane);
  check(b.fenced_maps.contains(map_at), "a tensor map that the host wrote, without a fence");
  check(map_at % 64 == 0 && into % 128 == 0, "a bulk copy of a map at ", map_at, " into ", into);
  std::memcpy(&map, std::bit_cast<const std::byte*>(map_at), sizeof map);
  check(map.valid == PtxTensorMap::kValid, "not a tensor map");
  std::array<int64_t, PtxTensorMap::kMostDims> first{};
  for (size_t d = 0; d < first.size(); ++d)
    first[d] = int32_t(uint32_t(w.value(o[1].parts.at(d).row, lane)));
  const auto copy = [&b, &barrier, map, first, into, then = b.shared.clock(w.index)] {
    land(b, map, first, into, barrier.number, then);
    int64_t elements = 1;
    for (const uint16_t n : map.box) elements *= n;
    barrier.bytes -= elements * 2;
    barrier.gathered.join(b.shared.release_bulk(barrier.number, then));
    complete(b, barrier);
  };
  ++barrier.unseen;
  if (b.launch.order.copies_land_late)
    barrier.copies.emplace_back(copy);
  else
    copy();
}

void bulk_copies(Block& b, Warp& w, In in, uint32_t m) {
  for_lanes(m, [&](int l) { bulk_copy(b, w, in, l); });
}

constexpr Execute kNothing = [](Block&, Warp&, In, uint32_t) {};
constexpr Execute kTrap = [](Block&, Warp&, In, uint32_t) { throw Error("a trap"); };
constexpr Execute kFenceProxy = [](Block& b, Warp&, In, uint32_t) { ++b.proxy_fences; };
constexpr Rule kBlockRules[] = {
    {"ld", access<true>},
    {"st", access<false>},
    {"atom.global.add.u64", add_atomically},
    {"bra", nullptr, Rule::Kind::kBranch},
    {"ret", nullptr, Rule::Kind::kReturn},
    {"trap", kTrap},
    {"setmaxnreg.inc.sync.aligned.u32", kNothing},
    {"setmaxnreg.dec.sync.aligned.u32", kNothing},
    {"bar.warp.sync", kNothing, kWholeWarp},
    {"bar.sync", sync, kWholeWarp},
    {"barrier.sync", sync, kWholeWarp},
    {"barrier.arrive", arrive, kWholeWarp},
    {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
     [](Block&, Warp& w, In in, uint32_t) { multiply(w, in); }, kWholeWarp},
    {"ldmatrix.sync.aligned.m8n8.x4",
     [](Block& b, Warp& w, In in, uint32_t) { load_matrices(w, in, b.shared); }, kWholeWarp},
    {"cp.async.cg.shared.global", copy_async},
    {"cp.async.commit_group", commit_copies},
    {"cp.async.wait_group", wait_for_copies},
    {"mbarrier.init.shared::cta.b64", make_barriers},
    {"mbarrier.arrive.shared::cta.b64", arrive_at_barriers},
    {"mbarrier.arrive.expect_tx.shared::cta.b64", arrive_at_barriers},
    {"mbarrier.try_wait.parity.shared::cta.b64", try_wait},
    {"cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes",
     bulk_copies},
    {"fence.proxy.async.shared::cta", kFenceProxy},
    {"fence.mbarrier_init.release.cluster", kFenceProxy},
    {"fence.proxy.tensormap::generic.acquire.sys", fence_map},
    {"wgmma.mma_async.sync.aligned", issue_product, Rule::Kind::kProduct},
    {"wgmma.commit_group.sync.aligned", [](Block&, Warp& w, In, uint32_t) { w.products.commit(); },
     kWholeWarp},
    {"wgmma.wait_group.sync.aligned", wait_for_products, kWholeWarp},
    {"wgmma.fence.sync.aligned", [](Block&, Warp& w, In, uint32_t) { w.fenced = w.steps; }},
};

// Registers that hold their value before the warp starts.
void fill(const Block& b, Warp& warp, const PtxConstant& c, const std::byte* parameters,
          unsigned number) {
  using Kind = PtxConstant::Kind;
  if (c.row.bytes == 0) {
    warp.predicate(c.row) = c.value != 0 ? kAll : 0;
    return;
  }
  for (int l = 0; l < kLanes; ++l) {
    uint64_t value = c.value;
    if (c.kind == Kind::kTidX) value = uint64_t(warp.index * kLanes + l);
    if (c.kind == Kind::kCtaidX) value = number;
    if (c.kind == Kind::kNctaidX) value = b.launch.grid;
    if (c.kind == Kind::kParam) value = std::bit_cast<uint64_t>(parameters + c.value);
    if (c.kind == Kind::kDynamicShared) value = uint64_t(b.dynamic_at);
    warp.set(c.row, l, value);
  }
}

}  // namespace

std::span<const Rule> block_rules() { return kBlockRules; }

Block::Block(const PtxKernel& of, const PtxLaunch& how, const std::byte* parameters,
             unsigned number)
    : kernel(of),
      launch(how),
      dynamic_at(first_dynamic(kernel, launch)),
      shared(dynamic_at + launch.shared_bytes, int((launch.block + kLanes - 1) / kLanes)) {
  for (int w = 0; w * kLanes < int(launch.block); ++w) {
    Warp& warp = warps.emplace_back();
    warp.index = w;
    warp.registers = std::make_unique<std::byte[]>(size_t(kernel.register_bytes));
    warp.written.resize(size_t(kernel.register_bytes) / 32 + 1);
    const int lanes = std::min(kLanes, int(launch.block) - w * kLanes);
    warp.live = lanes == kLanes ? kAll : (1u << lanes) - 1;
    for (const PtxConstant& c : kernel.constants) fill(*this, warp, c, parameters, number);
  }
}

void Block::require_all_done() const {
  for (const Warp& warp : warps) {
    check(warp.products.empty(), "PTX: ", kernel.name, " ends with products under way");
    for (const Asynchronous& copies : warp.copies)
      check(copies.empty(), "PTX: ", kernel.name,
            " ends with asynchronous copies that nobody waited for");
  }
  for (const auto& [address, barrier] : barriers)
    check(barrier.unseen == 0 && barrier.bytes == 0, "PTX: ", kernel.name,
          " ends with bulk copies on the barrier at ", address, " that nobody waited for");
}

}  // namespace longnet::ptx
