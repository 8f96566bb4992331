// "What if the network were half as fast?": reads such questions and applies them to a cluster.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "core/check.h"
#include "json/text.h"
#include "simulate/cluster.h"

namespace longnet {
namespace {

const std::vector<std::string> kNames{"bandwidth",     "inter_bandwidth", "latency", "taper",
                                      "gpus_per_node", "nodes",           "overlap", "host",
                                      "straggler",     "kernel",          "merge"};
const std::pair<const char*, double WhatIf::*> kFactors[] = {
    {"bandwidth", &WhatIf::bandwidth},
    {"inter_bandwidth", &WhatIf::inter_bandwidth},
    {"latency", &WhatIf::latency}};
const std::pair<const char*, std::optional<double> WhatIf::*> kReplacements[] = {
    {"taper", &WhatIf::taper},
    {"gpus_per_node", &WhatIf::gpus_per_node},
    {"nodes", &WhatIf::nodes},
    {"overlap", &WhatIf::overlap_efficiency},
    {"host", &WhatIf::host_s}};
constexpr double kMaxRanks = 1 << 24, kMaxNumber = 1e12, kMinNumber = 1e-12;  // beside 0

std::optional<double> parse_number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const double size = std::abs(value);
  if (text.empty() || *end != '\0' || !(size <= kMaxNumber)) return std::nullopt;
  if (size > 0 && size < kMinNumber) return std::nullopt;
  return value;
}

// "0.2", "0.2@17", "0.2x8"
Straggler parse_straggler(const std::string& part, const std::string& text) {
  const size_t mark = text.find_first_of("@x");
  const auto slower = parse_number(text.substr(0, mark));
  const bool one = mark == std::string::npos || text[mark] == '@';
  const auto which =
      mark == std::string::npos ? std::optional(0.0) : parse_number(text.substr(mark + 1));
  if (!slower || *slower < 0 || !which || *which != std::floor(*which) || *which > kMaxRanks ||
      *which < (one ? 0 : 1))
    throw UsageError("what if '", part,
                     "': write straggler=0.2 (rank 0 computes 20 % slower), "
                     "straggler=0.2@17 (rank 17) or straggler=0.2x8 (eight ranks)");
  if (*slower == 0) return {};
  return one ? Straggler{.slower = *slower, .rank = Rank(*which)}
             : Straggler{.slower = *slower, .count = int(*which)};
}

// `part` is "name=number".
void set(WhatIf& w, const std::string& part, const std::string& name, const std::string& number) {
  const auto value = parse_number(number);
  if (!value || *value < 0 || (*value == 0 && name != "latency") ||
      (name == "overlap" && *value > 1))
    throw UsageError("what if '", part, "': write ", name,
                     "=NUMBER, e.g. bandwidth=0.5 (a factor), taper=2, overlap=0.56; ",
                     name == "latency"   ? "latency is 0 or more"
                     : name == "overlap" ? "overlap is above 0 and at most 1"
                                         : "it is above 0");
  const bool whole = name == "gpus_per_node" || name == "nodes";
  if (whole && (*value != std::floor(*value) || *value > kMaxRanks))
    throw UsageError("what if ", name, " = ", *value, ": must be whole, at most ", int(kMaxRanks));
  for (const auto& [known, factor] : kFactors)
    if (name == known) w.*factor = *value;
  for (const auto& [known, replacement] : kReplacements)
    if (name == known) w.*replacement = value;
}

// Blocks of the device move a channel's bytes and those of LL, whatever the wire: neither is slower
// on a slower one. For a faster one NCCL has more channels; here the channels are faster.
void scale(LinkSpec& link, double bandwidth, double latency) {
  link.bandwidth_bytes_per_s.value *= bandwidth;
  link.shared_bytes_per_s.value *= bandwidth;
  link.call_s.value *= latency;
  link.channel_bytes_per_s.value *= std::max(1.0, bandwidth);
  for (double& a : link.alpha_s.seconds) a *= latency;
}

}  // namespace

bool Straggler::is(Rank r, int ranks) const {
  if (!exists()) return false;
  if (count == 1) return r == rank;
  if (count >= ranks) return true;
  // r = floor(i P / count) for some i: the least i with i P / count >= r.
  const int64_t i = (int64_t{r} * count + ranks - 1) / ranks;
  return i * ranks / count == r;
}

int Straggler::period(int ranks) const {
  if (!exists() || count >= ranks) return 1;
  return count > 1 && ranks % count == 0 ? ranks / count : ranks;
}

bool WhatIf::is_plain() const { return text().empty(); }

