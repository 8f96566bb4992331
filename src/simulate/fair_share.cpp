#include "simulate/fair_share.h"

#include <algorithm>
#include <limits>

#include "simulate/pool.h"

namespace longnet {

FairShare::FairShare(std::vector<double> capacities) : links_(capacities.size()) {
  for (size_t i = 0; i < capacities.size(); ++i) links_[i].capacity = capacities[i];
}

int FairShare::add_link(double capacity) {
  links_.emplace_back().capacity = capacity;
  return int(links_.size()) - 1;
}

void FairShare::touch(int link) {
  Link& l = links_[size_t(link)];
  if (l.dirty) return;
  l.dirty = true;
  dirty_.push_back(link);
}

FairShare::Flow FairShare::add(std::span<const int> links) {
  const Flow flow = take_slot(flows_, free_);
  State& f = flows_[flow];
  f.links.clear();
  f.rate = 0;
  for (const int link : links) {
    auto& users = links_[size_t(link)].users;
    users.push_back({flow, uint32_t(f.links.size())});
    f.links.push_back({link, uint32_t(users.size()) - 1});
    touch(link);
  }
  return flow;
}

void FairShare::remove(Flow flow) {
  State& f = flows_[flow];
  for (const Use& use : f.links) {
    auto& users = links_[size_t(use.link)].users;
    users[use.place] = users.back();
    flows_[users.back().flow].links[users.back().use].place = use.place;
    users.pop_back();
    touch(use.link);
  }
  free_.push_back(flow);
}

// Collects all links and flows that are connected to `from` through flows.
void FairShare::collect(int from) {
  component_links_.assign(1, from);
  component_flows_.clear();
  links_[size_t(from)].in_component = true;
  for (size_t i = 0; i < component_links_.size(); ++i)
    for (const User& user : links_[size_t(component_links_[i])].users) {
      State& f = flows_[user.flow];
      if (f.in_component) continue;
      f.in_component = true;
      component_flows_.push_back(user.flow);
      for (const auto& [link, place] : f.links) {
        if (links_[size_t(link)].in_component) continue;
        links_[size_t(link)].in_component = true;
        component_links_.push_back(link);
      }
    }
}

void FairShare::fill() {
  constexpr double kSame = 1 + 1e-12;  // links that offer the same are full together
  for (const int i : component_links_) {
    Link& l = links_[size_t(i)];
    l.left = l.capacity;
    l.open = int(l.users.size());
  }
  for (size_t fixed = 0; fixed < component_flows_.size();) {
    double least = std::numeric_limits<double>::infinity();
    for (const int i : component_links_)
      if (links_[size_t(i)].open > 0)
        least = std::min(least, links_[size_t(i)].left / links_[size_t(i)].open);
    full_.clear();
    for (const int i : component_links_)
      if (links_[size_t(i)].open > 0 &&
          links_[size_t(i)].left / links_[size_t(i)].open <= least * kSame)
        full_.push_back(i);
    for (const int i : full_)
      for (const User& user : links_[size_t(i)].users) {
        State& f = flows_[user.flow];
        if (f.fixed) continue;
        f.fixed = true;
        ++fixed;
        if (f.rate != least) {
          f.rate = least;
          changed_.push_back(user.flow);
        }
        for (const auto& [link, place] : f.links) {
          links_[size_t(link)].left -= least;
          --links_[size_t(link)].open;
        }
      }
  }
}

const std::vector<FairShare::Flow>& FairShare::update() {
  changed_.clear();
  for (const int link : dirty_) {
    if (!links_[size_t(link)].dirty) continue;
    if (links_[size_t(link)].users.empty()) {
      links_[size_t(link)].dirty = false;
      continue;
    }
    collect(link);
    fill();
    for (const int i : component_links_)
      links_[size_t(i)].in_component = links_[size_t(i)].dirty = false;
    for (const Flow flow : component_flows_) flows_[flow].in_component = flows_[flow].fixed = false;
  }
  dirty_.clear();
  return changed_;
}

}  // namespace longnet
