#include "simulate/collective_model.h"

#include <algorithm>
#include <bit>

#include "core/check.h"

namespace longnet {
namespace {

// Seconds, of one protocol of NCCL 2.28's ring.
struct Protocol {
  double base, intra, inter, overhead;
  double exposed_inter;  // where each rank has a node of its own
  double share, most;    // of the bandwidth; bytes per second beyond two nodes, 0: no limit
};
// The overhead per step is 1 us with Intel's CPUs (2 with AMD's), three times that for Simple.
constexpr Protocol kLl{6.6e-6, 0.6e-6, 2.7e-6, 1e-6, 5e-6, 0.5, 20e9};
constexpr Protocol kLl128{14e-6, 1.9e-6, 4e-6, 1e-6, 8.5e-6, 120.0 / 128, 0};
constexpr Protocol kSimple{8.4e-6, 3.4e-6, 14e-6, 3e-6, 14e-6, 1, 0};

double seconds(const Protocol& p, const GatherShape& s, double bandwidth, double latency) {
  bandwidth *= p.share;
  if (p.most > 0 && s.nodes > 2) bandwidth = std::min(bandwidth, p.most);
  return latency * (p.base + (s.members - s.nodes) * std::max(p.intra, p.overhead) +
                    (s.nodes - 1) * (s.members == s.nodes ? p.exposed_inter : p.inter)) +
         s.bytes * (s.members - 1) / s.members / bandwidth;
}

}  // namespace

double ring_bandwidth(const ClusterSpec& c, const GatherShape& s) {
  const double port = c.intra.bandwidth_bytes_per_s.value;
  if (s.nodes == 1) return port;
  const double cards = c.inter.bandwidth_bytes_per_s.value * c.inter.ports_per_node.value;
  return s.members == s.nodes ? c.inter.bandwidth_bytes_per_s.value : std::min(port, cards);
}

double multi_channel_ring_s(const ClusterSpec& c, const GatherShape& s, AlphaSet set) {
  if (s.members < 2) return 0;
  const double moved = s.bytes * (s.members - 1) / s.members;
  return (s.members - s.nodes) * c.intra.alpha_s.of(set) + (s.nodes - 1) * c.inter.alpha_s.of(set) +
         moved / ring_bandwidth(c, s);
}

double nccl_ring_s(const ClusterSpec& c, const GatherShape& s, AlphaSet set) {
  if (s.members < 2) return 0;
  if (set == AlphaSet::kIdeal) return multi_channel_ring_s(c, s, set);
  const auto by = [&](const Protocol& p) {
    return seconds(p, s, ring_bandwidth(c, s), c.latency_factor);
  };
  return set == AlphaSet::kNcclSimple ? by(kSimple) : std::min({by(kLl), by(kLl128), by(kSimple)});
}

double nccl_pat_s(const ClusterSpec& c, const GatherShape& s, AlphaSet set) {
  if (s.members < 2) return 0;
  check(s.members == s.nodes, "PAT on ", s.members, " ranks of ", s.nodes, " nodes");
  const double card = c.inter.bandwidth_bytes_per_s.value;
  const int doublings = std::bit_width(unsigned(s.members)) - 1;
  if (set == AlphaSet::kIdeal)
    return std::bit_width(unsigned(s.members) - 1) * c.inter.alpha_s.of(set) +
           s.bytes * (s.members - 1) / s.members / card;
  return c.latency_factor *
             (8e-6 + doublings * (kSimple.exposed_inter / 3.5) + s.members * 2.8e-6) +
         s.bytes / (0.75 * card);
}

const std::vector<std::string>& formula_names() {
  static const std::vector<std::string> kNames{"nccl_ring", "nccl_pat", "multi_channel_ring"};
  return kNames;
}

bool is_formula(std::string_view name) {
  return std::ranges::find(formula_names(), name) != formula_names().end();
}

std::string why_not_formula(const ClusterSpec& c, std::string_view name) {
  if (name != "nccl_pat" || c.node_size() == 1) return {};
  return concat("NCCL's PAT needs one GPU per node, ", c.name, " has ", c.node_size(),
                "; --what-if gpus_per_node=1 has them so");
}

std::array<double, 3> gather_seconds(const ClusterSpec& c, std::string_view name,
                                     const GatherShape& s) {
  check(is_formula(name), "no formula for the all-gather ", name);
  std::array<double, 3> out{};
  for (const AlphaSet set : kAlphaSets)
    out[size_t(set)] = name == "nccl_ring"  ? nccl_ring_s(c, s, set)
                       : name == "nccl_pat" ? nccl_pat_s(c, s, set)
                                            : multi_channel_ring_s(c, s, set);
  return out;
}

}  // namespace longnet
