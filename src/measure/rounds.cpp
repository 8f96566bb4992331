#include "measure/rounds.h"

#include "core/check.h"

namespace longnet {

int worthwhile_rounds(double run_s) { return run_s < 0.3 ? 5 : run_s < 3 ? 3 : 2; }

std::vector<std::vector<double>> take_rounds(int modes, int rounds,
                                             const std::function<double(int)>& time_mode) {
  check(modes > 0 && rounds > 0, "need modes and rounds, have ", modes, " and ", rounds);
  std::vector<std::vector<double>> seconds(static_cast<size_t>(modes));
  for (int round = 0; round < rounds; ++round)
    for (int place = 0; place < modes; ++place) {
      const int mode = (round + place) % modes;
      seconds[size_t(mode)].push_back(time_mode(mode));
    }
  return seconds;
}

}  // namespace longnet
