// Is somebody else at work on this machine right now? Load averages remember minutes, so that a
// build just ended would make every machine look busy.
#pragma once
#include <string_view>
#include <vector>

namespace longnet {

// Above, times deserve little trust: on two cores a third of one is somebody else's.
inline constexpr double kBusyShare = 0.15;

// Share in [0, 1] of the hardware threads that this process may use which are at work while it
// sleeps that long; NaN where the system does not tell. Ranks of a job that measure at the same
// time do not disturb each other.
double measure_busy_share(double seconds = 0.4);

// The same from two texts of /proc/stat, for these hardware threads; NaN without a difference.
double busy_share_between(std::string_view before, std::string_view after,
                          const std::vector<int>& threads);

}  // namespace longnet
