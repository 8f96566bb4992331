// The collectives of a simulation that a formula times (CompactCollective): the members of each
// that have arrived.
//
// Members find each other by group and by how often the group has gathered before: the second
// gather of ranks 0..3 in the program of rank 2 is the second one of ranks 0, 1 and 3.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "simulate/compact_program.h"

namespace longnet {

class Gatherings {
 public:
  struct Member {
    uint32_t lane, index;  // where the op stands
    double posted_s;
  };
  struct Gathering {
    int needed = 0;
    double ready_s = 0;  // when the last member that has arrived was posted
    std::vector<Member> members{};
  };

  // The first `simulated` ranks stand for all.
  Gatherings(const ProgramSet& programs, int simulated) : numbers_(size_t(simulated)) {
    std::map<std::pair<RankGroup, int>, uint32_t> known;
    for (Rank p = 0; p < simulated; ++p) {
      std::map<RankGroup, int> seen;
      for (const CompactCollective& c : programs.of(p).collectives) {
        RankGroup group = c.group;
        group.rotation = 0;
        if (group.count == programs.ranks)
          group = {.first = 0, .stride = 1, .count = programs.ranks};
        else
          group.first %= simulated;
        const auto [at, is_new] =
            known.try_emplace(std::pair{group, seen[group]++}, uint32_t(gatherings_.size()));
        if (is_new) gatherings_.emplace_back();
        ++gatherings_[at->second].needed;
        numbers_[size_t(p)].push_back(at->second);
      }
    }
  }

  // Number of the gathering that the rank's `collective` belongs to.
  uint32_t number_of(uint32_t rank, int32_t collective) const {
    return numbers_[rank][size_t(collective)];
  }
  // Returns true for the last member.
  bool arrive(uint32_t number, const Member& member) {
    Gathering& g = gatherings_[number];
    g.ready_s = std::max(g.ready_s, member.posted_s);
    g.members.push_back(member);
    return int(g.members.size()) == g.needed;
  }
  const Gathering& operator[](uint32_t number) const { return gatherings_[number]; }

 private:
  std::vector<std::vector<uint32_t>> numbers_;  // by rank and collective
  std::vector<Gathering> gatherings_;
};

}  // namespace longnet
