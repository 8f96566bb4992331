// Seconds that a device takes for one op of a program.
//
// Where a device has an attend model, that prices an attend (AttendCounts). Else an attend takes
// the seconds per (query, key) pair that the table of the cluster's kernel gives for as many keys
// as a query has; longer in proportion when its last wave of blocks is not full; and never less
// than memory needs for its operands. An attend of a backward pass is priced alike, by models and
// rows of its own; where its kernel splits keys, by the queries that a key has, in waves of keys.
// Packs, merges, sums of gradients and deltas move bytes.
//
// An attend that causality does not cut takes the unmasked rows of the table. So do later steps of
// a zigzag ring, where half of the queries see all keys or all of them half of the keys (libraries
// call them so: ring-flash-attention, zigzag_ring_flash_attn.py, causal=False); both count as the
// latter. A pair under a mask costs at least what it costs without one: the price without a mask is
// lowered where it is a guess. In a backward pass, few of whose masked figures are published, the
// other one is raised, unless it alone is known.
//
// A price that no figure of the cluster file covers is a guess, and marked (Price).
//
//   h100-ndr400, d = 64, bf16: 8192 queries x 8192 keys x 12 heads = 2.06e11 FLOP; cuDNN runs at
//   412 TFLOP/s with 8192 rows: 500 us and 5 us to launch.
#pragma once
#include <array>
#include <optional>
#include <string>

#include "core/guess.h"
#include "schedule/program.h"
#include "simulate/cluster.h"
#include "simulate/kernel_table.h"

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
// Counts of an op by averages in closed form: exact where its runs of queries are equally long.
AttendCounts count_attend(const ShardedProblem& sharded, const Attend& op, double block_rows);

double attend_seconds(const AttendModel& model, const AttendCounts& counts);

// Seconds of an op, and whether they are a guess, for the cluster file has no figure of its size.
// An attend: it has more keys a query (queries a key) than the file's rows; fewer, or a head_dim
// that they do not enclose; or the rows are estimates, or those of the other mask. An op of a
// model: a product of fewer tiles than the device has multiprocessors, for the file has the speed
// of large ones; a function of rows, a loss or an update whose speed the file does not have.
struct Price {
  double seconds = 0;
  Guess guess = Guess::kNone;
};

// How an attend runs. `adds`: the dQ of a backward pass is added to that of other attends. Kernels
// of libraries write dQ in the storage type; where nothing is fused, a kernel adds it to the sum in
// fp32 (dq += dq_buffer, ring-flash-attention, ring_flash_attn.py): read, and the sum read and
// written.
struct AttendPass {
  bool backward = false;
  bool adds = false;
};

class CostModel {
 public:
  CostModel(const ClusterSpec& cluster, const ShardedProblem& sharded);
  // Reason why the device has no speed for such attention; empty when it has one.
  static std::string why_no_speed(const ClusterSpec& cluster, const AttentionProblem& problem,
                                  Pass pass = Pass::kForward, Scope scope = Scope::kAttention);

  struct AttendCost : Price {
    double pairs = 0;
  };
  // Throws UsageError where the device has no speed for the pass.
  AttendCost attend(const Attend& op, const AttendPass& pass = {}) const;
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
  Price gemm(const Gemm& op, int64_t bytes) const;
  // `bytes`: that are read and written (schedule/accounting.h, matrix_bytes).
  Price row_wise(RowFunction function, int64_t bytes) const;
  Price cross_entropy(int64_t bytes) const;
  Price update(int64_t bytes) const;

 private:
  // A launch and `bytes` at `speed`; unknown: at the memory's bandwidth over `passes`.
  double copy_s(int64_t bytes, const Quantity& speed, double passes) const;
  // Price of a function of a model: copy_s, in one pass; a guess where `speed` is unknown.
  Price function_price(int64_t bytes, const Quantity& speed) const;
  struct Prices {  // attends without a mask and with one
    bool backward;
    std::array<KernelTable, 2> tables{}, known{};  // all rows; those that are no estimates
    std::array<std::optional<AttendModel>, 2> models{};
    bool has_unmasked = false;  // the first table has rows of its own, not those of the second
  };
  Prices read_prices(bool backward) const;
  double wave_factor(double rows, double head_dim, bool backward) const;
  // Seconds a pair of a kernel whose blocks of `rows` (queries or keys, of all heads) loop over the
  // others, of which a row would see `most` without a mask.
  Price split_price(const Prices& prices, const AttendCounts& counts, double rows,
                    double most) const;
  // Seconds a pair by the rows that the kernel splits into blocks: queries, keys, or both.
  Price pair_price(const Prices& prices, const Attend& op, const AttendCounts& counts) const;
  double memory_bytes(const Attend& op, const AttendCounts& counts, bool backward) const;
  const ClusterSpec& cluster_;
  const ShardedProblem& sharded_;
  ShardedProblem unmasked_;       // the same without a mask
  std::array<Prices, 2> prices_;  // forward passes, backward passes
  double speed_ = 1;  // compute speed over that of a cluster whose ranks are all at work
};

}  // namespace longnet
