// Times one operation on all ranks at once, within a budget. All parts of calibrate use it.
#pragma once
#include <algorithm>
#include <ctime>
#include <vector>

#include "comm/communicator.h"
#include "measure/sampler.h"

namespace longnet {

struct Effort {
  double seconds = 0.08;  // goes on for as long...
  int min_runs = 5;       // ...but takes at least so many runs
  int max_runs = 300;
};

// CPU seconds of the calling thread: time that other processes take of its core does not count.
inline double thread_cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// The faster quartile of the slowest rank's seconds (a disturbed run says nothing about the
// machine), after one run that does not count. Collective: rank 0 says when it is enough. `clock`:
// what a run is timed by.
template <class Run>
double quartile_seconds(Communicator& comm, const Effort& effort, const Run& run,
                        double (*clock)() = steady_seconds) {
  run();
  std::vector<double> samples;
  const double begin = steady_seconds();
  for (bool go_on = true; go_on;) {
    comm.barrier();
    const double start = clock();
    run();
    samples.push_back(comm.max_of(clock() - start));
    const int runs = int(samples.size());
    go_on =
        comm.broadcast_flag(runs < effort.min_runs ||
                            (runs < effort.max_runs && steady_seconds() - begin < effort.seconds));
  }
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 4];
}

}  // namespace longnet
