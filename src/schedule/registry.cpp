#include "schedule/registry.h"

#include "core/check.h"

namespace longnet {
namespace {

std::string supports_all(const ShardedProblem&) { return {}; }

std::string needs_one_rank(const ShardedProblem& s) {
  if (s.layout.world_size() == 1) return {};
  return concat("local runs on one rank, not on ", s.layout.world_size(),
                "; ring is exact on several");
}

}  // namespace

const std::vector<AlgorithmInfo>& algorithms() {
  static const std::vector<AlgorithmInfo> kAll{
      {"local", "exact attention on one rank, no communication", false, local_attention,
       needs_one_rank},
      {"ring", "exact: K/V shards travel around a ring of ranks", false, ring_attention,
       supports_all},
      {"dilated", "LongNet: sparse rows gathered inside each segment's ranks", true,
       dilated_attention, supports_all},
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
