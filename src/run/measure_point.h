// Measures one point on its ranks, checks it, and says both in a record: on the host or on GPUs.
#pragma once
#include "comm/communicator.h"
#include "io/config.h"
#include "io/record.h"
#include "run/plan_point.h"

namespace longnet {

struct RunnerOptions {
  MeasureConfig measure;
  CheckConfig check;
  double peak_flops_per_thread = 0;  // measured FMA peak of a core, with all ranks' threads at work
  std::string device_transport = "auto";  // of points on GPUs
  bool ablations = true;  // also time compute alone, communication alone, and one after the other
};

// Collective over the ranks of `comm`. The record is complete on rank 0. A point is ok only when
// its sampled queries agree with the reference (on GPUs within what 16-bit storage allows), its
// counted bytes and messages equal the predicted ones, and its memory is the predicted: of a GPU
// that of its slots.
PointRecord measure_point(const PointPlan& plan, const RunnerOptions& options, Communicator& comm);

}  // namespace longnet
