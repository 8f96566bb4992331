#include "simulate/compact_program.h"

#include <algorithm>
#include <type_traits>

#include "core/check.h"

namespace longnet {
namespace {

int lane_of(OpKind kind, ExecutionKind execution) {
  if (execution == ExecutionKind::kInOrder) return 0;
  if (is_communication(kind)) return 2;
  return kind == OpKind::kPack ? 1 : 0;
}

class Packer {
 public:
  Packer(const LooseProgram& in, Rank rank, const Twins& twins, ExecutionKind execution)
      : in_(in), rank_(rank), twins_(twins), execution_(execution) {}

  CompactProgram run() {
    static_cast<ProgramTotals&>(out_) = in_;
    out_.collectives = in_.collectives;
    out_.out_offsets = offsets_of(OpKind::kSend);
    out_.in_offsets = offsets_of(OpKind::kRecv);
    out_.largest_tensors.resize(out_.out_offsets.size());
    waited_.resize(in_.ops.size());
    place_.resize(in_.ops.size());
    for (size_t i = 0; i < in_.ops.size(); ++i) add(int(i));
    link();
    return std::move(out_);
  }

 private:
  void add(int id) {
    const LooseOp& op = in_.ops[size_t(id)];
    const int lane = lane_of(op.kind, execution_);
    std::vector<CompactOp>& ops = out_.lanes[size_t(lane)];
    check(ops.size() <= kIndexMask, "a program of more than 2^30 ops");
    const uint32_t place = uint32_t(lane) << kLaneShift | uint32_t(ops.size());
    place_[size_t(id)] = place;
    CompactOp packed{.kind = op.kind, .amount = op.amount};
    if (op.kind == OpKind::kSend) {
      packed.peer = index_in(out_.out_offsets, offset_of(op));
      double& largest = out_.largest_tensors[size_t(packed.peer)];
      largest = std::max(largest, op.amount / op.tensors);
    }
    if (op.kind == OpKind::kRecv) packed.peer = index_in(out_.in_offsets, offset_of(op));
    if (op.kind == OpKind::kCollective || is_attend(op.kind)) packed.peer = op.peer;
    for (const int before : op.after) {
      const LooseOp& other = in_.ops[size_t(before)];
      const bool same_lane = lane_of(other.kind, execution_) == lane;
      if (same_lane && !is_communication(other.kind)) continue;  // over before this one's turn
      uint8_t& lanes = waited_[size_t(before)];
      if (lanes & 1 << lane) continue;
      lanes |= uint8_t(1 << lane);
      edges_.push_back({before, place});
      ++packed.needs;
    }
    ops.push_back(packed);
    if (is_issued_) out_.issued_s[size_t(lane)].push_back(op.issued_s);
  }

  int offset_of(const LooseOp& op) const {
    const int offset = twins_.offset_of(rank_, op.peer);
    check(offset != 0, "rank ", rank_, " sends to itself");
    return offset;
  }
  std::vector<int> offsets_of(OpKind kind) const {
    std::vector<int> offsets;
    for (const LooseOp& op : in_.ops)
      if (op.kind == kind && (offsets.empty() || offsets.back() != offset_of(op)))
        offsets.push_back(offset_of(op));
    std::ranges::sort(offsets);
    const auto repeated = std::ranges::unique(offsets);
    offsets.erase(repeated.begin(), repeated.end());
    offsets.shrink_to_fit();
    return offsets;
  }

  void link() {
    std::ranges::stable_sort(edges_, {}, &std::pair<int, uint32_t>::first);
    out_.next.reserve(edges_.size());
    for (const auto& [before, place] : edges_) {
      const uint32_t at = place_[size_t(before)];
      CompactOp& op = out_.lanes[at >> kLaneShift][at & kIndexMask];
      if (op.num_next++ == 0) op.first_next = uint32_t(out_.next.size());
      out_.next.push_back(place);
    }
    out_.next.shrink_to_fit();
    for (auto& lane : out_.lanes) lane.shrink_to_fit();
  }

  const LooseProgram& in_;
  Rank rank_;
  const Twins& twins_;
  ExecutionKind execution_;
  CompactProgram out_;
  std::vector<uint8_t> waited_;  // by op, the lanes that wait for it, as bits
  const bool is_issued_ =
      std::ranges::any_of(in_.ops, [](const LooseOp& op) { return op.issued_s > 0; });
  std::vector<uint32_t> place_;
  std::vector<std::pair<int, uint32_t>> edges_;
};

}  // namespace

// FxHash, Firefox's: a word at a time.
uint64_t fingerprint(const ProgramSet& programs) {
  uint64_t hash = 0;
  const auto add = [&](auto value) {
    if constexpr (std::is_floating_point_v<decltype(value)>)
      hash = std::rotl(hash, 5) ^ std::bit_cast<uint64_t>(value);
    else
      hash = std::rotl(hash, 5) ^ uint64_t(value);
    hash *= 0x517cc1b727220a95u;
  };
  const auto add_all = [&](const auto& values) {
    add(values.size());
    for (const auto value : values) add(value);
  };
  for (const int number : {programs.ranks, programs.period, int(programs.exclusive_or),
                           programs.communicators.inner_group, programs.communicators.replicas,
                           programs.communicators.head_groups})
    add(number);
  for (const CompactProgram& program : programs.classes) {
    for (const std::vector<CompactOp>& lane : program.lanes) {
      add(lane.size());
      for (const CompactOp& op : lane) {
        for (const uint32_t n : {uint32_t(op.kind), uint32_t(op.num_next), op.first_next}) add(n);
        add(op.peer);
        add(op.amount);
      }
    }
    add_all(program.next);
    add_all(program.out_offsets);
    add_all(program.in_offsets);
    add_all(program.largest_tensors);
    for (const auto& lane : program.issued_s) add_all(lane);
    for (const CompactCollective& c : program.collectives) {
      for (const int n : {c.group.first, c.group.stride, c.group.count}) add(n);
      add_all(c.seconds);
    }
    add(program.memory_bytes());
  }
  return hash;
}

int index_in(const std::vector<int>& offsets, int offset) {
  const auto at = std::ranges::lower_bound(offsets, offset);
  return at != offsets.end() && *at == offset ? int(at - offsets.begin()) : -1;
}

int64_t CompactProgram::num_ops() const {
  int64_t n = 0;
  for (const auto& lane : lanes) n += int64_t(lane.size());
  return n;
}

int64_t CompactProgram::storage_bytes() const {
  return num_ops() * int64_t{sizeof(CompactOp)} + int64_t(next.size() * sizeof(uint32_t)) +
         int64_t((out_offsets.size() + in_offsets.size()) * sizeof(int)) +
         int64_t(largest_tensors.size() * sizeof(double)) + int64_t{sizeof(CompactProgram)};
}

int LooseProgram::add(OpKind kind, Rank peer, double amount, std::vector<int> after) {
  ops.push_back({kind, peer, amount, std::move(after)});
  return int(ops.size()) - 1;
}

CompactProgram pack(const LooseProgram& program, Rank rank, const Twins& twins,
                    ExecutionKind execution) {
  return Packer(program, rank, twins, execution).run();
}

ProgramSet pack_all(const std::vector<LooseProgram>& programs, ExecutionKind execution) {
  const int ranks = int(programs.size());
  ProgramSet set{{.ranks = ranks, .period = ranks}, {.ranks = ranks}, {}};
  for (int p = 0; p < ranks; ++p)
    set.classes.push_back(pack(programs[size_t(p)], p, set, execution));
  return set;
}

}  // namespace longnet
