// Gradients of a walk over virtual ranks: the rows that ranks share, and of each unit the digests,
// errors and terms of laws. Works on memory of the host.
#pragma once
#include <memory>
#include <span>

#include "execute/shared_gradients.h"
#include "execute/virtual_walk.h"

namespace longnet {

class WalkGradients {
 public:
  // `problem`: with the whole batch. The ledger must outlive it.
  WalkGradients(const AttentionProblem& problem, int threads, MemoryLedger& ledger)
      : problem_(problem), threads_(threads), ledger_(ledger) {}

  // UnitWalk::sums_after: makes the sums of a part of the batch where another part's are.
  std::span<std::byte> sums_of(const Schedule& schedule, const WalkUnit& unit);
  // Before a unit runs. The sums of a sequence's first rank begin at 0.
  void begin(const Schedule& schedule, const WalkUnit& unit);
  // Rows of dK and dV that the unit sends to other ranks.
  void add(std::span<const FillRows> rows) { shared_->add(rows); }
  // After a unit has run. `bound`: its program, over memory that the host reads. Compares those of
  // `keys` that the unit completes. Shared rows of dK and dV become 0 there.
  void inspect(const BoundProgram& bound, const std::vector<QuerySample>& samples,
               const std::vector<KeySample>& keys, ShardOutcome& out);

 private:
  void add_digests(const std::vector<FillRows>& rows, uint64_t times, GradientOutcome& g) const;
  void complete(const std::vector<KeySample>& shared_keys, LawSums& laws, ShardOutcome& out) const;

  AttentionProblem problem_;
  int threads_;
  MemoryLedger& ledger_;
  std::unique_ptr<RowWorker> worker_ = make_cpu_row_worker();
  std::unique_ptr<SharedGradients> shared_;
  int64_t batches_ = 0;  // sequences that `shared_` is of
};

}  // namespace longnet
