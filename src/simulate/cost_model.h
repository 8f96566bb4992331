// Seconds that a device takes for one op of a program, and a library for an all-gather.
//
// Where a device has an attend model, that prices an attend (AttendCounts). Else an attend takes
// the seconds per (query, key) pair that the table of the cluster's kernel gives; longer in
// proportion when its last wave of blocks is not full; and never less than memory needs for its
// operands. An attend of a backward pass is priced alike, by models and rows of its own, and in
// waves of what its kernel splits. Packs, merges, sums of gradients and deltas move bytes.
//
// The table is read as a + b / rows (each query costs something besides its keys: prologue, tail,
// the masked half of diagonal tiles) and as c + e head_dim (exponentials, then products), by lines
// through its entries; beyond its ends by the same lines, where they rise towards short rows and
// small heads. An attend that causality does not cut takes the unmasked entries. Few masked figures
// of backward passes are published: a pair under a mask costs at least what it costs without one.
//
//   h100-ndr400, d = 64, bf16: 8192 queries x 8192 keys x 12 heads = 2.06e11 FLOP; cuDNN runs at
//   412 TFLOP/s with 8192 rows: 500 us and 5 us to launch.
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
  double key_rows = 0;   // keys of all blocks
  double pairs = 0;      // (query, key) pairs that the mask lets through
  bool masked = false;   // by causality: not all queries see all keys
  double most_keys = 0;  // keys per query, were there no mask
};
// Sets blocks and key rows of counts whose queries are `runs` equally long ones, each cut into
// blocks of at most `block_rows`.
void cut_into_blocks(AttendCounts& counts, double runs, double block_rows);
// From averages in closed form: exact where all runs of queries of the op are equally long.
AttendCounts count_attend(const ShardedProblem& sharded, const Attend& op, double block_rows);

double attend_seconds(const AttendModel& model, const AttendCounts& counts);

class CostModel {
 public:
  CostModel(const ClusterSpec& cluster, const ShardedProblem& sharded);
  // Reason why the device has no speed for such attention; empty when it has one.
  static std::string why_no_speed(const ClusterSpec& cluster, const AttentionProblem& problem,
                                  Pass pass = Pass::kForward, Scope scope = Scope::kAttention);

  struct AttendCost {
    double seconds, pairs;
    bool beyond_table;  // fewer keys a query, or another head_dim, than any row of it has
  };
  // `backward`: the backward pass of `op`. Throws UsageError where the device has no speed for it.
  AttendCost attend(const Attend& op, bool backward = false) const;
  double pack_s(int64_t bytes) const;
  double pack_bytes_s(int64_t bytes) const;  // for a further piece that a launched pack moves
  // Seconds to merge a partial of `bytes`; `slice`: into a part of the output.
  double merge_s(int64_t bytes, bool slice = false) const;
  // To add gradients of `bytes`, which are `pieces` of the same rows, to others.
  double sum_s(int64_t bytes, int64_t pieces = 1) const;
  double reset_s(int64_t bytes) const;
  double delta_s(int64_t bytes) const;  // `bytes` of O and dO
  // A product of a model: at the speed of large ones, less where its result has fewer tiles of
  // 128 x 128 than the device has multiprocessors, and never faster than memory; on a device that
  // copies its matrices before it multiplies (gemm_bytes_per_s), one after the other.
  double gemm_s(const Gemm& op, int64_t bytes) const;
  // `bytes`: that are read and written (schedule/accounting.h, matrix_bytes).
  double row_wise_s(RowFunction function, int64_t bytes) const;
  double cross_entropy_s(int64_t bytes) const;
  double update_s(int64_t bytes) const;

