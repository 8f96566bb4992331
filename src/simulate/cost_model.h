// Seconds that a device takes for one op of a program, and a library for an all-gather.
//
// Where a device has an attend model, that prices an attend (AttendCounts). Else an attend runs
// at the speed that the cluster's table gives for the keys that a query of it sees, interpolated in
// log2(rows) and in head_dim and constant beyond the table's ends; slower in proportion when it has
// fewer query rows than keep the device busy; and never faster than memory delivers its operands.
// Packs and merges move bytes.
//
//   h100-ndr400, d = 64, bf16: 8192 queries x 8192 keys x 12 heads = 2.06e11 FLOP; the table has
//   395 TFLOP/s at 2048 rows and 413 at 16384, so 407 at 8192: 507 us and 5 us to launch.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/program.h"
#include "simulate/cluster.h"

namespace longnet {

// Counts of an attend whose queries are taken block by block, each against one list of keys: what
// AttendModel (cluster.h) prices.
//
//   Causal, N = 4096, one head, blocks of 2048: queries 4096, pairs 4096 * 4097 / 2; the first
//   block packs the keys 0 .. 2047, the second one all: blocks 2, key rows 2048 + 4096.
struct AttendCounts {
  double blocks = 0, queries = 0;
  double key_rows = 0;  // keys of all blocks
  double pairs = 0;     // (query, key) pairs that the mask lets through
  bool masked = false;  // by causality: not all queries see all keys
};
// From averages in closed form: exact where all runs of queries of the op are equally long.
AttendCounts count_attend(const ShardedProblem& sharded, const Attend& op, double block_rows);

double attend_seconds(const AttendModel& model, const AttendCounts& counts);

class CostModel {
 public:
  CostModel(const ClusterSpec& cluster, const ShardedProblem& sharded);
  // Reason why the device has no speed for such attention; empty when it has one.
  static std::string why_unsupported(const ClusterSpec& cluster, const AttentionProblem& problem);

  struct AttendCost {
    double seconds, pairs;
  };
  AttendCost attend(const Attend& op) const;
  double pack_s(int64_t bytes) const;
  double merge_s(int64_t bytes) const;  // of the partial that is folded in
  double reset_s(int64_t bytes) const;
  // FLOP/s of attention whose queries see `keys` keys each (twice what a causal mask leaves).
  double attend_flops_per_s(double keys) const;

 private:
  // A launch and `bytes` at `speed`; unknown: at the memory's bandwidth over `passes`.
  double copy_s(int64_t bytes, const Quantity& speed, double passes) const;
  const ClusterSpec& cluster_;
  const ShardedProblem& sharded_;
  struct Curve {  // over rows, at one head_dim
    double head_dim;
    std::vector<std::pair<double, double>> points;  // log2 rows, FLOP/s
    double at(double log2_rows) const;
  };
  std::vector<Curve> curves_;
  std::array<std::optional<AttendModel>, 2> models_;  // of attends without a mask and with one
  double speed_ = 1;  // of compute, over that of a cluster whose ranks are all at work
};

// ---- all-gathers by formula ----

// All-gathers inside one call of NCCL, timed by a formula. All members start together, when the
// last one is ready, and end together; such a gather shares links with nobody.
//
// nccl_ring: NCCL's own tuning model (src/graph/tuning.cc, v2.28), a ring over the GPUs in which
// each of a node's cards carries a channel. Latency = base + (P - nodes) max(intra, overhead) +
// (nodes - 1) inter, for the protocols LL, LL128 and Simple; the fastest one is taken, as NCCL's
// tuner does. LL moves at most half of the bandwidth, and 20 GB/s beyond two nodes. nccl_simple
// takes Simple alone; ideal has the cluster's own latencies. Where each rank has a node of its own,
// network latencies are exposed in full and the tuner takes its trees' (5, 8.5, 14 us).
//
// nccl_pat: NCCL's tree for all-gathers (parallel aggregated trees, since 2.23) by the same model,
// 8 us + floor(log2 nodes) 14 us / 3.5 + P 2.8 us, at 0.75 of a card's bandwidth. Simple protocol
// only; NCCL enables it only where every rank has a node of its own. (Its double binary trees serve
// all-reduces alone, which no program here has.) ideal: log2 P steps of the cluster's own latency,
// at full bandwidth.
//
// multi_channel_ring: the ring with the cluster's own latencies, whatever their set.
//
//   6.29 MB by nccl_ring at 400 GB/s             43 us on 8 GPUs, 166 us on 64, 0.93 ms on 512,
//                                                5.3 ms on 4096
//   by nccl_pat on 64 nodes of one GPU, 50 GB/s  8 + 24 + 179 + 168 = 379 us

struct GatherShape {
  int members = 1, nodes = 1;
  double bytes = 0;  // of the gathered whole
};

// Bytes per second at which a member receives: those of its node's cards or of its own port.
double ring_bandwidth(const ClusterSpec& cluster, const GatherShape& shape);
double multi_channel_ring_s(const ClusterSpec& cluster, const GatherShape& shape, AlphaSet set);
double nccl_ring_s(const ClusterSpec& cluster, const GatherShape& shape, AlphaSet set);
double nccl_pat_s(const ClusterSpec& cluster, const GatherShape& shape, AlphaSet set);
const std::vector<std::string>& formula_names();
bool is_formula(std::string_view all_gather);
// Reason why the cluster's library would not gather so; "" when it would.
std::string why_not_formula(const ClusterSpec& cluster, std::string_view all_gather);
std::array<double, 3> gather_seconds(const ClusterSpec& cluster, std::string_view all_gather,
                                     const GatherShape& shape);  // by AlphaSet

}  // namespace longnet
