// All-gathers and reduce-scatters inside one call of NCCL, timed by a formula. All members start
// together, when the last one is ready, and end together; such a collective shares links with
// nobody. Both move the same bytes over the same steps, and NCCL's tuner prices them alike.
//
// nccl_ring: NCCL's own tuning model (src/graph/tuning.cc, v2.28), a ring over the GPUs in which
// each of a node's cards carries a channel. Latency = base + (P - nodes) max(intra, overhead) +
// (nodes - 1) inter, for the protocols LL, LL128 and Simple, overhead between nodes only; the
// fastest one is taken, as NCCL's tuner does. LL moves at most half of the bandwidth, and the
// link's ll_bytes_per_s on one node, 39 GB/s on two, 20 GB/s on more. LL128 moves 0.92 of it, 0.7
// where nodes have fewer than two ranks, and over each card at most the link's ll128_bytes_per_s.
// (The channels inside a node are of at most 30 GB/s, or 20 on A100: too slow for that to matter.)
// A call costs the link's call_s besides. nccl_simple takes Simple alone; ideal has
// the cluster's own latencies. Where each rank has a node of its own, network latencies are exposed
// in full and the tuner takes its trees' (5, 8.5, 14 us).
//
// nccl_pat: NCCL's tree for both (parallel aggregated trees, since 2.23) by the same model, 8 us +
// floor(log2 nodes) 14 us / 3.5 + P 2.8 us, at 0.75 of a card's bandwidth. Simple protocol only;
// NCCL enables it only where every rank has a node of its own. (Its double binary trees serve
// all-reduces alone, which no program here has.) ideal: log2 P steps of the cluster's own latency,
// at full bandwidth.
//
// multi_channel_ring: the ring with the cluster's own latencies, whatever their set.
//
//   (without call_s)
//   6.29 MB by nccl_ring at 400 GB/s             42 us on 8 GPUs, 165 us on 64, 0.93 ms on 512,
//                                                5.3 ms on 4096
//   by nccl_pat on 64 nodes of one GPU, 50 GB/s  8 + 24 + 179 + 168 = 379 us
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "simulate/cluster.h"

namespace longnet {

struct CollectiveShape {
  int members = 1, nodes = 1;
  double bytes = 0;  // all members' pieces: what a gather leaves, what a reduce-scatter takes
};

// Bytes per second at which a member receives: those of its node's cards or of its own port.
double ring_bandwidth(const ClusterSpec& cluster, const CollectiveShape& shape);
double multi_channel_ring_s(const ClusterSpec& cluster, const CollectiveShape& shape, AlphaSet set);
double nccl_ring_s(const ClusterSpec& cluster, const CollectiveShape& shape, AlphaSet set);
double nccl_pat_s(const ClusterSpec& cluster, const CollectiveShape& shape, AlphaSet set);
std::vector<std::string> formula_names();
bool is_formula(std::string_view collective);
// Reason why the cluster's library has no such collective; "" when it has.
std::string why_not_formula(const ClusterSpec& cluster, std::string_view collective);
std::array<double, 3> collective_seconds(const ClusterSpec& cluster, std::string_view collective,
                                         const CollectiveShape& shape);  // by AlphaSet

}  // namespace longnet
