// Max-min fair rates of flows that share links, kept up to date as flows come and go.
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
  explicit FairShare(std::vector<double> capacities);

  int add_link(double capacity);  // its number

  // A flow that uses a link twice (in a collapsed topology) takes twice its rate from it.
  Flow add(std::span<const int> links);
  void remove(Flow flow);

  // Recomputes what changed since the last call; the flows whose rate is new, in a fixed order.
  const std::vector<Flow>& update();
  double rate(Flow flow) const { return flows_[flow].rate; }

 private:
  struct Use {
    int link;
    uint32_t place;  // in the link's list of users
  };
  struct User {
    Flow flow;
    uint32_t use;  // which of the flow's uses this is
  };
  struct State {
    std::vector<Use> links;
    double rate = 0;
    bool in_component = false, fixed = false;
  };
  struct Link {
    double capacity = 0, left = 0;
    int open = 0;  // flows without a rate yet
    bool in_component = false, dirty = false;
    std::vector<User> users;
  };
  void touch(int link);
  void collect(int from);
  void fill();

  std::vector<Link> links_;
  std::vector<State> flows_;
  std::vector<Flow> free_, changed_, component_flows_;
  std::vector<int> dirty_, component_links_, full_;
};

}  // namespace longnet
