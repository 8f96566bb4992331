// Measures messages between two ranks: their times alone, and their progress while ranks compute.
#pragma once
#include <vector>

#include "comm/communicator.h"
#include "run/calibrate_time.h"
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

// Ring attention in four ways (ProgramExecutor): all, only compute, only messages, and what compute
// took while messages moved.
struct OverlapMeasurement {
  int64_t seq_len = 0;
  double ranks = 0, message_bytes = 0;
  double full_s = 0, compute_s = 0, communication_s = 0;
  double compute_in_full_s = 0;

  // Too short to be told apart from the noise of compute.
  bool too_short() const { return communication_s < 0.05 * compute_s; }
  double hidden_s() const;  // of the messages' time, behind compute
  // Bytes per second of a rank's messages (in and out together) while it computes: they are in
  // flight during all attends but the last one.
  double bytes_per_s_without_progress() const;
  double efficiency() const;  // speed of compute beside messages, at most 1
};
// `rows` tokens per rank. Collective.
OverlapMeasurement measure_overlap(Communicator& comm, int threads, int64_t rows,
                                   const Effort& effort);

}  // namespace longnet
