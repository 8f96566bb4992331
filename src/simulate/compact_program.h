// Rank programs for the simulator: 24 bytes an op, seconds and bytes in place of slices, and one
// copy for all ranks that do the same.
//
// A schedule has a period k when the program of rank p + k is that of rank p with every rank moved
// by k around the ring of P (registry.h declares it, a test proves it). Then k programs stand for
// all P: a ring of 4096 ranks needs one of 16 K ops instead of 67 M ops. Recursive doubling makes a
// hypercube of the ring (Twins::exclusive_or): there too, k programs stand for all.
//
// Each rank has lanes that work in program order: with `streams` one for attention (all that
// computes), one for copies (pack) and one for communication; with `in_order` a single one. A lane
// starts an op when the one before has been started (communication) or is over (all else), and when
// the ops that it waits for are over. An op is waited for at most once per lane: later waits of the
// same lane are left out.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/guess.h"
#include "core/tagged_memory.h"
#include "schedule/lower_collectives.h"
#include "schedule/program.h"
#include "simulate/cluster.h"
#include "simulate/nccl_channels.h"

namespace longnet {

enum class OpKind : uint8_t {
  kAttend,
  kAttendBackward,
  kDelta,
  kMerge,
  kReset,
  kGemm,
  kRowWise,
  kUpdate,
  kPack,
  kSend,
  kRecv,
  kCollective
};
constexpr auto texts_of(OpKind) {
  return texts("attend", "attend_backward", "delta", "merge", "reset", "gemm", "row_wise", "update",
               "pack", "send", "recv", "collective");
}
inline bool is_attend(OpKind kind) { return kind <= OpKind::kAttendBackward; }
inline bool is_communication(OpKind kind) { return kind >= OpKind::kSend; }

inline constexpr int kLanes = 3;
inline constexpr uint32_t kLaneShift = 30, kIndexMask = (1u << kLaneShift) - 1;

struct CompactOp {
  OpKind kind;
  uint16_t num_next = 0;    // ops that wait for this one
  uint32_t needs = 0;       // ops that this one waits for
  uint32_t first_next = 0;  // in CompactProgram::next
  int32_t peer = 0;         // index into out_offsets, in_offsets or collectives; an attend's branch
  double amount = 0;        // seconds, or bytes of a message
};

// A collective with a formula for its time (collective_times.h).
struct CompactCollective {
  RankGroup group;
  std::array<double, 3> seconds{};  // by AlphaSet
};

// Totals of one run of a program.
struct ProgramTotals {
  int64_t bytes_sent = 0, messages_sent = 0;
  double pairs = 0;            // attended pairs; one of a backward pass counts 2.5
  double gemm_flops = 0;       // a model's products
  Guess guess = Guess::kNone;  // the worst of its ops' prices
  std::map<std::string, int64_t> memory_by_tag{};
  int64_t memory_bytes() const { return total_bytes(memory_by_tag); }
};

struct CompactProgram : ProgramTotals {
  std::array<std::vector<CompactOp>, kLanes> lanes{};
  std::vector<uint32_t> next{};  // lane << kLaneShift | index in the lane
  // Ranks that messages go to and come from, as Twins::offset_of from the own one, ascending.
  std::vector<int> out_offsets{}, in_offsets{};
  std::vector<double> largest_tensors{};  // bytes, of what is sent to each of out_offsets
  std::vector<CompactCollective> collectives{};
  // Time at which the host has issued each op; empty where issuing takes 0 s (ClusterSpec::host_s).
  std::array<std::vector<double>, kLanes> issued_s{};

  int64_t num_ops() const;
  int64_t storage_bytes() const;
};
// Position of `offset` in an ascending list; -1 when it is not there.
int index_in(const std::vector<int>& offsets, int offset);

// Which ranks do the same: rank p and p + k, for every multiple k of the period, with each rank
// that its program names k further around the ring. With `exclusive_or` partners of recursive
// doubling are an exception: p ^ 8, p ^ 16, ... (powers of two from the period on) lie before some
// twins and behind others, and each has its own. P and the period are powers of two then, and no
// other message goes as far as one of these powers: they are told apart by the distance.
//
//   P = 16, period 4, rank 1: its neighbours 2 and 0 are those of rank 5 at 6 and 4; its partners
//   1 ^ 4 = 5 and 1 ^ 8 = 9 those of rank 5 at 5 ^ 4 = 1 and 5 ^ 8 = 13.
struct Twins {
  int ranks = 1, period = 1;
  bool exclusive_or = false;
  // An offset below `ranks` counts ranks around the ring; `ranks` + d stands for the partner p ^ d.
  Rank at(Rank p, int offset) const {
    return offset < ranks ? (p + offset) % ranks : p ^ (offset - ranks);
  }
  int offset_of(Rank p, Rank other) const {
    const int apart = p ^ other;
    if (exclusive_or && apart >= period && std::has_single_bit(unsigned(apart)))
      return ranks + apart;
    return (other - p % ranks + ranks) % ranks;
  }
  // The offset of p from the rank that lies at `offset` from p.
  int back(int offset) const { return offset < ranks ? (ranks - offset) % ranks : offset; }
};

struct ProgramSet : Twins {
  Communicators communicators{};
  std::vector<CompactProgram> classes{};  // one for each of the ranks 0 .. period - 1
  const CompactProgram& of(Rank rank) const { return classes[size_t(rank % period)]; }
};

// A number that two sets share where their ranks do the same: ops, costs, messages, waits, memory.
uint64_t fingerprint(const ProgramSet& programs);

// An op before programs are made compact.
struct LooseOp {
  OpKind kind;
  Rank peer = -1;     // a message's other end, or an index into LooseProgram::collectives
  double amount = 0;  // seconds or bytes
  std::vector<int> after{};
  double issued_s = 0;
  int tensors = 1;  // that a message consists of
};
struct LooseProgram : ProgramTotals {
  std::vector<LooseOp> ops{};
  std::vector<CompactCollective> collectives{};
  int add(OpKind kind, Rank peer, double amount, std::vector<int> after = {});
};
CompactProgram pack(const LooseProgram& program, Rank rank, const Twins& twins,
                    ExecutionKind execution);
// One program per rank, without a period: for hand-written ones.
ProgramSet pack_all(const std::vector<LooseProgram>& programs, ExecutionKind execution);

// A point's collectives on this cluster: lowerings, and formulas for all-gathers and those
// reduce-scatters that are not lowered (ReduceScatterAlgorithm::kNative), or "".
struct CollectivePlan {
  CollectiveChoice lowering{};
  std::string all_gather_formula{}, reduce_scatter_formula{};
  bool has_formula() const {
    return !all_gather_formula.empty() || !reduce_scatter_formula.empty();
  }
};
// `name`: a point's collective, "native" for what the cluster uses. Throws UsageError.
CollectivePlan plan_collectives(const ClusterSpec& cluster, std::string_view name, int ranks);

// Throws UsageError with the predicted size when all compact programs take more than `max_bytes`,
// or when the cluster cannot price the point. `twins`: see lowered_twins.
ProgramSet compile(const Schedule& schedule, const Twins& twins, const ClusterSpec& cluster,
                   const CollectivePlan& collectives, int64_t max_bytes = int64_t{4} << 30);
// The ranks of `schedule`, of this period (AlgorithmInfo::period), that do the same once its
// collectives are lowered.
Twins lowered_twins(const Schedule& schedule, int period, const CollectivePlan& collectives,
                    const ClusterSpec& cluster);

}  // namespace longnet
