// Names of collectives' algorithms, and the choice that a name stands for.
#include "schedule/collective_choice.h"

#include "core/check.h"

namespace longnet {

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

}  // namespace longnet
