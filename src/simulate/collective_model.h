// All-gathers whose time is a formula: what NCCL does inside one call. All members start together,
// when the last one is ready, and end together; such a gather shares links with nobody.
//
//   nccl_ring            NCCL's own tuning model (src/graph/tuning.cc, v2.28): a ring over the GPUs
//                        in which each of a node's cards carries a channel. Latency = base +
//                        (P - nodes) max(intra, overhead) + (nodes - 1) inter, for the protocols
//                        LL, LL128 and Simple; the fastest one is taken, as NCCL's tuner does. LL
//                        moves at most half of the bandwidth, and 20 GB/s beyond two nodes.
//                        nccl_simple takes Simple alone; ideal has the cluster's own latencies.
//   multi_channel_ring   the same ring with the cluster's own latencies, whatever their set.
//
//   A gather of 6.29 MB at 400 GB/s: 43 us on 8 GPUs, 166 us on 64, 0.93 ms on 512, 5.3 ms on 4096.
#pragma once
#include <array>
#include <string_view>

#include "simulate/cluster.h"

namespace longnet {

struct GatherShape {
  int members = 1, nodes = 1;
  double bytes = 0;  // of the gathered whole
};

// Bytes per second at which a member receives: what its node's cards or its own port give.
double ring_bandwidth(const ClusterSpec& cluster, const GatherShape& shape);
double multi_channel_ring_s(const ClusterSpec& cluster, const GatherShape& shape, AlphaSet set);
double nccl_ring_s(const ClusterSpec& cluster, const GatherShape& shape, AlphaSet set);
bool is_formula(std::string_view all_gather);  // nccl_ring or multi_channel_ring
std::array<double, 3> gather_seconds(const ClusterSpec& cluster, std::string_view all_gather,
                                     const GatherShape& shape);  // by AlphaSet

}  // namespace longnet
