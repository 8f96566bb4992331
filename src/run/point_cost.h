// How long a point takes to measure, by the estimate of its plan.
#pragma once
#include "io/config.h"
#include "run/plan_point.h"

namespace longnet {

// Seconds of its runs and ablations, filling the inputs, and the reference for the sampled queries,
// which regenerates every key that they see; 0 of points that do not run.
double point_cost(const PointPlan& plan, const MeasureConfig& measure);

}  // namespace longnet
