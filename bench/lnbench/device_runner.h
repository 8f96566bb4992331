// Measures one point whose kernel runs on a GPU. The record is that of run_point().
#pragma once
#include <functional>
#include <optional>

#include "lnbench/point_runner.h"

namespace longnet {

// Collective over the ranks of `comm`, each of which works on a GPU of its machine, in turn.
// Seconds are the device's own, between the first and the last op. A point is ok only when its
// sampled queries agree with the reference within what 16-bit storage allows, its counted bytes and
// messages equal the predicted ones, and its slots take the predicted memory.
PointRecord run_device_point(const PointPlan& plan, const RunnerOptions& options,
                             Communicator& comm);

// Virtual ranks: one GPU walks the programs of all. One walk, whose time is the sum over ranks;
// nothing is kept of one that is stopped (asked before each rank): the point starts again.
std::optional<PointRecord> run_device_walk(const PointPlan& plan, const RunnerOptions& options,
                                           const std::function<bool()>& stop);

// Dense 16-bit peak of the tensor cores at the highest clock, of so many devices: FLOP/s.
double device_peak_flops(int devices);

}  // namespace longnet
