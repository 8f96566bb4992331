// Seconds that a device takes for one op of a program.
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

// The model for `problem`, interpolated in head_dim and held at the ends; `masked` chooses among
// causal ones. Null when the device has none for its dtype.
const AttendModel* find_attend_model(const DeviceSpec& device, const AttentionProblem& problem,
                                     bool masked, AttendModel& interpolated);
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
  double speed_ = 1;  // of compute, over that of a cluster whose ranks are all at work
};

}  // namespace longnet
