// Timing one thing on all ranks at once, within a budget: what every part of calibrate uses.
#pragma once
#include <algorithm>
#include <vector>

#include "comm/communicator.h"
#include "measure/sampler.h"
#include "measure/statistics.h"

namespace longnet {

struct Effort {
  double seconds = 0.15;  // goes on for as long...
  int min_runs = 5;       // ...but takes at least so many runs
  int max_runs = 300;
};

// Median of the slowest rank's seconds, after one run that does not count. Collective: rank 0 says
// when it is enough.
template <class Run>
double median_seconds(Communicator& comm, const Effort& effort, const Run& run) {
  run();
  std::vector<double> samples;
  const double begin = steady_seconds();
  for (bool go_on = true; go_on;) {
    comm.barrier();
    const double start = steady_seconds();
    run();
    samples.push_back(comm.max_of(steady_seconds() - start));
    const int runs = int(samples.size());
    go_on =
        comm.broadcast_flag(runs < effort.min_runs ||
                            (runs < effort.max_runs && steady_seconds() - begin < effort.seconds));
  }
  return median(samples);
}

}  // namespace longnet
