// Bytes and messages of collectives in closed form, for closed_form_counts.cpp, which has those of
// algorithms. It stands alone as that does.
//
//   Costs costs;
//   costs.all_gather({8, 8, 8, 8}, 1, 0, {});   // sends 24 bytes in 3 messages, receives 24
#pragma once
#include <algorithm>
#include <vector>

#include "schedule/closed_form_counts.h"

namespace longnet {

using Sizes = std::vector<int64_t>;  // bytes that each member of a group holds

inline Sizes times(Sizes sizes, int64_t factor) {
  for (int64_t& size : sizes) size *= factor;
  return sizes;
}

// The divisor of n next to its root from below.
inline int root_divisor(int n) {
  int found = 1;
  for (int d = 1; d * d <= n; ++d)
    if (n % d == 0) found = d;
  return found;
}

// Costs of messages and collectives, as seen by one rank.
class Costs {
 public:
  RankCounts counts;

  void send(int64_t bytes) {
    counts.bytes_sent += bytes;
    if (bytes > 0) ++counts.messages_sent;
  }
  void receive(int64_t bytes) {
    counts.bytes_received += bytes;
    if (bytes > 0) ++counts.messages_received;
  }
  void hold(int64_t bytes) { counts.memory_bytes += bytes; }

  // Once around a ring: all pieces pass by but the one that ends at the next member, and the one
  // that the own member began with.
  void around(const Sizes& pieces, int not_sent, int not_received) {
    const int n = int(pieces.size());
    for (int i = 0; i < n; ++i) {
      if (i != (not_sent + n) % n) send(pieces[size_t(i)]);
      if (i != (not_received + n) % n) receive(pieces[size_t(i)]);
    }
  }
  void shards_around(const Sizes& shards, int me, int direction = 1) {
    around(shards, me + direction, me);
  }

  // `first`: the group's first rank.
  void all_gather(const Sizes& pieces, int me, int first, const CollectiveChoice& choice) {
    using enum AllGatherAlgorithm;
    const int n = int(pieces.size());
    if (n == 1) return;
    const bool power_of_two = (n & (n - 1)) == 0;
    const int node = node_size(n, first, choice);
    if (choice.all_gather == kBruck || (choice.all_gather == kRecursiveDoubling && !power_of_two))
      return bruck(pieces, me);
    if (choice.all_gather == kRing || (choice.all_gather == kHierarchical && node == 0))
      return shards_around(pieces, me);
    if (choice.all_gather == kHierarchical) return hierarchical(pieces, me, node);
    if (choice.all_gather == kRecursiveDoubling) {
      for (int size = 1; size < n; size *= 2) {
        send(sum(pieces, me / size * size, size));
        receive(sum(pieces, (me / size ^ 1) * size, size));
      }
      return;
    }
    for (int i = 1; i < n; ++i) {  // native: the least that must be delivered
      send(pieces[size_t(me)]);
      receive(pieces[size_t((me + i) % n)]);
    }
  }

  // Partials that are merged on their way, and a buffer for what arrives.
  // `few`: rows of a branch.
  void reduce_scatter(const Sizes& pieces, int me, const CollectiveChoice& choice, bool few) {
    const int n = int(pieces.size());
    const bool halves =
        choice.reduce_scatter == ReduceScatterAlgorithm::kRecursiveHalving && (n & (n - 1)) == 0;
    if (few && !halves) return linear_reduce_scatter(pieces, me);
    hold(halves ? sum(pieces, me < n / 2 ? 0 : n / 2, n / 2) : std::ranges::max(pieces));
    if (!halves) return around(pieces, me, me - 1);
    for (int size = n / 2; size >= 1; size /= 2) {
      const int mine = me / size * size;
      receive(sum(pieces, mine, size));
      send(sum(pieces, mine / size % 2 == 0 ? mine + size : mine - size, size));
    }
  }

  // Each piece straight to its owner, which keeps those of all others until it merges them.
  void linear_reduce_scatter(const Sizes& pieces, int me) {
    const int64_t others = int64_t(pieces.size()) - 1;
    hold(others * pieces[size_t(me)]);
    for (size_t i = 0; i < pieces.size(); ++i)
      if (i != size_t(me)) send(pieces[i]), receive(pieces[size_t(me)]);
  }

 private:
  static int64_t sum(const Sizes& pieces, int begin, int count) {
    int64_t all = 0;
    for (int i = 0; i < count; ++i) all += pieces[size_t(begin + i) % pieces.size()];
    return all;
  }
  // Ranks of a node, where the group is made of several whole ones; else 0.
  static int node_size(int n, int first, const CollectiveChoice& choice) {
    const int size = choice.node_size > 0 ? choice.node_size : root_divisor(n);
    const bool begins = choice.node_size == 0 || first % size == 0;
    return size > 1 && size < n && n % size == 0 && begins ? size : 0;
  }
  // Step k sends the first 2^k pieces, counted from the own one on, and receives those behind them.
  void bruck(const Sizes& pieces, int me) {
    const int n = int(pieces.size());
    for (int size = 1; size < n; size *= 2) {
      const int count = std::min(size, n - size);
      send(sum(pieces, me, count));
      receive(sum(pieces, me + size, count));
    }
  }
  // Bruck among equal places of all nodes, then whole places around the node.
  void hierarchical(const Sizes& pieces, int me, int node) {
    Sizes of_place(static_cast<size_t>(node), 0), across;
    for (size_t i = 0; i < pieces.size(); ++i) {
      of_place[i % size_t(node)] += pieces[i];
      if (i % size_t(node) == size_t(me % node)) across.push_back(pieces[i]);
    }
    bruck(across, me / node);
    shards_around(of_place, me % node);
  }
};

}  // namespace longnet
