// The cores and the clock of each rank: ranks that share cores, and ranks whose seconds can be
// compared.
//
// Eight ranks of one thread each, as threads of a process that may use CPUs 0 and 1:
//   each {"<boot id>", "<boot id>/time:[4026531834]", {0, 1}}  ->  usable_cores = min(8 x 1, 2) = 2
// Two machines with four such ranks each: 2 + 2 cores, two clocks.
#pragma once
#include <set>
#include <span>
#include <string>

namespace longnet {

struct RankPlace {
  std::string machine;                         // one boot of one kernel: Linux's boot id
  std::string clock;                           // ranks of equal text read the same CLOCK_MONOTONIC
  std::set<int> cpus;                          // hardware threads that this rank may run on
  static void fields(auto& p, auto&& visit) {  // for ranks to tell each other: io/field.h
    visit("machine", p.machine);
    visit("clock", p.clock);
    visit("cpus", p.cpus);
  }
};

// The place of the calling thread. Without Linux's /proc the process is a machine of its own.
RankPlace this_place();

// True when the steady clocks of all ranks show the same time.
bool one_clock(std::span<const RankPlace> places);

// Number of cores in use when every rank has `threads` threads: on each machine the number of
// threads, but never more than the CPUs that its ranks may use together.
int usable_cores(std::span<const RankPlace> places, int threads);

}  // namespace longnet
