// Max-min fair rates of flows that share links, kept up to date as flows start and stop.
//
//   Two flows on a link of 10 B/s, one of them also on a link of 2 B/s: rates 8 and 2.
//
// Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): the link that offers
// its flows the least fixes theirs, is taken out with what they use elsewhere, and so on. Only the
// flows that are connected to a change through shared links are looked at again.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace longnet {

class FairShare {
 public:
  using Flow = uint32_t;
  explicit FairShare(const std::vector<double>& capacities);

  int add_link(double capacity);  // its number
  // A flow over these links, numbered from 0 on; it takes nothing before it starts. One that uses a
  // link twice (in a collapsed topology) takes twice its rate from it.
  Flow add(std::span<const int> links);

  void start(Flow flow);
  void stop(Flow flow);
  void set_capacity(int link, double capacity);

  // Recomputes what changed since the last call; the flows whose rate is new, in a fixed order.
  const std::vector<Flow>& update();
  double rate(Flow flow) const { return flows_[flow].rate; }

 private:
  // A link of a flow, while that runs in the list of the link's users.
  struct Use {
    int link;
    Flow flow;
    uint32_t next, previous;
  };
  struct State {
    double rate = 0;
    uint32_t first_use = 0, num_uses = 0;
    bool in_component = false, fixed = false;
  };
  struct Link {
    double capacity = 0, left = 0;
    uint32_t first_user;  // in uses_
    int users = 0;
    int open = 0;  // of them, those whose flow has no rate yet
    bool in_component = false, dirty = false;
  };
  std::span<Use> uses_of(const State& flow) { return {&uses_[flow.first_use], flow.num_uses}; }
  void touch(int link) {
    if (links_[size_t(link)].dirty) return;
    links_[size_t(link)].dirty = true;
    dirty_.push_back(link);
  }
  bool runs_alone(Flow flow);
  void collect(int from);
  void fill();
  void set_rate(Flow flow, double rate);

  std::vector<Link> links_;
  std::vector<State> flows_;
  std::vector<Use> uses_;  // of one flow after another
  std::vector<Flow> changed_, component_flows_;
  std::vector<int> dirty_, component_links_, full_;
};

}  // namespace longnet
