#include "simulate/topology.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "core/token_range.h"

namespace longnet {

namespace {

constexpr int64_t kMostLinks = 1 << 24;  // per simulation, which has 80 bytes of each
constexpr int kMostGroups = 4096;

}  // namespace

void Route::add(int link) {
  check(count < kMaxLinks, "a route of more than ", kMaxLinks, " links: the torus is too long");
  links[size_t(count++)] = link;
}

Topology::Topology(const ClusterSpec& cluster, int ranks)
    : cluster_(cluster),
      ranks_(ranks),
      node_size_(cluster.node_size()),
      intra_ports_(int(cluster.intra.ports_per_node.value)),
      inter_ports_(int(cluster.inter.ports_per_node.value)) {
  if (ranks > cluster.num_gpus())
    throw UsageError(ranks, " ranks: ", cluster.name, " has ", cluster.num_nodes(), " nodes of ",
                     node_size_, "; --what-if nodes=", ceil_div(ranks, node_size_), " adds some");
  const double port = cluster.intra.bandwidth_bytes_per_s.value;
  // One node of one port per GPU looks the same from everywhere.
  const bool alike = ranks <= node_size_ && intra_ports_ == node_size_;
  const int block = alike ? 1 : node_size_, links = alike ? 1 : intra_ports_;
  intra_up_ = add_family(block, links, port);
  intra_down_ = add_family(block, links, port);
  if (cluster.intra.shared_bytes_per_s.value > 0)
    shared_ = add_family(node_size_, 1, cluster.intra.shared_bytes_per_s.value);
  if (num_nodes() > 1) {
    const double card = cluster.inter.bandwidth_bytes_per_s.value;
    card_up_ = add_family(node_size_, inter_ports_, card);
    card_down_ = add_family(node_size_, inter_ports_, card);
    add_topology(cluster.topology, card, inter_ports_);
  }
  find_period();
}

Topology::Family Topology::add_family(int ranks_per_block, int links_per_block, double capacity,
                                      int blocks) {
  const Family f{num_links(), ranks_per_block, links_per_block};
  if (blocks == 0) blocks = int(ceil_div(ranks_, ranks_per_block));
  if (num_links() + int64_t{blocks} * links_per_block > kMostLinks)
    throw UsageError(ranks_, " ranks have more than ", kMostLinks,
                     " links: use fewer ports_per_node, or fewer ranks");
  capacity_.insert(capacity_.end(), size_t(blocks) * size_t(links_per_block), capacity);
  families_.push_back(f);
  return f;
}

void Topology::add_topology(const TopologySpec& t, double port, int ports) {
  switch (t.kind) {
    case TopologyKind::kSingleSwitch:
      break;
    case TopologyKind::kFatTree:
    case TopologyKind::kRailOptimised: {
      nodes_per_leaf_ = std::min(int(t.nodes_per_leaf.value), num_nodes());
      // Without taper the cards below a leaf fill its links at most: those never decide.
      if (t.taper.value <= 1 || num_nodes() <= nodes_per_leaf_) break;
      const bool rails = t.kind == TopologyKind::kRailOptimised;
      const double width = nodes_per_leaf_ * port * (rails ? 1 : ports) / t.taper.value;
      leaf_up_ = add_family(nodes_per_leaf_ * node_size_, rails ? ports : 1, width);
      leaf_down_ = add_family(nodes_per_leaf_ * node_size_, rails ? ports : 1, width);
      break;
    }
    case TopologyKind::kTorus:
      // Forward and backward along each dimension, of each node; also of nodes without a rank.
      torus_ = add_family(node_size_, 2 * int(t.dimensions.size()), t.link_bytes_per_s.value,
                          cluster_.num_nodes());
      break;
    case TopologyKind::kDragonfly: {
      nodes_per_group_ = std::min(int(t.nodes_per_group.value), num_nodes());
      const int groups = int(ceil_div(num_nodes(), nodes_per_group_));
      if (groups > kMostGroups)
        throw UsageError(groups, " groups of a dragonfly; at most ", kMostGroups);
      if (groups > 1) global_ = add_family(ranks_, groups * groups, t.global_bytes_per_s.value);
      break;
    }
  }
}

void Topology::find_period() {
  int64_t period = 1;
  for (const Family& f : families_) period = std::lcm(period, int64_t{f.ranks_per_block});
  if (nodes_per_leaf_ > 0 && cluster_.topology.hop_s.value > 0)  // leaves differ by their hops
    period = std::lcm(period, int64_t{nodes_per_leaf_} * node_size_);
  if (torus_.exists()) {  // turning the whole torus along its last dimension
    const std::vector<int>& d = cluster_.topology.dimensions;
    period = std::lcm(period, int64_t{cluster_.num_gpus() / d.back()});
    if (ranks_ != cluster_.num_gpus()) period = ranks_;
  }
  period_ = period < ranks_ && ranks_ % period == 0 ? int(period) : ranks_;
}

int Topology::representative(int link, int period) const {
  if (period == ranks_) return link;
  const Family* family = &families_.front();
  for (const Family& f : families_)
    if (f.base <= link) family = &f;
  const int links = period / family->ranks_per_block * family->links_per_block;
  return family->base + (link - family->base) % links;
}

void Topology::route_torus(int from, int to, Route& route) const {
  const std::vector<int>& d = cluster_.topology.dimensions;
  int stride = 1, hops = 0;
  for (size_t i = 0; i < d.size(); ++i) {
    const int goal = to / stride % d[i];
    for (int here = from / stride % d[i]; here != goal;) {
      const int ahead = (goal - here + d[i]) % d[i];
      const bool forward = 2 * ahead <= d[i];
      route.add(at(torus_, from, int(2 * i) + (forward ? 0 : 1)));
      const int next = forward ? (here + 1) % d[i] : (here + d[i] - 1) % d[i];
      from += (next - here) * stride;
      here = next;
      ++hops;
    }
    stride *= d[i];
  }
  route.extra_hops = std::max(0, hops - 1);
}

Route Topology::route(Rank from, Rank to) const {
  Route route;
  const int a = node_of(from), b = node_of(to);
  const int from_gpu = from % node_size_, to_gpu = to % node_size_;
  if (a == b) {
    route.inside_node = true;
    const bool alike = intra_up_.ranks_per_block == 1 && node_size_ > 1;
    const auto port = [&](const Family& f, int gpu) {
      return alike ? at(f, gpu, 0) : at(f, a, gpu * intra_ports_ / node_size_);
    };
    route.add(port(intra_up_, from_gpu));
    route.add(port(intra_down_, to_gpu));
    if (shared_.exists()) route.add(at(shared_, a, 0));
    return route;
  }
  const int up = from_gpu * inter_ports_ / node_size_, down = to_gpu * inter_ports_ / node_size_;
  route.add(at(card_up_, a, up));
  if (nodes_per_leaf_ > 0) {
    const int leaf_a = a / nodes_per_leaf_, leaf_b = b / nodes_per_leaf_;
    const bool rails = cluster_.topology.kind == TopologyKind::kRailOptimised;
    if (leaf_a != leaf_b || (rails && up != down)) {
      route.extra_hops = 2;
      if (leaf_up_.exists()) {
        route.add(at(leaf_up_, leaf_a, rails ? up : 0));
        route.add(at(leaf_down_, leaf_b, rails ? down : 0));
      }
    }
  } else if (torus_.exists()) {
    route_torus(a, b, route);
  } else if (nodes_per_group_ > 0 && a / nodes_per_group_ != b / nodes_per_group_) {
    const int groups = int(ceil_div(num_nodes(), nodes_per_group_));
    route.add(at(global_, 0, a / nodes_per_group_ * groups + b / nodes_per_group_));
    route.extra_hops = 1;
  }
  route.add(at(card_down_, b, down));
  return route;
}

double Topology::alpha_s(const Route& route, AlphaSet set) const {
  const LinkSpec& link = route.inside_node ? cluster_.intra : cluster_.inter;
  return link.alpha_s.of(set) + (set == AlphaSet::kIdeal ? 0 : link.call_s.value) +
         route.extra_hops * cluster_.topology.hop_s.value;
}

double Topology::overhead_s(const Route& route) const {
  return (route.inside_node ? cluster_.intra : cluster_.inter).overhead_s.value;
}

}  // namespace longnet
