#include "emulation/ptx_block.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/check.h"
#include "emulation/ptx_tensor.h"

namespace longnet::ptx {
namespace {

// As badly aligned as its declaration allows, in half of the orders.
int64_t first_dynamic(const PtxKernel& kernel, const PtxLaunch& launch) {
  const int64_t unit = kernel.dynamic_alignment;
  const int64_t at = (kernel.shared_bytes + unit - 1) / unit * unit;
  return at + (launch.order.warps_backwards ? unit : 0);
}

PtxRow part_of(const PtxOperand& data, int vector, int i) {
  return vector == 1 ? data.row : data.parts.at(size_t(i)).row;
}

bool is_private(PtxSpace space) { return space == PtxSpace::kParam || space == PtxSpace::kLocal; }

uint64_t aligned_address(Warp& w, const PtxOperand& o, int lane, int64_t bytes) {
  const uint64_t at = w.value(o.row, lane) + uint64_t(o.offset);
  check(at % uint64_t(bytes) == 0, "address ", at, " is not aligned to ", bytes, " bytes");
  return at;
}

template <auto kMember>
void call(Block& block, Warp& w, const PtxInstruction& in, uint32_t mask) {
  (block.*kMember)(w, in, mask);
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
  const auto value = [&](int lane) -> uint64_t {
    if (c.kind == Kind::kTidX) return uint64_t(warp.index * kLanes + lane);
    if (c.kind == Kind::kCtaidX) return block;
    if (c.kind == Kind::kNtidX) return launch_.block;
    if (c.kind == Kind::kNctaidX) return launch_.grid;
    if (c.kind == Kind::kParam) return std::bit_cast<uint64_t>(parameters + c.value);
    if (c.kind == Kind::kDynamicShared) return uint64_t(dynamic_at_);
    if (c.kind == Kind::kLocal)
      return std::bit_cast<uint64_t>(warp.local.data() + lane * kernel_.local_bytes +
                                     int64_t(c.value));
    return c.value;
  };
  for (int l = 0; l < kLanes; ++l) warp.set(c.row, l, value(l));
}

std::span<const Rule> Block::rules() {
  using Kind = Rule::Kind;
  static constexpr Execute kNothing = [](Block&, Warp&, In, uint32_t) {};
  static constexpr Execute kTrap = [](Block&, Warp&, In, uint32_t) { throw Error("a trap"); };
  static constexpr Rule kRules[] = {
      {"ld", call<&Block::load>},
      {"st", call<&Block::store>},
      {"atom.global.add.u64", call<&Block::add_atomically>},
      {"bra", nullptr, Kind::kBranch},
      {"ret", nullptr, Kind::kReturn},
      {"exit", nullptr, Kind::kReturn},
      {"trap", kTrap},
      {"fence.acq_rel", kNothing},
      {"setmaxnreg.inc.sync.aligned.u32", kNothing},
      {"setmaxnreg.dec.sync.aligned.u32", kNothing},
      {"bar.warp.sync", kNothing, Kind::kWholeWarp},
      {"bar.sync", call<&Block::sync>, Kind::kWholeWarp},
      {"barrier.sync", call<&Block::sync>, Kind::kWholeWarp},
      {"bar.arrive", call<&Block::arrive>, Kind::kWholeWarp},
      {"barrier.arrive", call<&Block::arrive>, Kind::kWholeWarp},
      {"mma.sync.aligned.m16n8k16.row.col.f32", call<&Block::multiply>, Kind::kWholeWarp},
      {"ldmatrix.sync.aligned.m8n8.x4", call<&Block::matrices>, Kind::kWholeWarp},
      {"cp.async.cg.shared.global", call<&Block::copy_async>},
      {"cp.async.commit_group", call<&Block::commit_copies>},
      {"cp.async.wait_group", call<&Block::wait_for_copies>},
      {"mbarrier.init.shared::cta.b64", call<&Block::make_barriers>},
      {"mbarrier.arrive.shared::cta.b64", call<&Block::arrive_at_barriers>},
      {"mbarrier.arrive.expect_tx.shared::cta.b64", call<&Block::arrive_at_barriers>},
      {"mbarrier.try_wait.parity.shared::cta.b64", call<&Block::try_wait>},
      {"cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes",
       call<&Block::bulk_copies>},
      {"fence.proxy.async.shared::cta", call<&Block::fence_proxy>},
      {"fence.mbarrier_init.release.cluster", call<&Block::fence_proxy>},
      {"fence.proxy.tensormap::generic.acquire.sys", call<&Block::fence_map>},
      {"wgmma.mma_async.sync.aligned", call<&Block::issue_product>, Kind::kProduct},
      {"wgmma.commit_group.sync.aligned", call<&Block::commit_products>, Kind::kWholeWarp},
      {"wgmma.wait_group.sync.aligned", call<&Block::wait_for_products>, Kind::kWholeWarp},
      {"wgmma.fence.sync.aligned", call<&Block::fence_group>},
  };
  return kRules;
}

template <class T>
T* Block::reachable(uint64_t at, int64_t bytes) {
  auto* const first = std::bit_cast<const std::byte*>(at);
  const auto inside = [&](const auto& buffer) {
    return first >= buffer.first && first + bytes <= buffer.second;
  };
  if (launch_.buffer != nullptr && std::ranges::none_of(known_buffers_, inside)) {
    const auto found = launch_.buffer(first);
    check(inside(found), "no buffer of the device holds ", bytes, " bytes at ", at);
    known_buffers_[next_known_++ % std::size(known_buffers_)] = found;
  }
  return std::bit_cast<T*>(at);
}

void Block::load(Warp& w, In in, uint32_t m) {
  const PtxOperand &data = in.operands[0], &address = in.operands[1];
  const int each = bytes_of(in.type);
  const int64_t bytes = int64_t{each} * in.vector;
  const bool is_signed =
      in.type == PtxType::kS8 || in.type == PtxType::kS16 || in.type == PtxType::kS32;
  for_lanes(m, [&](int l) {
    const uint64_t at = aligned_address(w, address, l, bytes);
    const std::byte* from = in.space == PtxSpace::kShared ? shared_.read(at, bytes, w.index)
                            : is_private(in.space)        ? std::bit_cast<const std::byte*>(at)
                                                          : reachable<const std::byte>(at, bytes);
    for (int i = 0; i < in.vector; ++i, from += each) {
      uint64_t value = 0;
      std::memcpy(&value, from, size_t(each));
      if (is_signed) value = uint64_t(int64_t(value << (64 - 8 * each)) >> (64 - 8 * each));
      w.set(part_of(data, in.vector, i), l, value);
    }
  });
}

void Block::store(Warp& w, In in, uint32_t m) {
  const PtxOperand &address = in.operands[0], &data = in.operands[1];
  const int each = bytes_of(in.type);
  const int64_t bytes = int64_t{each} * in.vector;
  for_lanes(m, [&](int l) {
    const uint64_t at = aligned_address(w, address, l, bytes);
    std::byte* into = in.space == PtxSpace::kShared ? shared_.write(at, bytes, w.index)
                      : is_private(in.space)        ? std::bit_cast<std::byte*>(at)
                                                    : reachable<std::byte>(at, bytes);
    for (int i = 0; i < in.vector; ++i, into += each) {
      const uint64_t value = w.value(part_of(data, in.vector, i), l);
      std::memcpy(into, &value, size_t(each));
    }
  });
}

void Block::add_atomically(Warp& w, In in, uint32_t m) {
  static std::mutex atomics;
  const std::scoped_lock lock(atomics);
  const auto& o = in.operands;
  for_lanes(m, [&](int l) {
    auto* const at = reachable<uint64_t>(aligned_address(w, o[1], l, 8), 8);
    w.set(o[0].row, l, *at);
    *at += w.value(o[2].row, l);
  });
}

void Block::copy_async(Warp& w, In in, uint32_t m) {
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
      if (bytes > 0) std::memcpy(to, reachable<const std::byte>(from, int64_t(bytes)), bytes);
    };
    start(w.copies[size_t(l)], launch_.order.copies_land_late, copy);
  });
}
void Block::commit_copies(Warp& w, In, uint32_t m) {
  for_lanes(m, [&](int l) { w.copies[size_t(l)].commit(); });
}
void Block::wait_for_copies(Warp& w, In in, uint32_t m) {
  for_lanes(m, [&](int l) { w.copies[size_t(l)].wait(size_t(w.value(in.operands[0].row, l))); });
}

