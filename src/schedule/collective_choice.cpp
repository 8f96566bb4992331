// Names of collectives' algorithms: the choice that a name stands for, and what runs under it.
#include "schedule/collective_choice.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/check.h"

namespace longnet {
namespace {

struct UsedCollective {
  int group_size;
  std::string_view kind, algorithm;
};

// The collectives of some ranks, but not in groups of one.
std::vector<UsedCollective> used_by(const Schedule& schedule, const CollectiveChoice& choice) {
  std::vector<UsedCollective> out;
  const int world = schedule.sharded.layout.world_size(), looked_at = std::min(world, 16);
  for (int i = 0; i < looked_at; ++i) {
    const RankProgram program = schedule.program(Rank(int64_t{world} * i / looked_at));
    for (const Op& op : program.ops) {
      if (const auto* g = std::get_if<AllGather>(&op.what))
        out.push_back({g->group.count, "all_gather", to_string(gather_in(*g, choice))});
      else if (const auto* a = std::get_if<AllToAll>(&op.what))
        out.push_back({a->group.count, "all_to_all", to_string(choice.all_to_all)});
      else if (const auto* r = std::get_if<ReduceScatter>(&op.what))
        out.push_back({r->group.count, "reduce_scatter",
                       to_string(reduce_in(*r, program.slots[size_t(r->what.slot)].kind, choice))});
    }
  }
  std::erase_if(out, [](const UsedCollective& used) { return used.group_size == 1; });
  return out;
}

}  // namespace

std::vector<std::string> lowerings_of(CollectiveUse use) {
  if (use == CollectiveUse::kNone) return {};
  auto names = use == CollectiveUse::kAllGather ? enum_names<AllGatherAlgorithm>()
                                                : enum_names<AllToAllAlgorithm>();
  names.erase(names.begin());  // native
  return names;
}

std::vector<std::string> collective_names() {
  auto names = enum_names<AllGatherAlgorithm>();
  const auto exchanges = lowerings_of(CollectiveUse::kAllToAll);
  names.insert(names.end(), exchanges.begin(), exchanges.end());
  return names;
}

CollectiveChoice parse_collective(std::string_view name) {
  CollectiveChoice c;
  bool known = false;
  const auto choose = [&]<class Algorithm>(Algorithm& chosen) {
    for (const Algorithm a : enum_values<Algorithm>())
      if (to_string(a) == name) chosen = a, known = true;
  };
  choose(c.all_gather);
  choose(c.all_to_all);
  if (!known) throw UsageError("unknown collective '", name, "'");
  if (c.all_gather == AllGatherAlgorithm::kRecursiveDoubling)
    c.reduce_scatter = ReduceScatterAlgorithm::kRecursiveHalving;
  return c;
}

std::vector<std::string> collectives_used(const Schedule& schedule,
                                          const CollectiveChoice& choice) {
  std::set<std::string> used;
  for (const auto& [size, kind, algorithm] : used_by(schedule, choice))
    used.insert(concat(kind, ": ", algorithm));
  return {used.begin(), used.end()};
}

std::string why_not_collective(const Schedule& schedule, std::string_view name,
                               const CollectiveChoice& choice) {
  if (name == to_string(AllGatherAlgorithm::kNative)) return {};
  std::map<int, std::string> instead;  // by group size
  for (const auto& [size, kind, algorithm] : used_by(schedule, choice)) {
    if (name == algorithm) return {};
    instead[size] = concat(kind, " runs by ", algorithm);
  }
  if (instead.empty()) return concat("no ranks exchange anything that ", name, " could carry");
  const auto& [size, what] = *instead.rbegin();
  return concat(name, " suits no group of this point (its largest has ", size, " ranks); its ",
                what);
}

}  // namespace longnet
