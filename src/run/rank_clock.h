// Times what all ranks of a communicator do together, on the clock or clocks that they have.
#pragma once
#include <functional>
#include <span>

#include "comm/communicator.h"
#include "measure/rank_place.h"
#include "measure/run_span.h"
#include "measure/sampler.h"

namespace longnet {

class RankClock {
 public:
  // `places`: of all ranks of `comm`, which must outlive the clock.
  RankClock(Communicator& comm, std::span<const RankPlace> places)
      : comm_(comm), reducer_(one_clock(places), [&comm](auto values) { comm.all_max(values); }) {}

  // Seconds of one run of all ranks, after a barrier; the same on all of them. Collective.
  double time(const std::function<void()>& run) const {
    comm_.barrier();
    RunSpan own{.begin_s = steady_seconds()};
    run();
    own.end_s = steady_seconds();
    return reducer_.seconds(own);
  }

  SampleHooks hooks(std::function<void()> run) const {
    return {.prepare = [this] { comm_.barrier(); },
            .run = std::move(run),
            .over_ranks = [this](const RunSpan& own) { return reducer_.seconds(own); },
            .broadcast_from_root = [this](bool go_on) { return comm_.broadcast_flag(go_on); },
            .now = steady_seconds};
  }

  std::string_view reduction() const { return reducer_.name(); }

 private:
  Communicator& comm_;
  RunReducer reducer_;
};

}  // namespace longnet
