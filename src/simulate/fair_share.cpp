#include "simulate/fair_share.h"

#include <algorithm>
#include <limits>

namespace longnet {

constexpr double kNone = std::numeric_limits<double>::infinity();

FairShare::FairShare(const std::vector<double>& capacities, int most_links)
    : most_links_(size_t(most_links)) {
  links_.reserve(capacities.size());
  for (const double capacity : capacities) {
    links_.push_back({.first_user = kNoSlot});
    set(links_.back(), capacity);
  }
}

void FairShare::set(Link& link, double capacity) {
  link.capacity = capacity;
  link.most_asked = capacity * kSameRate;
}

FairShare::Flow FairShare::start(std::span<const int> links, double most) {
  const Flow flow = take_slot(flows_, free_flows_);
  uses_.resize(std::max(uses_.size(), flows_.size() * most_links_));
  flows_[flow] = {most, uint32_t(links.size())};
  uint32_t id = uint32_t(flow * most_links_);
  bool slowed = false;
  for (const int link : links) {
    Link& l = links_[size_t(link)];
    uses_[id] = {link, flow, l.first_user, kNoSlot};
    if (l.first_user != kNoSlot) uses_[l.first_user].previous = id;
    l.first_user = id++;
    ++l.users;
    l.asked += most;
    if (!l.slows()) continue;
    touch(link);
    slowed = true;
  }
  if (!slowed) flows_[flow].rate = most;
  return flow;
}

void FairShare::stop(Flow flow) {
  for (const Use& use : uses_of(flow)) {
    Link& l = links_[size_t(use.link)];
    (use.previous == kNoSlot ? l.first_user : uses_[use.previous].next) = use.next;
    if (use.next != kNoSlot) uses_[use.next].previous = use.previous;
    if (l.slows()) touch(use.link);
    l.asked = --l.users == 0 ? 0 : l.asked - flows_[flow].most;  // no rounding is kept for ever
  }
  free_flows_.push_back(flow);
}

void FairShare::set_capacity(int link, double capacity) {
  set(links_[size_t(link)], capacity);
  touch(link);
}

void FairShare::visit(Flow flow) {
  flows_[flow].round = round_;
  flows_[flow].fixed = false;
  component_flows_.push_back(flow);
  for (const Use& use : uses_of(flow)) {
    Link& l = links_[size_t(use.link)];
    if (l.round == round_ || !l.slows()) continue;
    l.round = round_;
    l.left = l.capacity;
    l.open = l.users;
    component_links_.push_back(use.link);
  }
}

// Collects all flows and links that are connected to `from` through links that slow flows.
void FairShare::collect(Flow from) {
  component_links_.clear();
  component_flows_.clear();
  visit(from);
  for (size_t i = 0; i < component_links_.size(); ++i)
    for (uint32_t user = links_[size_t(component_links_[i])].first_user; user != kNoSlot;
         user = uses_[user].next)
      if (flows_[uses_[user].flow].round != round_) visit(uses_[user].flow);
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
      if (l.open > 0 && l.left / l.open <= least * kSameRate) full_.push_back(i);
    }
    for (const int i : full_)
      for (uint32_t user = links_[size_t(i)].first_user; user != kNoSlot; user = uses_[user].next) {
        if (flows_[uses_[user].flow].fixed) continue;
        fix(uses_[user].flow, least);
        ++fixed;
      }
    if (limit > least * kSameRate) continue;
    for (const Flow flow : component_flows_) {
      if (flows_[flow].fixed || flows_[flow].most > least * kSameRate) continue;
      fix(flow, least);
      ++fixed;
    }
    limit = least_limit();
  }
}

}  // namespace longnet