void Block::multiply(Warp& w, In in, uint32_t) { ptx::multiply(w, in); }
void Block::matrices(Warp& w, In in, uint32_t) { load_matrices(w, in, shared_); }
void Block::issue_product(Warp& w, In in, uint32_t) {
  const auto product = [this, &w, &in, p = group_product(w, in)] {
    group_multiply(w, in, p, shared_);
  };
  start(w.products, launch_.order.products_late, product);
}
void Block::commit_products(Warp& w, In, uint32_t) { w.products.commit(); }
void Block::wait_for_products(Warp& w, In in, uint32_t) {
  w.products.wait(size_t(w.value(in.operands.at(0).row, 0)));
}
void Block::fence_group(Warp& w, In, uint32_t) { w.fenced = w.steps; }
void Block::fence_proxy(Warp&, In, uint32_t) { ++proxy_fences_; }
void Block::fence_map(Warp& w, In in, uint32_t m) {
  for_lanes(m, [&](int l) { fenced_maps_.insert(address64(w, in.operands[0], l)); });
}

void Block::sync(Warp& w, In in, uint32_t) {
  const int id = in.operands.empty() ? 0 : int(w.value(in.operands[0].row, 0));
  NamedBarrier& barrier = named_[id];
  check(id >= 0 && id < 16, "a barrier ", id);
  barrier.waiting.push_back(w.index);
  w.blocked = true;
  join(w, barrier,
       in.operands.size() > 1 ? int(w.value(in.operands[1].row, 0)) : int(launch_.block));
}

