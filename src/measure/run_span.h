// Duration of a run of all ranks.
//
// One run on P = 4 ranks that take turns on one core, 1 s each:
//   rank 0  |--|          begin 0  end 1
//   rank 1     |--|       begin 1  end 2      largest own duration    1 s: not the run's duration
//   rank 2        |--|    begin 2  end 3      last end - first begin  4 s
//   rank 3           |--| begin 3  end 4
// When ranks read different clocks their stamps cannot be compared: then the largest own duration
// after a barrier is used, which is the same as long as each rank has cores of its own.
#pragma once
#include <functional>
#include <span>
#include <string_view>

namespace longnet {

// One rank's part of a run, on its steady clock.
struct RunSpan {
  double begin_s = 0, end_s = 0;
  double seconds() const { return end_s - begin_s; }
};

class RunReducer {
 public:
  // `all_max`: collective, the maximum over ranks of each value in place. `one_clock`: all ranks'
  // stamps are of the same clock (see rank_place.h).
  RunReducer(bool one_clock, std::function<void(std::span<double>)> all_max);

  // Seconds of the run, the same on all ranks. Collective.
  double seconds(const RunSpan& own) const;
  // As it is written into a record: "span" (last end - first begin) or "max" (of own durations).
  std::string_view name() const;

 private:
  bool one_clock_;
  std::function<void(std::span<double>)> all_max_;
};

}  // namespace longnet
