#include "simulate/nccl_channels.h"

#include <algorithm>
#include <bit>

namespace longnet {
namespace {

constexpr double kMostOfLl = 16384;       // bytes a channel: NCCL_P2P_LL_THRESHOLD
constexpr double kMostOfPart = 16 << 20;  // bytes a channel: 32 chunks of 512 KiB

int channels_in_a_node(int most, int ranks, double tensor) {
  int channels = std::max(1, most / int(std::bit_ceil(unsigned(ranks))));
  while (channels < most && tensor > kMostOfPart * channels) channels *= 2;
  return channels;
}

// Two for a peer behind the network, halved where each of 16 had more than 4 peers (to v2.28); one
// for each 14 GB/s of its card, four of NDR's, halved where each had more than 8 (from v2.29).
int channels_over_nodes(int most, int ranks) {
  constexpr int kChannels = 16;
  int channels = most;
  while (channels > 1 && channels * ranks > 2 * most * kChannels) channels /= 2;
  return channels;
}

}  // namespace

NcclChannels nccl_channels(const ClusterSpec& c, const Communicators& all, Rank from, Rank to,
                           double tensor) {
  const int node = c.node_size(), group = all.inner_group;
  const bool inner = group > 0 && from / group == to / group;
  const int ranks = group == 0 ? all.ranks : inner ? group : all.ranks / group;
  const bool in_a_node = all.ranks <= node || (inner && node % group == 0);
  const LinkSpec& link = from / node == to / node ? c.intra : c.inter;
  int count = 0, most = 0;
  if (in_a_node) {
    most = int(link.channels.value);
    if (most == 0) return {};
    count = channels_in_a_node(most, ranks, tensor);
  } else {
    const int known = int(c.inter.channels.value);
    count = most = channels_over_nodes(known > 0 ? known : 2, ranks);
  }
  return {count, count * link.channel_bytes_per_s.value, tensor > kMostOfLl * most};
}

}  // namespace longnet
