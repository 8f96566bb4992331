// The algorithms by name. To add one: a file in this folder, a line in registry.cpp, its closed
// form in formulas_test.cpp; registry_test.cpp runs whatever is registered.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "schedule/program.h"

namespace longnet {

// The lowerings that change an algorithm's programs: of all-gathers, of all-to-alls, or none.
enum class CollectiveUse { kNone, kAllGather, kAllToAll };

struct AlgorithmInfo {
  std::string_view name;
  std::string_view summary;  // one line for --help
  PatternKind pattern;       // of a config: the one that it computes
  CollectiveUse collectives;
  Schedule (*make)(const ShardedProblem&);
  // Empty when the algorithm can run this, else the reason.
  std::string (*why_unsupported)(const ShardedProblem&);
  // The smallest known k, a divisor of P, such that rank p + k does what rank p does, with every
  // rank moved by k around the ring of P: same ops, bytes and pairs. P when no two ranks are alike.
  // A test holds it against the programs (simulate/period_test.cpp).
  int (*period)(const ShardedProblem&);
  // Its options with what it really uses in place of 0 ("the algorithm chooses") and of values that
  // change nothing; as given where they are not supported.
  AlgorithmOptions (*effective_options)(const ShardedProblem&) = [](const ShardedProblem& s) {
    return s.options;
  };
};

const std::vector<AlgorithmInfo>& algorithms();
// Throws UsageError that lists the known names.
const AlgorithmInfo& find_algorithm(std::string_view name);

// One rank, no communication: the device's own attention, the baseline of all others.
Schedule local_attention(const ShardedProblem& sharded);
// Ring Attention (Liu et al., arXiv 2310.01889), two K/V buffers, any layout.
Schedule ring_attention(const ShardedProblem& sharded);
// All K/V rows on every rank (Llama 3), `head_slice` heads at a time.
Schedule all_gather_attention(const ShardedProblem& sharded);
int64_t all_gather_head_slice(const ShardedProblem& sharded);  // K/V heads at a time; 0: all
// All-to-all over heads (DeepSpeed Ulysses).
Schedule ulysses_attention(const ShardedProblem& sharded);
// Ulysses inside groups of usp_degree ranks, a ring over the groups.
Schedule usp_attention(const ShardedProblem& sharded);
int usp_degree(const ShardedProblem& sharded);
// A ring in both directions, half of the K/V heads in each.
Schedule bidirectional_ring_attention(const ShardedProblem& sharded);
// Rings inside nodes, a ring over nodes (LoongTrain).
Schedule double_ring_attention(const ShardedProblem& sharded);
int double_ring_inner(const ShardedProblem& sharded);
// Moves queries and partial results instead of keys (Tree Attention's reduction).
Schedule query_gather_attention(const ShardedProblem& sharded);
// LongNet (arXiv 2307.02486, section 3): all-gather of selected K/V rows inside each segment's
// ranks. Also runs the Sparse Transformer's pattern, whose summary rows go to every rank.
Schedule dilated_attention(const ShardedProblem& sharded);

}  // namespace longnet
