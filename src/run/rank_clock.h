// Times what all ranks of a communicator do together, on the clock or clocks that they have.
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
#include <limits>
#include <span>
#include <string_view>

#include "comm/communicator.h"
#include "core/check.h"
#include "measure/rank_place.h"
#include "measure/sampler.h"

namespace longnet {

class RankClock {
 public:
  // `places`: of all ranks of `comm`, which must outlive the clock.
  RankClock(Communicator& comm, std::span<const RankPlace> places)
      : comm_(comm), one_clock_(one_clock(places)) {}

  // Seconds of a run of all ranks, from this one's part; the same on all of them. Collective.
  double seconds(const RunSpan& own) const {
    double stamps[2] = {own.end_s, -own.begin_s};
    if (!one_clock_) stamps[0] = own.seconds(), stamps[1] = 0;
    comm_.all_max(stamps);
    return stamps[0] + stamps[1];
  }

  // Seconds of one run of all ranks, after a barrier; the same on all of them. Collective.
  double time(const std::function<void()>& run) const {
    comm_.barrier();
    RunSpan own{.begin_s = steady_seconds()};
    run();
    own.end_s = steady_seconds();
    return seconds(own);
  }

  // Waits until all ranks are there. Collective.
  void wait_for_all() {
    arrived_s_ = steady_seconds();
    comm_.barrier();
  }
  // Throws on all ranks when one began, at `begin_s` by steady_seconds(), before all were there.
  // Collective.
  void require_common_begin(double begin_s) const {
    if (!one_clock_) return;
    double stamps[2] = {arrived_s_, -begin_s};
    comm_.all_max(stamps);
    check(stamps[0] <= -stamps[1], "a rank began its sample ", stamps[0] + stamps[1],
          " s before the last one was there: the barrier does not hold");
  }

  // The clock must outlive them.
  SampleHooks hooks(std::function<void()> run) {
    return {.prepare = [this] { wait_for_all(); },
            .run = std::move(run),
            .over_ranks =
                [this](const RunSpan& own) {
                  require_common_begin(own.begin_s);
                  return seconds(own);
                },
            .broadcast_from_root = [this](bool go_on) { return comm_.broadcast_flag(go_on); },
            .now = steady_seconds};
  }

  // Name of the reduction in a record: "span" (last end - first begin) or "max" (of own durations).
  std::string_view reduction() const { return one_clock_ ? "span" : "max"; }

 private:
  Communicator& comm_;
  bool one_clock_;
  double arrived_s_ = std::numeric_limits<double>::infinity();  // at wait_for_all(), the last time
};

}  // namespace longnet
