#include "simulate/collective_times.h"

#include <algorithm>
#include <bit>

#include "core/check.h"

namespace longnet {
namespace {

// Seconds, of one protocol of NCCL 2.28's ring: baseLatencies and hwLatencies of
// src/graph/tuning.cc.
struct Protocol {
  double base, intra, inter, overhead;
  double exposed_inter;  // where each rank has a node of its own: that of its trees
};
// getNetOverhead: 1 us a step with Intel's CPUs (2 with AMD's), three times that for Simple.
constexpr Protocol kLl{6.6e-6, 0.6e-6, 2.7e-6, 1e-6, 5e-6};
constexpr Protocol kLl128{14e-6, 1.9e-6, 4e-6, 1e-6, 8.5e-6};
constexpr Protocol kSimple{8.4e-6, 3.4e-6, 14e-6, 3e-6, 14e-6};

bool is_alone_in_node(const CollectiveShape& s) { return s.members == s.nodes; }

double seconds(const Protocol& p, const CollectiveShape& s, double bandwidth, double latency) {
  const double intra = s.nodes > 1 ? std::max(p.intra, p.overhead) : p.intra;
  return latency * (p.base + (s.members - s.nodes) * intra +
                    (s.nodes - 1) * (is_alone_in_node(s) ? p.exposed_inter : p.inter)) +
         s.bytes * (s.members - 1) / s.members / bandwidth;
}

// Bandwidth of protocol LL where links have `bandwidth`: ncclTopoTuneModel, llMaxBws (the GPU's on
// one node, else Intel's).
double ll_bandwidth(const ClusterSpec& c, const CollectiveShape& s, double bandwidth) {
  const double most = s.nodes == 1 ? c.intra.ll_bytes_per_s.value : s.nodes == 2 ? 39e9 : 20.4e9;
  return most > 0 ? std::min(bandwidth / 2, most) : bandwidth / 2;
}

// Bandwidth of protocol LL128: ncclTopoTuneModel, perChMaxRingLL128Bws; a channel is a card's.
double ll128_bandwidth(const ClusterSpec& c, const CollectiveShape& s, double bandwidth) {
  const double most = c.inter.ll128_bytes_per_s.value;
  double share = s.members < 2 * s.nodes ? 0.7 : 0.92;
  if (s.nodes > 1 && most > 0) share = std::min(share, most / c.inter.bandwidth_bytes_per_s.value);
  return share * bandwidth;
}

}  // namespace

double ring_bandwidth(const ClusterSpec& c, const CollectiveShape& s) {
  const double port = c.intra.bandwidth_bytes_per_s.value;
  if (s.nodes == 1) return port;
  const double cards = c.inter.bandwidth_bytes_per_s.value * c.inter.ports_per_node.value;
  return is_alone_in_node(s) ? c.inter.bandwidth_bytes_per_s.value : std::min(port, cards);
}

double multi_channel_ring_s(const ClusterSpec& c, const CollectiveShape& s, AlphaSet set) {
  if (s.members < 2) return 0;
  const double moved = s.bytes * (s.members - 1) / s.members;
  return (s.members - s.nodes) * c.intra.alpha_s.of(set) + (s.nodes - 1) * c.inter.alpha_s.of(set) +
         moved / ring_bandwidth(c, s);
}

double nccl_ring_s(const ClusterSpec& c, const CollectiveShape& s, AlphaSet set) {
  if (s.members < 2) return 0;
  if (set == AlphaSet::kIdeal) return multi_channel_ring_s(c, s, set);
  const double all = ring_bandwidth(c, s);
  const auto by = [&](const Protocol& p, double bandwidth) {
    const LinkSpec& link = s.nodes > 1 ? c.inter : c.intra;
    return seconds(p, s, bandwidth, c.latency_factor) + link.call_s.value;
  };
  if (set == AlphaSet::kNcclSimple) return by(kSimple, all);
  return std::min(
      {by(kLl, ll_bandwidth(c, s, all)), by(kLl128, ll128_bandwidth(c, s, all)), by(kSimple, all)});
}

double nccl_pat_s(const ClusterSpec& c, const CollectiveShape& s, AlphaSet set) {
  if (s.members < 2) return 0;
  check(is_alone_in_node(s), "PAT on ", s.members, " ranks of ", s.nodes, " nodes");
  const double card = c.inter.bandwidth_bytes_per_s.value;
  const int doublings = std::bit_width(unsigned(s.members)) - 1;
  if (set == AlphaSet::kIdeal)
    return std::bit_width(unsigned(s.members) - 1) * c.inter.alpha_s.of(set) +
           s.bytes * (s.members - 1) / s.members / card;
  return c.inter.call_s.value +
         c.latency_factor *
             (8e-6 + doublings * (kSimple.exposed_inter / 3.5) + s.members * 2.8e-6) +
         s.bytes / (0.75 * card);
}

namespace {

struct Formula {
  std::string_view name;
  double (*seconds)(const ClusterSpec&, const CollectiveShape&, AlphaSet);
};
constexpr Formula kFormulas[] = {{"nccl_ring", nccl_ring_s},
                                 {"nccl_pat", nccl_pat_s},
                                 {"multi_channel_ring", multi_channel_ring_s}};

const Formula* find_formula(std::string_view name) {
  const auto* const at = std::ranges::find(kFormulas, name, &Formula::name);
  return at == std::end(kFormulas) ? nullptr : at;
}

}  // namespace

std::vector<std::string> formula_names() { return names_of(kFormulas); }

bool is_formula(std::string_view name) { return find_formula(name) != nullptr; }

std::string why_not_formula(const ClusterSpec& c, std::string_view name) {
  const Formula* const formula = find_formula(name);
  if (formula == nullptr || formula->seconds != nccl_pat_s || c.node_size() == 1) return {};
  return concat("NCCL's PAT needs one GPU per node, ", c.name, " has ", c.node_size(),
                "; --what-if gpus_per_node=1 has them so");
}

std::array<double, 3> collective_seconds(const ClusterSpec& c, std::string_view name,
                                         const CollectiveShape& s) {
  const Formula* const formula = find_formula(name);
  check(formula != nullptr, "no formula for the collective ", name);
  std::array<double, 3> out{};
  for (const AlphaSet set : kAlphaSets) out[size_t(set)] = formula->seconds(c, s, set);
  return out;
}

}  // namespace longnet
