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

// Its ranks, and the whole block of ranks that they lie in.
struct Group {
  int ranks, block;
};
Group group_of(const Communicators& all, Rank from, Rank to) {
  const auto share = [&](int block) { return from / block == to / block; };
  const int heads = all.head_groups, inner = heads * all.inner_group,
            replica = all.ranks / all.replicas;
  if (share(heads)) return {heads, heads};
  if (share(inner)) return {all.inner_group, inner};
  if (share(replica)) return {replica / inner, replica};
  return {all.ranks / heads, all.ranks};
}

}  // namespace

NcclChannels nccl_channels(const ClusterSpec& c, const Communicators& all, Rank from, Rank to,
                           double tensor) {
  const int node = c.node_size();
  const Group group = group_of(all, from, to);
  const LinkSpec& link = from / node == to / node ? c.intra : c.inter;
  int count = 0, most = 0;
  if (all.ranks <= node || node % group.block == 0) {
    most = int(link.channels.value);
    if (most == 0) return {};
    count = channels_in_a_node(most, group.ranks, tensor);
  } else {
    const int known = int(c.inter.channels.value);
    count = most = channels_over_nodes(known > 0 ? known : 2, group.ranks);
  }
  return {count, count * link.channel_bytes_per_s.value, tensor > kMostOfLl * most};
}

}  // namespace longnet
