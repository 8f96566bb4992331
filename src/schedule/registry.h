// The algorithms by name. To add one: a file in this folder, a line in registry.cpp, a line in
// registry_test.cpp.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "schedule/program.h"

namespace longnet {

struct AlgorithmInfo {
  std::string_view name;
  std::string_view summary;  // one line for --help
  bool takes_pattern;        // dilated: uses the config's branches; exact ones use the dense branch
  Schedule (*make)(const ShardedProblem&);
  // Empty when the algorithm can run this, else the reason.
  std::string (*why_unsupported)(const ShardedProblem&);
};

const std::vector<AlgorithmInfo>& algorithms();
// Throws UsageError that lists the known names.
const AlgorithmInfo& find_algorithm(std::string_view name);

// One rank, no communication: the device's own attention, the yardstick of all others.
Schedule local_attention(const ShardedProblem& sharded);
// Ring Attention (Liu et al., arXiv 2310.01889), contiguous shards, two K/V buffers.
Schedule ring_attention(const ShardedProblem& sharded);
// LongNet (arXiv 2307.02486, section 3): all-gather of selected K/V rows inside each segment's
// ranks.
Schedule dilated_attention(const ShardedProblem& sharded);

}  // namespace longnet