void Block::arrive(Warp& w, In in, uint32_t) {
  join(w, named_[int(w.value(in.operands[0].row, 0))], int(w.value(in.operands.at(1).row, 0)));
}

void Block::join(Warp& w, NamedBarrier& barrier, int threads) {
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

void Block::make_barriers(Warp& w, In in, uint32_t m) {
  for_lanes(m, [&](int l) {
    const uint32_t at = address(w, in.operands[0], l);
    const int arrivals = int(w.value(in.operands[1].row, l));
    check(at % 8 == 0, "a barrier at ", at);
    shared_.write(at, 8, w.index);
    barriers_[at] = {.number = int(barriers_.size()),
                     .arrivals = arrivals,
                     .pending = arrivals,
                     .made_at = proxy_fences_};
    ++events_;
  });
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

void Block::arrive_at_barriers(Warp& w, In in, uint32_t m) {
  for_lanes(m, [&](int l) {
    const uint32_t at = address(w, in.operands[1], l);
    Barrier& b = barrier_at(w, at);
    if (in.has("expect_tx")) b.bytes += int64_t(w.value(in.operands.at(2).row, l));
    check(in.has("expect_tx") || in.operands.size() == 2, "arrivals by number are not done here");
    b.gathered.join(shared_.release(w.index));
    check(--b.pending >= 0, "too many arrivals at the barrier at ", at);
    complete(b);
  });
}

void Block::try_wait(Warp& w, In in, uint32_t m) {
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

void Block::bulk_copies(Warp& w, In in, uint32_t m) {
  for_lanes(m, [&](int l) { bulk_copy(w, in, l); });
}

void Block::bulk_copy(Warp& w, In in, int lane) {
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
                    reachable<const std::byte>(map.address + uint64_t(offset + at * 2), 2), 2);
    }
    std::memcpy(shared_.write_bulk(swizzled(into + uint64_t(piece) * 16), 16, barrier, then),
                values.data(), 16);
  }
}

}  // namespace longnet::ptx
