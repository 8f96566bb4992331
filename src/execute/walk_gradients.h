// Gradients of a walk over virtual ranks: the rows that ranks share, and of each unit the digests,
// errors and terms of laws. Works on memory of the host.
//
// Gradients of the K/V rows that ranks exchange are all that a walk of a backward pass keeps beyond
// a rank's shard.
//
//   N = 16, P = 4, branch {16, 4}: the keys 0 4 8 12 are shared. Rank 1 sends what its query 4
//   gives to the keys 0, 8 and 12; a walk adds it to the sums of these rows here, and when the rank
//   is done, its dK and dV of key 4. After rank 3 the four rows are complete.
//
// It does not matter how a collective sends: each message begins as a sum of nothing (a receive
// fills zeros), so it carries what this rank alone gives. Sums are in double and in the order of
// ranks.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "execute/virtual_walk.h"

namespace longnet {

class SharedGradients {
 public:
  // Tokens of a sequence, ascending, by K/V head.
  using Tokens = std::vector<std::vector<int64_t>>;
  static constexpr const char* kTag = "shared_gradients";  // in ledgers

  // Sums for all sequences of the schedule at once. The ledger must outlive it.
  SharedGradients(const Schedule& schedule, MemoryLedger& ledger);
  // Bytes that it takes of the ledger.
  static int64_t bytes(const Schedule& schedule);

  // The sums are of the sequences from `first_batch` on.
  void set_first_batch(int64_t first_batch) { first_batch_ = first_batch; }
  void clear();
  // The sums as they are in memory, of rows and of expected gradients.
  std::span<std::byte> memory() { return memory_.bytes(); }

  bool has(int64_t kv_head, int64_t token) const;
  // Adds rows of dK and dV, which are named as those of K and V.
  void add(std::span<const FillRows> gradients);
  // The rank's shared rows of dK and dV, one by one.
  std::vector<FillRows> rows_of(const BoundProgram& bound) const;
  // Adds what the rank's queries give to these keys, by the definition: the same ones, kMostKeys at
  // most, of each rank.
  void add_expected(const BoundProgram& bound, const AttentionProblem& problem,
                    const std::vector<KeySample>& keys);

  // Calls visit(rows) with the rows of dK and dV, some at a time, rounded to fp32.
  void for_each_rounded(const std::function<void(std::vector<FillRows> rows)>& visit) const;
  // Errors of dK and dV of these keys.
  std::array<SampleErrors, 2> compare(const std::vector<KeySample>& keys) const;

 private:
  SharedGradients(const Schedule& schedule, Tokens tokens);
  int64_t rows() const { return problem_.batch * rows_per_sequence_; }
  int64_t doubles() const { return 2 * problem_.head_dim * (rows() + num_keys_); }
  int64_t index_of(int64_t kv_head, int64_t token) const;  // `token` counts through the batch
  double* sum_of(int64_t index, Tensor tensor) const;

  AttentionProblem problem_;  // its batch: the sequences held at once
  Tokens tokens_;
  std::vector<int64_t> first_row_;  // index of each head's first row in a sequence
  int64_t rows_per_sequence_ = 0, num_keys_ = 0, first_batch_ = 0;
  TaggedBuffer memory_;  // [row, then key][dK, dV][head_dim]
};

class WalkGradients {
 public:
  // `problem`: with the whole batch. The ledger must outlive it.
  WalkGradients(const AttentionProblem& problem, int threads, MemoryLedger& ledger)
      : problem_(problem), threads_(threads), ledger_(ledger) {}

  void end_with(Rank last) { last_ = last; }  // UnitWalk::end_with
  // UnitWalk::sums_after, and before a unit runs: makes the sums of a part of the batch where
  // another part's are. They begin at 0, and again when they are complete.
  std::span<std::byte> sums_of(const Schedule& schedule, const WalkUnit& unit);
  // Rows of dK and dV that the unit sends to other ranks.
  void add(std::span<const FillRows> rows) { shared_->add(rows); }
  // After a unit has run. `bound`: its program, over memory that the host reads. Compares those of
  // `keys` that the unit completes. Shared rows of dK and dV become 0 there.
  void inspect(const BoundProgram& bound, const std::vector<QuerySample>& samples,
               const std::vector<KeySample>& keys, UnitOutcome& out);

 private:
  void add_digests(const std::vector<FillRows>& rows, uint64_t times, GradientOutcome& g) const;
  void complete(const std::vector<KeySample>& shared_keys, LawSums& laws, UnitOutcome& out);

  AttentionProblem problem_;
  int threads_;
  MemoryLedger& ledger_;
  std::unique_ptr<RowWorker> worker_ = make_cpu_row_worker();
  std::unique_ptr<SharedGradients> shared_;
  int64_t batches_ = 0;  // sequences that `shared_` is of
  std::optional<Rank> last_{};
};

}  // namespace longnet
