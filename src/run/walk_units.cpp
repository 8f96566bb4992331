#include "run/walk_units.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "core/check.h"
#include "io/expand.h"

namespace longnet {
namespace {

std::vector<WalkUnit> every_unit(const PointParams& p, int64_t at_once,
                                 const std::vector<Rank>& replay) {
  std::vector<WalkUnit> units;
  for (int64_t first = 0; first < p.problem.batch; first += at_once) {
    const int64_t batches = std::min(at_once, p.problem.batch - first);
    if (replay.empty())
      for (Rank r = 0; r < p.ranks; ++r) units.push_back({r, first, batches});
    for (Rank r : replay) units.push_back({r, first, batches});
  }
  return units;
}

}  // namespace

UnitPlan plan_units(const PointPlan& plan, const std::vector<Rank>& replay) {
  const PointParams& p = plan.point.params;
  UnitPlan u{.units = every_unit(p, plan.batches_at_once, replay), .accounts = {}};
  if (plan.share < 1) {
    const size_t all = u.units.size();
    const double wanted = plan.share * double(all);
    std::vector<WalkUnit> some;
    const size_t count = size_t(std::ceil(wanted));
    for (size_t i = 0; i < count; ++i) some.push_back(u.units[(2 * i + 1) * all / (2 * count)]);
    u.units = std::move(some);
    u.unit_share = wanted / double(count);
  }
  std::map<std::pair<Rank, int64_t>, RankAccount> known;
  for (const WalkUnit& unit : u.units) {
    const auto [it, is_new] = known.try_emplace({unit.rank, unit.batches});
    if (is_new) {
      PointParams part = p;
      part.problem.batch = unit.batches;
      const Schedule schedule = make_schedule(part);
      it->second = account(schedule.sharded, schedule.program(unit.rank), unit.rank);
    }
    u.accounts.push_back(it->second);
    u.flops += it->second.flops;
  }
  u.all_flops = plan.account.flops;
  return u;
}

std::string text_of(const UnitPlan& units, const PointPlan& plan, int walks, int64_t queries) {
  std::string text = concat(canonical_params_json(plan.point.params), "; ", walks, " walks of ",
                            units.units.size(), " units of ", plan.batches_at_once, " sequences; ",
                            queries, " samples; ranks");
  std::set<Rank> ranks;
  for (const WalkUnit& unit : units.units) ranks.insert(unit.rank);
  if (int(ranks.size()) == plan.point.params.ranks) return text + " all";
  for (Rank r : ranks) text += concat(" ", r);
  return text;
}

std::vector<Rank> parse_ranks(const std::string& text) {
  std::vector<Rank> ranks;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    const bool digits =
        !item.empty() && item.size() < 9 &&
        std::all_of(item.begin(), item.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits)
      throw UsageError(concat("'", text, "' is no list of ranks\n  hint: e.g. --replay 0,17,4095"));
    if (std::find(ranks.begin(), ranks.end(), std::stoi(item)) == ranks.end())
      ranks.push_back(std::stoi(item));
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace longnet
