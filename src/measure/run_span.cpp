#include "measure/run_span.h"

#include <utility>

namespace longnet {

RunReducer::RunReducer(bool one_clock, std::function<void(std::span<double>)> all_max)
    : one_clock_(one_clock), all_max_(std::move(all_max)) {}

double RunReducer::seconds(const RunSpan& own) const {
  double stamps[2] = {own.end_s, -own.begin_s};
  if (!one_clock_) stamps[0] = own.seconds(), stamps[1] = 0;
  all_max_(stamps);
  return stamps[0] + stamps[1];
}

std::string_view RunReducer::name() const { return one_clock_ ? "span" : "max"; }

}  // namespace longnet
