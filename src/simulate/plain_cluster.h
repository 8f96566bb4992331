// A small cluster of round numbers, every knob by name: for equations and tests.
#pragma once
#include "simulate/cluster.h"

namespace longnet {

struct PlainCluster {
  int nodes = 4, gpus_per_node = 4;
  double intra_alpha = 1e-6, intra_bandwidth = 4e11, inter_alpha = 2e-6, inter_bandwidth = 5e10;
  int cards = 0;  // per node; 0: one per GPU
  TopologySpec topology{};
  ExecutionKind execution = ExecutionKind::kStreams;
  bool async_progress = true;
  double overlap_efficiency = 1, overhead_s = 0;
};

inline ClusterSpec plain_cluster(const PlainCluster& s = {}) {
  const auto q = [](double v) { return Quantity{v, "chosen"}; };
  ClusterSpec c{.name = "chosen", .nodes = q(s.nodes), .gpus_per_node = q(s.gpus_per_node)};
  c.device = {.name = "chosen", .memory_bytes = q(80e9), .memory_bandwidth_bytes_per_s = q(1e12)};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    c.device.peak_flops[dtype] = q(1e15);
    for (const bool causal : {false, true})
      c.device.attend.push_back({.rows = 1024,
                                 .head_dim = 64,
                                 .dtype = dtype,
                                 .causal = causal,
                                 .flops_per_s = 1e14,
                                 .source = "chosen"});
  }
  c.intra = {.alpha_s = {{s.intra_alpha, s.intra_alpha, s.intra_alpha}, "chosen"},
             .bandwidth_bytes_per_s = q(s.intra_bandwidth),
             .ports_per_node = q(s.gpus_per_node),
             .overhead_s = q(s.overhead_s)};
  c.inter = {.alpha_s = {{s.inter_alpha, s.inter_alpha, s.inter_alpha}, "chosen"},
             .bandwidth_bytes_per_s = q(s.inter_bandwidth),
             .ports_per_node = q(s.cards > 0 ? s.cards : s.gpus_per_node),
             .overhead_s = q(s.overhead_s)};
  c.topology = s.topology;
  c.execution = s.execution;
  c.async_progress = s.async_progress;
  c.overlap_efficiency = q(s.overlap_efficiency);
  return c;
}

}  // namespace longnet
