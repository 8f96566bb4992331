// Load on hardware threads by work that is not measured.
#pragma once
#include <set>
#include <string>
#include <string_view>

#include "core/stopwatch.h"

namespace longnet {

// Load above which times are unreliable: on two cores, a third of one goes to other processes.
inline constexpr double kBusyShare = 0.15;

// Share in [0, 1] of this process's hardware threads at work while it sleeps that long; NaN where
// the system does not tell. Load averages cover minutes: after a build each machine looks busy.
// Ranks of a job that measure at the same time do not disturb each other.
double measure_busy_share(double seconds = 0.4);

// Busy share of the hardware threads since the object was made, beside this process's own work.
class OtherLoad {
 public:
  // Shorter spans are too coarse: the system counts in ticks of 10 ms.
  static constexpr double kShortest_s = 0.5;

  explicit OtherLoad(std::set<int> cpus);
  double passed_s() const { return steady_seconds() - begin_s_; }
  // CPU seconds of this process.
  double own_s() const;
  // Share of the hardware threads at work, less the `own_s` CPU seconds of the measured processes.
  // NaN where the span is too short, or the system does not tell.
  double share(double own_s) const;

 private:
  std::set<int> cpus_;
  std::string before_;
  double own_before_s_;
  double begin_s_ = steady_seconds();
};

// Share of these hardware threads that was at work between two texts of /proc/stat, `own_ticks`
// aside; NaN without a difference. Interrupts do not count: they serve this process's messages
// as well.
double busy_share_between(std::string_view before, std::string_view after,
                          const std::set<int>& threads, double own_ticks = 0);

}  // namespace longnet
