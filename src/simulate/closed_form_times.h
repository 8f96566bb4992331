// Cases whose time an equation gives; the simulator must reproduce them to the last digits.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "schedule/sharded_problem.h"
#include "simulate/cluster.h"

namespace longnet {

struct ClosedFormTime {
  std::string name, equation;
  double expected_s = 0, simulated_s = 0;
  double rel_error() const { return std::abs(simulated_s - expected_s) / expected_s; }
};

// Ring attention and a ring all-gather, with their backward passes, pairwise and linear all-to-all,
// two flows on one link, a tapered tree.
std::vector<ClosedFormTime> closed_form_times();

// A small cluster of round numbers, every knob by name: for equations and tests.
struct PlainCluster {
  int nodes = 4, gpus_per_node = 4;
  double intra_alpha = 1e-6, intra_bandwidth = 4e11, inter_alpha = 2e-6, inter_bandwidth = 5e10;
  int cards = 0;  // per node; 0: one per GPU
  TopologySpec topology{};
  ExecutionKind execution = ExecutionKind::kStreams;
  bool async_progress = true;
  double overlap_efficiency = 1, overhead_s = 0;
};

ClusterSpec plain_cluster(const PlainCluster& s = {});
// Exact attention over 8192 tokens by 8 heads of 64 in bf16, for both too.
ShardedProblem plain_problem(int ranks);

}  // namespace longnet
