// The links that a message takes, and the speed of each.
//
// Rank p is GPU p % G of node p / G. Inside a node a message takes its sender's port up into the
// switch and its receiver's port down; between nodes the network cards' ports, and above them what
// the topology has:
//
//   single_switch   nothing: any two cards talk at full speed
//   fat_tree        leaf switches of n nodes; one link up and one down for each leaf, as wide as
//                   the cards below it divided by the taper (packets spread over all spines)
//   rail_optimised  the same for each rail: card i of n nodes hangs on leaf switch i
//   torus           links between neighbouring nodes; dimension order, the shorter way around
//   dragonfly       groups of nodes with an ideal switch inside, one link between any two groups
//
//   h100-ndr400, rank 3 -> rank 9: card 3 of node 0 up, card 1 of node 1 down; 2.7 us, 50 GB/s.
#pragma once
#include <array>
#include <vector>

#include "core/rank_group.h"
#include "simulate/cluster.h"

namespace longnet {

struct Route {
  static constexpr int kMaxLinks = 24;  // two of them into the network and out of it
  std::array<int, kMaxLinks> links;
  int count = 0;
  int extra_hops = 0;  // beyond the first switch
  bool inside_node = false;
  void add(int link);
  const int* begin() const { return links.data(); }
  const int* end() const { return links.data() + count; }
};

class Topology {
 public:
  // The topology of the cluster's first `ranks` GPUs. Throws UsageError when it has fewer.
  Topology(const ClusterSpec& cluster, int ranks);

  int ranks() const { return ranks_; }
  int node_of(Rank rank) const { return rank / node_size_; }
  int num_nodes() const { return (ranks_ + node_size_ - 1) / node_size_; }
  int num_links() const { return int(capacity_.size()); }
  const std::vector<double>& capacities() const { return capacity_; }  // bytes per second, by link
  double capacity(int link) const { return capacity_[size_t(link)]; }
  Route route(Rank from, Rank to) const;
  // Latency of a message with the call that sends it; `ideal` is the wire's only.
  double alpha_s(const Route& route, AlphaSet set) const;
  double overhead_s(const Route& route) const;

  // Ranks p and p + period() have the same view of the machine, in the whole ring of ranks: a shift
  // by it maps links onto links. ranks() when no shift does.
  int period() const { return period_; }
  // Only here an exclusive or with a multiple of the period, both powers of two, does not.
  bool is_torus() const { return torus_.exists(); }
  // The link of the first `period` ranks' part that a shift takes `link` to; `period` is a multiple
  // of period() that divides ranks().
  int representative(int link, int period) const;

 private:
  // Links of one kind, which a shift by `ranks_per_block` ranks moves by `links_per_block`.
  struct Family {
    int base = 0, ranks_per_block = 0, links_per_block = 0;
    bool exists() const { return links_per_block > 0; }
  };
  // blocks 0: as many as the ranks need.
  Family add_family(int ranks_per_block, int links_per_block, double capacity, int blocks = 0);
  void add_topology(const TopologySpec& topology, double port_bytes_per_s, int ports);
  void find_period();
  void route_torus(int from, int to, Route& route) const;
  static int at(const Family& f, int block, int index) {
    return f.base + block * f.links_per_block + index;
  }

  ClusterSpec cluster_;
  int ranks_, node_size_, intra_ports_, inter_ports_;
  int nodes_per_leaf_ = 0, nodes_per_group_ = 0;
  int period_ = 0;
  Family intra_up_, intra_down_, shared_, card_up_, card_down_, leaf_up_, leaf_down_, torus_,
      global_;
  std::vector<Family> families_;
  std::vector<double> capacity_;
};

}  // namespace longnet
