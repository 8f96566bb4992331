// All-gathers inside one call of NCCL, timed by a formula. All members start together, when the
// last one is ready, and end together; such a gather shares links with nobody.
//
// nccl_ring: NCCL's own tuning model (src/graph/tuning.cc, v2.28), a ring over the GPUs in which
// each of a node's cards carries a channel. Latency = base + (P - nodes) max(intra, overhead) +
// (nodes - 1) inter, for the protocols LL, LL128 and Simple; the fastest one is taken, as NCCL's
// tuner does. LL moves at most half of the bandwidth, and 20 GB/s beyond two nodes. nccl_simple
// takes Simple alone; ideal has the cluster's own latencies. Where each rank has a node of its own,
// network latencies are exposed in full and the tuner takes its trees' (5, 8.5, 14 us).
//
// nccl_pat: NCCL's tree for all-gathers (parallel aggregated trees, since 2.23) by the same model,
// 8 us + floor(log2 nodes) 14 us / 3.5 + P 2.8 us, at 0.75 of a card's bandwidth. Simple protocol
// only; NCCL enables it only where every rank has a node of its own. (Its double binary trees serve
// all-reduces alone, which no program here has.) ideal: log2 P steps of the cluster's own latency,
// at full bandwidth.
//
// multi_channel_ring: the ring with the cluster's own latencies, whatever their set.
//
//   6.29 MB by nccl_ring at 400 GB/s             43 us on 8 GPUs, 166 us on 64, 0.93 ms on 512,
//                                                5.3 ms on 4096
//   by nccl_pat on 64 nodes of one GPU, 50 GB/s  8 + 24 + 179 + 168 = 379 us
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "simulate/cluster.h"

namespace longnet {

struct GatherShape {
  int members = 1, nodes = 1;
  double bytes = 0;  // of the gathered whole
};

// Bytes per second at which a member receives: those of its node's cards or of its own port.
double ring_bandwidth(const ClusterSpec& cluster, const GatherShape& shape);
double multi_channel_ring_s(const ClusterSpec& cluster, const GatherShape& shape, AlphaSet set);
double nccl_ring_s(const ClusterSpec& cluster, const GatherShape& shape, AlphaSet set);
double nccl_pat_s(const ClusterSpec& cluster, const GatherShape& shape, AlphaSet set);
const std::vector<std::string>& formula_names();
bool is_formula(std::string_view all_gather);
// Reason why the cluster's library would not gather so; "" when it would.
std::string why_not_formula(const ClusterSpec& cluster, std::string_view all_gather);
std::array<double, 3> gather_seconds(const ClusterSpec& cluster, std::string_view all_gather,
                                     const GatherShape& shape);  // by AlphaSet

}  // namespace longnet
