// The algorithms by name. README.md says how to add one.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "schedule/lower_collectives.h"

namespace longnet {

struct AlgorithmInfo {
  std::string_view name;
  std::string_view summary;                   // one line for --help
  PatternKind pattern = PatternKind::kDense;  // kind of pattern that it computes
  CollectiveUse collectives = CollectiveUse::kNone;
  bool one_rank_only = false;
  std::string_view forward_of = {};  // another algorithm, whose forward pass it has
  Schedule (*attention)(const ShardedProblem&, Pass) = nullptr;
  // Empty when the algorithm has programs for this, else the reason.
  std::string (*why_no_program)(const ShardedProblem&) = [](const ShardedProblem&) {
    return std::string();
  };
  // The smallest known k, a divisor of P, such that rank p + k does what rank p does, with every
  // rank moved by k around the ring of P: same ops, bytes and pairs. P when no two ranks are alike.
  // A test holds it against the programs (simulate/period_test.cpp).
  int (*period)(const ShardedProblem&) = [](const ShardedProblem& s) {
    return s.layout.world_size();
  };
  // Returns the options with the values really used in place of 0 ("the algorithm chooses") and of
  // values that change nothing; as given where they are not supported. Null: it reads none.
  AlgorithmOptions (*effective_options)(const ShardedProblem&) = nullptr;

  Schedule make(const ShardedProblem& sharded, Pass pass = Pass::kForward) const {
    return attention(sharded, pass);
  }
};

std::span<const AlgorithmInfo> algorithms();
// Empty when the algorithm has programs for this pass, else the reason.
std::string why_no_program(const AlgorithmInfo& algorithm, const ShardedProblem& sharded,
                           Pass pass);
// Returns the schedule of a pass: of both passes the forward program, then the backward one on the
// same shard of Q, K, V and the output.
Schedule make_schedule(const AlgorithmInfo& algorithm, const ShardedProblem& sharded, Pass pass);
// Throws UsageError that lists the known names.
const AlgorithmInfo& find_algorithm(std::string_view name);

// The files of this folder define these and describe them, each for a forward or a backward pass.
Schedule ring_attention(const ShardedProblem& sharded, Pass pass = Pass::kForward);
Schedule all_gather_attention(const ShardedProblem& sharded, Pass pass = Pass::kForward);
int64_t all_gather_head_slice(const ShardedProblem& sharded);  // K/V heads at a time; 0: all
Schedule ulysses_attention(const ShardedProblem& sharded, Pass pass = Pass::kForward);  // usp.cpp
Schedule usp_attention(const ShardedProblem& sharded, Pass pass = Pass::kForward);
int usp_degree(const ShardedProblem& sharded);  // Pu
Schedule bidirectional_ring_attention(const ShardedProblem& sharded, Pass pass = Pass::kForward);
Schedule double_ring_attention(const ShardedProblem& sharded, Pass pass = Pass::kForward);
int double_ring_inner(const ShardedProblem& sharded);  // Pi
Schedule query_ring_attention(const ShardedProblem& sharded, Pass pass = Pass::kForward);
Schedule query_gather_attention(const ShardedProblem& sharded, Pass pass = Pass::kForward);
// Computes the Sparse Transformer's pattern too, whose summary rows go to every rank.
Schedule dilated_attention(const ShardedProblem& sharded, Pass pass = Pass::kForward);
bool dilated_keep_gathered(const ShardedProblem& sharded);  // false where no rank gathers

}  // namespace longnet
