// What messages take between two ranks, and what becomes of them while ranks compute.
#pragma once
#include <vector>

#include "comm/communicator.h"
#include "lnbench/calibrate_time.h"
#include "simulate/calibration.h"

namespace longnet {

struct LinkBudget {
  Effort effort{.seconds = 0.4, .min_runs = 7};  // per size
  double largest_message_s = 0.25;               // sizes end where one exchange takes longer
  int64_t max_bytes = int64_t{16} << 20;
};

struct LinkMeasurement {
  std::vector<MessageTime> one_way{};   // half a round trip
  std::vector<MessageTime> exchange{};  // both directions at once, as rings use links
  double overhead_s = 0;                // of the rank itself, per small message posted
};

// Between ranks `a` and `b`; the others wait. Collective.
LinkMeasurement measure_link(Communicator& comm, Rank a, Rank b, const LinkBudget& budget);

// A ring-attention step in four ways (ProgramExecutor): all, only compute, only messages, and what
// compute took while messages moved.
struct OverlapMeasurement {
  int64_t seq_len = 0;
  double message_bytes = 0;
  double full_s = 0, compute_s = 0, communication_s = 0;
  double compute_in_full_s = 0;
};
// Looks for a length at which compute takes about as long as its messages, or `max_seq_len`.
// Collective.
OverlapMeasurement measure_overlap(Communicator& comm, int threads, int64_t max_seq_len,
                                   const Effort& effort);

}  // namespace longnet
