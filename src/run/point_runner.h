// Measures one point on its ranks, checks it, and says both in a record.
#pragma once
#include "comm/communicator.h"
#include "io/config.h"
#include "io/record.h"
#include "run/plan_point.h"
#include "run/point_schedule.h"

namespace longnet {

struct RunnerOptions {
  MeasureConfig measure;
  CheckConfig check;
  double peak_flops_per_thread = 0;  // measured FMA peak of a core, with all ranks' threads at work
  std::string device_transport = "auto";  // of points on GPUs
  bool ablations = true;  // also time compute alone, communication alone, and one after the other
};

// Collective over the ranks of `comm`. The record is complete on rank 0. A point is ok only when
// its sampled queries agree with the reference, its counted bytes and messages equal the predicted
// ones, and its measured memory equals the predicted.
PointRecord run_point(const PointPlan& plan, const RunnerOptions& options, Communicator& comm);

}  // namespace longnet
