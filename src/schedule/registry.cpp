#include "schedule/registry.h"

#include "core/check.h"

namespace longnet {

// Made in their own files and known to nobody else.
Schedule query_gather_attention(const ShardedProblem& sharded);
Schedule bidirectional_ring_attention(const ShardedProblem& sharded);

namespace {

std::string any(const ShardedProblem&) { return {}; }

std::string one_rank(const ShardedProblem& s) {
  if (s.layout.world_size() == 1) return {};
  return concat("local runs on one rank, not on ", s.layout.world_size(),
                "; ring is exact on several");
}

std::string contiguous(const ShardedProblem& s) {
  if (s.layout.kind() == LayoutKind::kContiguous) return {};
  return concat("needs contiguous shards, not ", to_string(s.layout.kind()));
}

std::string not_striped(const ShardedProblem& s) {
  return s.layout.kind() == LayoutKind::kStriped ? "takes contiguous or zigzag shards, not striped"
                                                 : "";
}

std::string heads_for_all(const ShardedProblem& s) {
  if (s.layout.world_size() <= s.problem.num_heads) return not_striped(s);
  return concat("Ulysses splits heads: ", s.layout.world_size(), " ranks for ", s.problem.num_heads,
                " heads leave ranks without work; usp also splits the sequence");
}

std::string divides(const ShardedProblem& s) {
  const int degree = usp_degree(s);
  if (s.layout.world_size() % degree != 0)
    return concat("ulysses_degree = ", degree, " does not divide ", s.layout.world_size(),
                  " ranks");
  if (degree > s.problem.num_heads)
    return concat("ulysses_degree = ", degree, " exceeds the ", s.problem.num_heads, " heads");
  return not_striped(s);
}

std::string two_kv_heads(const ShardedProblem& s) {
  if (s.problem.num_kv_heads >= 2) return {};
  return "splits the K/V heads between two directions: one head cannot be; ring can take it";
}

std::string whole_rings(const ShardedProblem& s) {
  const int inner = double_ring_inner(s);
  if (s.layout.world_size() % inner == 0) return {};
  return concat("ring_inner = ", inner, " does not divide ", s.layout.world_size(), " ranks");
}

}  // namespace

const std::vector<AlgorithmInfo>& algorithms() {
  using enum PatternKind;
  using enum CollectiveUse;
  static const std::vector<AlgorithmInfo> kAll{
      {"local", "exact, on one rank, no communication", kDense, kNone, local_attention, one_rank},
      {"ring", "exact: K/V shards travel around a ring of ranks", kDense, kNone, ring_attention,
       any},
      {"all_gather", "exact: all K/V rows on every rank", kDense, kAllGather, all_gather_attention,
       any},
      {"ulysses", "exact: an all-to-all gives each rank some heads of all tokens", kDense,
       kAllToAll, ulysses_attention, heads_for_all},
      {"usp", "exact: Ulysses inside groups, a ring over the groups", kDense, kAllToAll,
       usp_attention, divides},
      {"double_ring", "exact: rings inside nodes, a ring over the nodes", kDense, kNone,
       double_ring_attention, whole_rings},
      {"bidirectional_ring", "exact: half of the K/V heads travel each way around", kDense, kNone,
       bidirectional_ring_attention, two_kv_heads},
      {"query_gather", "exact: queries travel, partial results are reduced", kDense, kAllGather,
       query_gather_attention, any},
      {"dilated", "LongNet: sparse rows gathered inside each segment's ranks", kDilated, kAllGather,
       dilated_attention, contiguous},
      {"sparse", "Sparse Transformer's fixed pattern: local blocks and summary tokens", kSparse,
       kAllGather, dilated_attention, contiguous},
  };
  return kAll;
}

const AlgorithmInfo& find_algorithm(std::string_view name) {
  std::string known;
  for (const AlgorithmInfo& a : algorithms()) {
    if (a.name == name) return a;
    known += concat(known.empty() ? "" : ", ", a.name);
  }
  throw UsageError(concat("unknown algorithm '", name, "'; known: ", known));
}

}  // namespace longnet
