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

FairShare::Bundle FairShare::start(std::span<const int> links, double most) {
  const Bundle bundle = take_slot(bundles_, free_bundles_);
  if (uses_.size() < bundles_.size() * most_links_) uses_.resize(bundles_.size() * most_links_);
  bundles_[bundle] = {most, uint32_t(links.size())};
  uint32_t id = uint32_t(bundle * most_links_);
  for (const int link : links) {
    Link& l = links_[size_t(link)];
    uses_[id] = {link, bundle, l.first_user, kNoSlot};
    if (l.first_user != kNoSlot) uses_[l.first_user].previous = id;
    l.first_user = id++;
  }
  add(bundle);
  return bundle;
}

void FairShare::stop(Bundle bundle) {
  State& b = bundles_[bundle];
  const bool is_last = --b.flows == 0;
  for (const Use& use : uses_of(bundle)) {
    Link& l = links_[size_t(use.link)];
    if (l.slows()) touch(use.link);
    l.asked = --l.flows == 0 ? 0 : l.asked - b.most;  // no rounding is kept for ever
    if (!is_last) continue;
    (use.previous == kNoSlot ? l.first_user : uses_[use.previous].next) = use.next;
    if (use.next != kNoSlot) uses_[use.next].previous = use.previous;
  }
  if (is_last) free_bundles_.push_back(bundle);
}

void FairShare::set_capacity(int link, double capacity) {
  set(links_[size_t(link)], capacity);
  touch(link);
}

// Collects all bundles and links that are connected to `from` through links that slow flows.
void FairShare::collect(Bundle from) {
  component_links_.clear();
  component_.assign({from});
  bundles_[from].round = round_;
  for (size_t i = 0; i < component_.size(); ++i) {
    bundles_[component_[i]].fixed = false;
    for (const Use& use : uses_of(component_[i])) {
      Link& l = links_[size_t(use.link)];
      if (l.round == round_ || !l.slows()) continue;
      l.round = round_;
      l.left = l.capacity;
      l.open = l.flows;
      component_links_.push_back(use.link);
      for (uint32_t user = l.first_user; user != kNoSlot; user = uses_[user].next) {
        const Bundle bundle = uses_[user].bundle;
        if (bundles_[bundle].round == round_) continue;
        bundles_[bundle].round = round_;
        component_.push_back(bundle);
      }
    }
  }
}

void FairShare::fix(Bundle bundle, double rate) {
  State& b = bundles_[bundle];
  b.fixed = true;
  b.rate = rate;
  rate *= b.flows;  // all together
  for (const Use& use : uses_of(bundle)) {
    links_[size_t(use.link)].left -= rate;
    links_[size_t(use.link)].open -= b.flows;
  }
}

// The least limit of the component's flows that have no rate yet.
double FairShare::least_limit() const {
  double least = kNone;
  for (const Bundle bundle : component_)
    if (!bundles_[bundle].fixed) least = std::min(least, bundles_[bundle].most);
  return least;
}

// Fixes the flows that have no rate yet and are held back by links or limits of the least rate.
void FairShare::fill() {
  double limit = least_limit();
  for (size_t open = component_.size(); open > 0;) {
    std::erase_if(component_links_, [&](int i) { return links_[size_t(i)].open == 0; });
    double least = limit;
    for (const int i : component_links_)
      least = std::min(least, links_[size_t(i)].left / links_[size_t(i)].open);
    // To fix flows of one full link leaves to those of another one what it had for each of them.
    for (const int i : component_links_) {
      const Link& l = links_[size_t(i)];
      if (l.left > least * kSameRate * l.open) continue;
      for (uint32_t user = l.first_user; user != kNoSlot; user = uses_[user].next) {
        if (bundles_[uses_[user].bundle].fixed) continue;
        fix(uses_[user].bundle, least);
        --open;
      }
    }
    if (limit > least * kSameRate) continue;
    for (const Bundle bundle : component_) {
      if (bundles_[bundle].fixed || bundles_[bundle].most > least * kSameRate) continue;
      fix(bundle, least);
      --open;
    }
    limit = least_limit();
  }
}

}  // namespace longnet
