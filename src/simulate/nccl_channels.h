// NCCL's channels: how many of them move the messages of one pair of ranks, how fast, and by which
// protocol. A channel is a block on a multiprocessor at either end.
//
//   a communicator in one node   all channels over its ranks (as many as the next power of two), at
//                                least one; doubled until each has at most 16 MiB of a tensor
//   over nodes                   two (four from NCCL 2.29), fewer among many ranks; so also a pair
//                                of them that lies in one node
//
//   8 H100   a tensor of 64 MiB  4 of 32 channels, 85 GB/s; of 512 MiB 32, and the NVLinks' 371
//   16 H100                      2 channels, 43 GB/s
//
// Tensors up to 16 KiB for each channel that the pair may have go by protocol LL, larger ones by
// Simple. NCCL's ncclTopoGetNchannels and ncclTopoComputeP2pChannels (src/graph/paths.cc),
// addP2pToPlan and scheduleP2pTasksToPlan (src/enqueue.cc).
#pragma once
#include "core/rank_group.h"
#include "simulate/cluster.h"

namespace longnet {

// Ranks as RankGrid has them: replicas, one after the other, of places in the sequence, each of
// `head_groups` ranks. A communicator has the ranks of one place; of a place in each of an inner
// group, for one head group; of a place in each of these groups; else one of each replica.
struct Communicators {
  int ranks = 1;
  int inner_group = 1;  // places, Schedule::inner_group
  int replicas = 1, head_groups = 1;
};

struct NcclChannels {
  int count = 0;           // 0: not known
  double bytes_per_s = 0;  // all of them together; 0: no limit is known
  bool by_simple = false;  // the tensor is too large for LL
};

// `tensor`: bytes of the largest tensor that `from` sends to `to`.
NcclChannels nccl_channels(const ClusterSpec& cluster, const Communicators& all, Rank from, Rank to,
                           double tensor);

}  // namespace longnet
