// Max-min fair rates of flows that share links, kept up to date as flows start and stop.
//
//   Two flows on a link of 10 B/s, one of them also on a link of 2 B/s: rates 8 and 2.
//
// Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): the link that offers
// its flows the least fixes theirs, is taken out with what they use elsewhere, and so on; a flow's
// own limit counts as a link of its own. Flows over the same links with the same limit have the
// same rate at any time: they are a bundle, which costs as much as one flow. A link that carries
// all its flows at their limits slows none of them: a flow over such links has its rate as it
// starts, and only the flows that are connected to a change through links with less are looked at
// again. Memory is taken by the bundles that run, not by all that ever do: of millions of messages
// a few thousand run at a time, and their bundles stay in the caches.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "simulate/pool.h"

namespace longnet {

inline constexpr double kSameRate = 1 + 1e-12;  // rates that rounding alone keeps apart are equal

class FairShare {
 public:
  using Bundle = uint32_t;
  // `capacities` of the links; a flow uses at most `most_links` of them.
  FairShare(const std::vector<double>& capacities, int most_links);

  // A flow over these links, at `most` (finite) at any time; the number of its bundle, which may be
  // that of one that has stopped. Its rate is 0 until update(), or `most` at once where no link can
  // slow it. One that uses a link twice (in a collapsed topology) takes twice its rate from it.
  Bundle start(std::span<const int> links, double most);
  void add(Bundle bundle);   // one more flow
  void stop(Bundle bundle);  // one flow less; with the last one the bundle is gone
  void set_capacity(int link, double capacity);

  // Recomputes what changed since the last call; calls `component(bundles)` with the bundles that
  // are connected to a change and each other, in a fixed order.
  template <class Component>
  void update(Component&& component) {
    ++round_;
    for (const int link : dirty_) {
      Link& l = links_[size_t(link)];
      l.dirty = false;
      if (l.round == round_) continue;  // collected, with its flows
      for (uint32_t user = l.first_user; user != kNoSlot; user = uses_[user].next) {
        const Bundle bundle = uses_[user].bundle;
        if (bundles_[bundle].round == round_) continue;
        collect(bundle);
        fill();
        component(std::span<const Bundle>(component_));
        if (l.round == round_) break;
      }
    }
    dirty_.clear();
  }
  double rate(Bundle bundle) const { return bundles_[bundle].rate; }  // each of its flows'

 private:
  // A link of a bundle that runs, in the list of the link's users.
  struct Use {
    int link;
    Bundle bundle;
    uint32_t next, previous;
  };
  struct State {
    double most = 0;
    uint32_t num_uses = 0;
    int flows = 0;
    bool fixed = false;
    uint64_t round = 0;  // the update() in which it was last collected
    double rate = 0;
  };
  struct Link {
    double capacity = 0, left = 0;
    double asked = 0, most_asked = 0;  // limits of its flows together, and where they slow them
    uint32_t first_user;               // in uses_
    int flows = 0;
    int open = 0;  // flows that have no rate yet
    bool dirty = false;
    uint64_t round = 0;
    bool slows() const { return asked > most_asked; }
  };
  std::span<Use> uses_of(Bundle bundle) {
    return {uses_.data() + size_t(bundle) * most_links_, bundles_[bundle].num_uses};
  }
  void touch(int link) {
    if (links_[size_t(link)].dirty) return;
    links_[size_t(link)].dirty = true;
    dirty_.push_back(link);
  }
  void set(Link& link, double capacity);
  void collect(Bundle from);
  void fill();
  inline void fix(Bundle bundle, double rate);
  inline double least_limit() const;

  size_t most_links_;
  uint64_t round_ = 0;
  std::vector<Link> links_;
  std::vector<State> bundles_;
  std::vector<Use> uses_;  // most_links_ for each bundle
  std::vector<Bundle> free_bundles_, component_;
  std::vector<int> dirty_, component_links_;
};

inline void FairShare::add(Bundle bundle) {
  State& b = bundles_[bundle];
  ++b.flows;
  bool slowed = false;
  for (const Use& use : uses_of(bundle)) {
    Link& l = links_[size_t(use.link)];
    ++l.flows;
    l.asked += b.most;
    if (!l.slows()) continue;
    touch(use.link);
    slowed = true;
  }
  if (!slowed) b.rate = b.most;
}

}  // namespace longnet
