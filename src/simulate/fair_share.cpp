#include "simulate/fair_share.h"

#include <algorithm>
#include <limits>

#include "simulate/pool.h"

namespace longnet {

constexpr double kNone = std::numeric_limits<double>::infinity();

FairShare::FairShare(const std::vector<double>& capacities, int most_links)
    : most_links_(size_t(most_links)) {
  links_.reserve(capacities.size());
  for (const double capacity : capacities)
    links_.push_back({.capacity = capacity, .first_user = kNoSlot});
}

FairShare::Flow FairShare::start(std::span<const int> links, double most) {
  const Flow flow = take_slot(flows_, free_flows_);
  uses_.resize(std::max(uses_.size(), flows_.size() * most_links_));
  flows_[flow] = {most, uint32_t(links.size())};
  uint32_t id = uint32_t(flow * most_links_);
  for (const int link : links) {
    Link& l = links_[size_t(link)];
    uses_[id] = {link, flow, l.first_user, kNoSlot};
    if (l.first_user != kNoSlot) uses_[l.first_user].previous = id;
    l.first_user = id++;
    ++l.users;
    touch(link);
  }
  return flow;
}

void FairShare::stop(Flow flow) {
  for (const Use& use : uses_of(flow)) {
    Link& l = links_[size_t(use.link)];
    (use.previous == kNoSlot ? l.first_user : uses_[use.previous].next) = use.next;
    if (use.next != kNoSlot) uses_[use.next].previous = use.previous;
    --l.users;
    touch(use.link);
  }
  free_flows_.push_back(flow);
}

void FairShare::set_capacity(int link, double capacity) {
  links_[size_t(link)].capacity = capacity;
  touch(link);
}

// True when no other flow uses its links now.
bool FairShare::runs_alone(Flow flow) {
  return std::ranges::all_of(uses_of(flow),
                             [&](const Use& u) { return links_[size_t(u.link)].users == 1; });
}

// Collects all links and flows that are connected to `from` through flows.
void FairShare::collect(int from) {
  component_links_.assign(1, from);
  component_flows_.clear();
  links_[size_t(from)].in_component = true;
  for (size_t i = 0; i < component_links_.size(); ++i) {
    Link& l = links_[size_t(component_links_[i])];
    l.left = l.capacity;
    l.open = l.users;
    l.dirty = false;
    for (uint32_t user = l.first_user; user != kNoSlot; user = uses_[user].next) {
      const Flow flow = uses_[user].flow;
      if (flows_[flow].in_component) continue;
      flows_[flow].in_component = true;
      component_flows_.push_back(flow);
      for (const Use& use : uses_of(flow)) {
        if (links_[size_t(use.link)].in_component) continue;
        links_[size_t(use.link)].in_component = true;
        component_links_.push_back(use.link);
      }
    }
  }
}

void FairShare::fix(Flow flow, double rate) {
  flows_[flow].fixed = true;
  flows_[flow].rate = rate;
  for (const Use& use : uses_of(flow)) {
    links_[size_t(use.link)].left -= rate;
    --links_[size_t(use.link)].open;
  }
}

// Of the flows of the component that have no rate yet.
double FairShare::least_limit() const {
  double least = kNone;
  for (const Flow flow : component_flows_)
    if (!flows_[flow].fixed) least = std::min(least, flows_[flow].most);
  return least;
}

void FairShare::fill() {
  constexpr double kSame = 1 + 1e-12;  // links that offer the same are full together
  double limit = least_limit();
  for (size_t fixed = 0; fixed < component_flows_.size();) {
    double least = limit;
    for (const int i : component_links_) {
      const Link& l = links_[size_t(i)];
      if (l.open > 0) least = std::min(least, l.left / l.open);
    }
    full_.clear();
    for (const int i : component_links_) {
      const Link& l = links_[size_t(i)];
      if (l.open > 0 && l.left / l.open <= least * kSame) full_.push_back(i);
    }
    for (const int i : full_)
      for (uint32_t user = links_[size_t(i)].first_user; user != kNoSlot; user = uses_[user].next) {
        if (flows_[uses_[user].flow].fixed) continue;
        fix(uses_[user].flow, least);
        ++fixed;
      }
    if (limit > least * kSame) continue;
    for (const Flow flow : component_flows_) {
      if (flows_[flow].fixed || flows_[flow].most > least * kSame) continue;
      fix(flow, least);
      ++fixed;
    }
    limit = least_limit();
  }
}

// Gives rates to the flows that are connected to this link, if that is still to be done and there
// are some.
bool FairShare::fill_around(int link) {
  Link& l = links_[size_t(link)];
  if (!l.dirty) return false;
  l.dirty = false;
  if (l.users == 0) return false;
  const Flow first = uses_[l.first_user].flow;
  if (l.users == 1 && runs_alone(first)) {
    double least = flows_[first].most;
    for (const Use& use : uses_of(first)) {
      least = std::min(least, links_[size_t(use.link)].capacity);
      links_[size_t(use.link)].dirty = false;
    }
    flows_[first].rate = least;
    component_flows_.assign(1, first);
    return true;
  }
  collect(link);
  fill();
  for (const int i : component_links_) links_[size_t(i)].in_component = false;
  for (const Flow flow : component_flows_) flows_[flow].in_component = flows_[flow].fixed = false;
  return true;
}

}  // namespace longnet