std::map<std::string, double> WhatIf::values() const {
  std::map<std::string, double> v;
  for (const auto& [name, factor] : kFactors)
    if (this->*factor != 1) v[name] = this->*factor;
  for (const auto& [name, replacement] : kReplacements)
    if (this->*replacement) v[name] = *(this->*replacement);
  if (straggler.exists()) v["straggler"] = straggler.slower;
  if (straggler.rank != 0) v["straggler_rank"] = straggler.rank;
  if (straggler.count != 1) v["stragglers"] = straggler.count;
  return v;
}

std::string WhatIf::text() const {
  std::string out;
  for (const auto& [name, value] : values()) {
    if (name == "straggler_rank")
      out += concat("@", value);
    else if (name == "stragglers")
      out += concat("x", value);
    else
      out += concat(out.empty() ? "" : " ", name, "=", value);
  }
  if (!kernel.empty()) out += concat(out.empty() ? "" : " ", "kernel=", kernel);
  if (merge) out += concat(out.empty() ? "" : " ", "merge=", to_string(*merge));
  return out;
}

WhatIf parse_what_if(std::string_view text) {
  WhatIf w;
  std::set<std::string> seen;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string part(text.substr(0, comma));
    text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    if (!seen.insert(name).second)
      throw UsageError("what if '", part, "': ", name, " is there twice");
    if (std::find(kNames.begin(), kNames.end(), name) == kNames.end())
      throw UsageError("what if '", part, "': ", name_hint(name, kNames));
    const std::string number = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (name == "straggler")
      w.straggler = parse_straggler(part, number);
    else if (name == "kernel")
      w.kernel = number;
    else if (name == "merge")
      w.merge = parse_enum<MergeKind>(number);
    else
      set(w, part, name, number);
  }
  return w;
}

ClusterSpec apply(const ClusterSpec& cluster, const WhatIf& w) {
  ClusterSpec c = cluster;
  scale(c.intra, w.bandwidth, w.latency);
  scale(c.inter, w.bandwidth * w.inter_bandwidth, w.latency);
  for (Quantity* q : {&c.topology.link_bytes_per_s, &c.topology.global_bytes_per_s})
    q->value *= w.bandwidth * w.inter_bandwidth;
  c.topology.hop_s.value *= w.latency;
  c.latency_factor *= w.latency;
  if (w.taper) {
    const TopologyKind kind = c.topology.kind;
    if (kind != TopologyKind::kFatTree && kind != TopologyKind::kRailOptimised)
      throw UsageError("what if taper: a ", to_string(kind), " has none");
    c.topology.taper = {*w.taper, "what if"};
  }
  const int gpus = c.num_gpus();
  if (w.gpus_per_node) {  // as many GPUs and NICs per GPU as before, in other nodes
    const double factor = *w.gpus_per_node / c.gpus_per_node.value;
    c.gpus_per_node = {*w.gpus_per_node, "what if"};
    c.nodes = {std::ceil(gpus / *w.gpus_per_node), "what if"};
    for (LinkSpec* link : {&c.intra, &c.inter})
      link->ports_per_node.value =
          std::clamp(std::round(link->ports_per_node.value * factor), 1.0, kMaxRanks);
  }
  if (w.nodes) c.nodes = {*w.nodes, "what if"};
  if (c.nodes.value * c.gpus_per_node.value > kMaxRanks)
    throw UsageError("what if: ", c.nodes.value, " nodes of ", c.gpus_per_node.value,
                     " GPUs are more than ", int(kMaxRanks));
  if (c.topology.kind == TopologyKind::kTorus && (w.nodes || w.gpus_per_node))
    throw UsageError("what if nodes: a torus has fixed dimensions; change them in its file");
  if (!w.kernel.empty()) {
    std::vector<std::string> known;
    for (const KernelRow& row : c.device.attend)
      if (!row.kernel.empty() && std::ranges::count(known, row.kernel) == 0)
        known.push_back(row.kernel);
    if (std::ranges::find(known, w.kernel) == known.end())
      throw UsageError("what if kernel=", w.kernel, ": ", c.name,
                       " has no rows of it; known: ", join(known, ", "));
    c.device.kernel = w.kernel;
  }
  if (w.merge) c.merge = *w.merge;
  if (w.host_s) c.host_s = {*w.host_s, "what if"};
  if (w.overlap_efficiency) {  // in place of what the file says
    c.overlap_efficiency = {*w.overlap_efficiency, "what if"};
    c.intra.device_share = {};
  }
  return c;
}

}  // namespace longnet
