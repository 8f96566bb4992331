// Simulates compact programs on a topology, event by event.
//
//   P = 4, ring all-gather, m bytes a piece, alpha, beta:  3 (alpha + m / beta), to the last digit.
//
// A message starts when both sides have posted it (rendezvous), costs its latency, and then flows
// at the rate that max-min fair sharing gives it on the links of its route, until its bytes are
// over; both ops end together. Messages of one (from, to) pair travel one after the other, as MPI
// and NCCL keep them in order; the next one's latency hides behind the one before. A pair that no
// other can slow (links of its own, or such that all their pairs together cannot fill) has its
// messages timed the moment both sides are known, without events, which is most of the speed.
//
// When ranks p and p + k do the same (Twins, Topology::period), only k of them are
// simulated: a message to another block of k ranks arrives when that of the block's twin does.
//
// Equal inputs give equal outputs, bit for bit: events of one time keep the order of their making.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "simulate/compact_program.h"
#include "simulate/topology.h"

namespace longnet {

struct SimulateOptions {
  AlphaSet alpha = AlphaSet::kNcclLl;
  bool collapse = true;          // simulate one block of twins only, where there are some
  Straggler straggler{};         // ranks that compute slower
  bool without_compute = false;  // communication alone
  bool timeline = false;
  double most_cpu_s =
      std::numeric_limits<double>::infinity();  // a run that takes longer is refused
};

struct SimulatedRank {
  double attend_s = 0, merge_s = 0, pack_s = 0;     // busy times of its lanes
  double gemm_s = 0, row_wise_s = 0, update_s = 0;  // a model's
  double compute_s() const { return attend_s + gemm_s + row_wise_s + update_s; }
  double finish_s = 0;
};

struct TimelineItem {
  Rank rank;
  OpKind kind;
  // A message or gather is posted by this rank, waits for the other side or members, and then
  // travels from begin_s to end_s; other ops begin as they are posted.
  double posted_s, begin_s, end_s;
  Rank peer = -1;    // a message's other end
  double bytes = 0;  // a message's size
  int branch = -1;   // an attend's branch
};

struct SimulatedRun {
  double makespan_s = 0;
  std::vector<SimulatedRank> ranks{};  // the simulated ones: 0, 1, ...
  int64_t messages = 0;                // sent by these ranks
  int64_t shared_messages = 0;         // those of them that others can slow
  double cpu_s = 0;                    // time of one core that the simulation took
  std::vector<TimelineItem> timeline{};
};

// Number of ranks that are simulated: all, or one block of twins.
int simulated_ranks(const ProgramSet& programs, const Topology& topology,
                    const SimulateOptions& options);

// Throws Error on a deadlock (naming a rank and the op it waits in) and on messages whose two sides
// differ in length; UsageError beyond most_cpu_s.
SimulatedRun simulate(const ProgramSet& programs, const Topology& topology,
                      const ClusterSpec& cluster, const SimulateOptions& options = {});

}  // namespace longnet