 private:
  // A launch and `bytes` at `speed`; unknown: at the memory's bandwidth over `passes`.
  double copy_s(int64_t bytes, const Quantity& speed, double passes) const;
  const ClusterSpec& cluster_;
  const ShardedProblem& sharded_;
  struct Curve {  // over rows, at one head_dim
    double head_dim;
    std::vector<std::pair<double, double>> points;  // 1 / rows, seconds per pair
    double at(double keys) const;
  };
  using Table = std::vector<Curve>;  // by head_dim
  static double read(const Table& table, double keys, double head_dim);
  struct Prices {  // attends without a mask and with one
    bool backward;
    std::array<Table, 2> tables{};
    std::array<std::optional<AttendModel>, 2> models{};
  };
  Prices read_prices(bool backward) const;
  double seconds_per_pair(const Prices& prices, const AttendCounts& counts) const;
  bool is_beyond_table(const Prices& prices, const AttendCounts& counts) const;
  double memory_bytes(const Attend& op, const AttendCounts& counts, bool backward) const;
  // Blocks run in waves, of which the last is seldom full: whole waves over those that are needed.
  double wave_factor(const Attend& op, const AttendCounts& counts, bool backward) const;
  std::array<Prices, 2> prices_;  // forward passes, backward passes
  double speed_ = 1;  // compute speed over that of a cluster whose ranks are all at work
};

// ---- all-gathers by formula ----

// All-gathers inside one call of NCCL, timed by a formula. All members start together, when the
// last one is ready, and end together; such a gather shares links with nobody.
//
// nccl_ring: NCCL's own tuning model (src/graph/tuning.cc, v2.28), a ring over the GPUs in which
// each of a node's cards carries a channel. Latency = base + (P - nodes) max(intra, overhead) +
// (nodes - 1) inter, for the protocols LL, LL128 and Simple, overhead between nodes only; the
// fastest one is taken, as NCCL's tuner does. LL moves at most half of the bandwidth, and the
// link's ll_bytes_per_s on one node, 39 GB/s on two, 20 GB/s on more; LL128 0.92 of it. A call
// between nodes costs the link's call_s besides. nccl_simple takes Simple alone; ideal has the
// cluster's own latencies. Where each rank has a node of its own, network latencies are exposed in
// full and the tuner takes its trees' (5, 8.5, 14 us).
//
// nccl_pat: NCCL's tree for all-gathers (parallel aggregated trees, since 2.23) by the same model,
// 8 us + floor(log2 nodes) 14 us / 3.5 + P 2.8 us, at 0.75 of a card's bandwidth. Simple protocol
// only; NCCL enables it only where every rank has a node of its own. (Its double binary trees serve
// all-reduces alone, which no program here has.) ideal: log2 P steps of the cluster's own latency,
// at full bandwidth.
//
// multi_channel_ring: the ring with the cluster's own latencies, whatever their set.
//
//   6.29 MB by nccl_ring at 400 GB/s             42 us on 8 GPUs, 165 us on 64, 0.93 ms on 512,
//                                                5.3 ms on 4096
//   by nccl_pat on 64 nodes of one GPU, 50 GB/s  8 + 24 + 179 + 168 = 379 us

struct GatherShape {
  int members = 1, nodes = 1;
  double bytes = 0;  // the whole result
};

// Bytes per second at which a member receives: those of its node's cards or of its own port.
double ring_bandwidth(const ClusterSpec& cluster, const GatherShape& shape);
double multi_channel_ring_s(const ClusterSpec& cluster, const GatherShape& shape, AlphaSet set);
double nccl_ring_s(const ClusterSpec& cluster, const GatherShape& shape, AlphaSet set);
double nccl_pat_s(const ClusterSpec& cluster, const GatherShape& shape, AlphaSet set);
std::vector<std::string> formula_names();
bool is_formula(std::string_view all_gather);
// Reason why the cluster's library would not gather so; "" when it would.
std::string why_not_formula(const ClusterSpec& cluster, std::string_view all_gather);
std::array<double, 3> gather_seconds(const ClusterSpec& cluster, std::string_view all_gather,
                                     const GatherShape& shape);  // by AlphaSet

}  // namespace longnet
