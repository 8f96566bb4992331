#include "simulate/fair_share.h"

#include <algorithm>
#include <limits>

#include "simulate/pool.h"

namespace longnet {

FairShare::FairShare(const std::vector<double>& capacities) {
  for (const double capacity : capacities) add_link(capacity);
}

int FairShare::add_link(double capacity) {
  links_.push_back({.capacity = capacity, .first_user = kNoSlot});
  return int(links_.size()) - 1;
}

FairShare::Flow FairShare::add(std::span<const int> links) {
  const Flow flow = Flow(flows_.size());
  flows_.push_back({.first_use = uint32_t(uses_.size()), .num_uses = uint32_t(links.size())});
  for (const int link : links) uses_.push_back({link, flow, kNoSlot, kNoSlot});
  return flow;
}

void FairShare::start(Flow flow) {
  State& f = flows_[flow];
  f.rate = 0;
  for (uint32_t id = f.first_use; id < f.first_use + f.num_uses; ++id) {
    Use& use = uses_[id];
    Link& l = links_[size_t(use.link)];
    use.next = l.first_user;
    use.previous = kNoSlot;
    if (l.first_user != kNoSlot) uses_[l.first_user].previous = id;
    l.first_user = id;
    ++l.users;
    touch(use.link);
  }
}

void FairShare::stop(Flow flow) {
  for (const Use& use : uses_of(flows_[flow])) {
    Link& l = links_[size_t(use.link)];
    (use.previous == kNoSlot ? l.first_user : uses_[use.previous].next) = use.next;
    if (use.next != kNoSlot) uses_[use.next].previous = use.previous;
    --l.users;
    touch(use.link);
  }
}

void FairShare::set_capacity(int link, double capacity) {
  links_[size_t(link)].capacity = capacity;
  touch(link);
}

void FairShare::set_rate(Flow flow, double rate) {
  State& f = flows_[flow];
  if (f.rate == rate) return;
  f.rate = rate;
  changed_.push_back(flow);
}

// True when no other flow uses its links now.
bool FairShare::runs_alone(Flow flow) {
  return std::ranges::all_of(uses_of(flows_[flow]),
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
      State& f = flows_[uses_[user].flow];
      if (f.in_component) continue;
      f.in_component = true;
      component_flows_.push_back(uses_[user].flow);
      for (const Use& use : uses_of(f)) {
        if (links_[size_t(use.link)].in_component) continue;
        links_[size_t(use.link)].in_component = true;
        component_links_.push_back(use.link);
      }
    }
  }
}

void FairShare::fill() {
  constexpr double kSame = 1 + 1e-12;  // links that offer the same are full together
  for (size_t fixed = 0; fixed < component_flows_.size();) {
    double least = std::numeric_limits<double>::infinity();
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
        State& f = flows_[uses_[user].flow];
        if (f.fixed) continue;
        f.fixed = true;
        ++fixed;
        set_rate(uses_[user].flow, least);
        for (const Use& use : uses_of(f)) {
          links_[size_t(use.link)].left -= least;
          --links_[size_t(use.link)].open;
        }
      }
  }
}

const std::vector<FairShare::Flow>& FairShare::update() {
  changed_.clear();
  for (const int link : dirty_) {
    Link& l = links_[size_t(link)];
    if (!l.dirty) continue;
    l.dirty = false;
    if (l.users == 0) continue;
    const Flow first = uses_[l.first_user].flow;
    if (l.users == 1 && runs_alone(first)) {
      double least = std::numeric_limits<double>::infinity();
      for (const Use& use : uses_of(flows_[first])) {
        least = std::min(least, links_[size_t(use.link)].capacity);
        links_[size_t(use.link)].dirty = false;
      }
      set_rate(first, least);
      continue;
    }
    collect(link);
    fill();
    for (const int i : component_links_) links_[size_t(i)].in_component = false;
    for (const Flow flow : component_flows_) flows_[flow].in_component = flows_[flow].fixed = false;
  }
  dirty_.clear();
  return changed_;
}

}  // namespace longnet
