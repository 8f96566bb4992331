#include "schedule/collective_choice.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "core/check.h"

namespace longnet {
namespace {

// In the order of the enumerations.
constexpr std::array<std::string_view, 5> kAllGathers{"native", "ring", "recursive_doubling",
                                                      "bruck", "hierarchical"};
constexpr std::array<std::string_view, 3> kAllToAlls{"native", "pairwise", "linear"};
constexpr std::array<std::string_view, 2> kReduceScatters{"ring", "recursive_halving"};

bool is_power_of_two(int n) { return (n & (n - 1)) == 0; }

}  // namespace

int node_size_in(const RankGroup& g, const CollectiveChoice& choice) {
  int size = choice.node_size;
  if (size == 0)
    for (int d = 2; d * d <= g.count; ++d)
      if (g.count % d == 0) size = d;
  const bool whole_nodes = size > 1 && size < g.count && g.count % size == 0 && g.stride == 1 &&
                           (choice.node_size == 0 || g.first % size == 0);
  return whole_nodes ? size : 0;
}

AllGatherAlgorithm gather_in(const RankGroup& g, const CollectiveChoice& choice) {
  using enum AllGatherAlgorithm;
  if (choice.all_gather == kRecursiveDoubling && !is_power_of_two(g.count)) return kBruck;
  if (choice.all_gather == kHierarchical && node_size_in(g, choice) == 0) return kRing;
  return choice.all_gather;
}

ReduceScatterAlgorithm reduce_in(const RankGroup& g, const CollectiveChoice& choice) {
  return is_power_of_two(g.count) ? choice.reduce_scatter : ReduceScatterAlgorithm::kRing;
}

const std::vector<std::string>& collective_names() {
  static const std::vector<std::string> kNames{
      "native", "ring", "recursive_doubling", "bruck", "hierarchical", "pairwise", "linear"};
  return kNames;
}

CollectiveChoice parse_collective(std::string_view name) {
  CollectiveChoice c;
  const auto gather = std::ranges::find(kAllGathers, name);
  const auto exchange = std::ranges::find(kAllToAlls, name);
  if (gather != kAllGathers.end())
    c.all_gather = AllGatherAlgorithm(gather - kAllGathers.begin());
  else if (exchange != kAllToAlls.end())
    c.all_to_all = AllToAllAlgorithm(exchange - kAllToAlls.begin());
  else
    throw UsageError(concat("unknown collective '", name, "'"));
  if (c.all_gather == AllGatherAlgorithm::kRecursiveDoubling)
    c.reduce_scatter = ReduceScatterAlgorithm::kRecursiveHalving;
  return c;
}

namespace {

// Calls fn(group, kind, algorithm) for the collectives of some ranks, but not in groups of one.
template <class Fn>
void for_each_collective(const Schedule& schedule, const CollectiveChoice& choice, Fn fn) {
  const int world = schedule.sharded.layout.world_size(), looked_at = std::min(world, 16);
  for (int i = 0; i < looked_at; ++i) {
    const RankProgram program = schedule.program(Rank(int64_t{world} * i / looked_at));
    const auto tell = [&](const RankGroup& g, const char* kind, std::string_view algorithm) {
      if (g.count > 1) fn(g, kind, algorithm);
    };
    for (const Op& op : program.ops) {
      if (const auto* g = std::get_if<AllGather>(&op.what))
        tell(g->group, "all_gather", kAllGathers[size_t(gather_in(g->group, choice))]);
      else if (const auto* a = std::get_if<AllToAll>(&op.what))
        tell(a->group, "all_to_all", kAllToAlls[size_t(choice.all_to_all)]);
      else if (const auto* r = std::get_if<ReduceScatter>(&op.what))
        tell(r->group, "reduce_scatter", kReduceScatters[size_t(reduce_in(r->group, choice))]);
    }
  }
}

}  // namespace

std::vector<std::string> collectives_used(const Schedule& schedule,
                                          const CollectiveChoice& choice) {
  std::set<std::string> used;
  for_each_collective(schedule, choice,
                      [&](const RankGroup&, const char* kind, std::string_view algorithm) {
                        used.insert(concat(kind, ": ", algorithm));
                      });
  return {used.begin(), used.end()};
}

std::string why_not_collective(const Schedule& schedule, std::string_view name,
                               const CollectiveChoice& choice) {
  if (name == "native") return {};
  std::map<int, std::string> instead;  // by group size
  bool runs = false;
  for_each_collective(schedule, choice,
                      [&](const RankGroup& g, const char* kind, std::string_view algorithm) {
                        runs |= name == algorithm;
                        instead[g.count] = concat(kind, " runs by ", algorithm);
                      });
  if (runs) return {};
  if (instead.empty()) return concat("no ranks exchange anything that ", name, " could carry");
  const auto& [size, what] = *instead.rbegin();
  return concat(name, " suits no group of this point (its largest has ", size, " ranks); its ",
                what);
}

}  // namespace longnet
