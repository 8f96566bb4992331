// Measures one point on its ranks, checks it, and says both in a record: on the host or on GPUs.
#pragma once
#include <functional>

#include "comm/communicator.h"
#include "run/plan_point.h"

namespace longnet {

class PointSession;

struct RunnerOptions {
  MeasureConfig measure;
  CheckConfig check;
  double peak_flops_per_thread = 0;  // measured FMA peak of a core, with all ranks' threads at work
  std::string device_transport = "auto";   // for points on GPUs
  std::function<void()> progress = [] {};  // called before each run of a program, on each rank
  bool ablations = true;  // also time compute alone, communication alone, and one after the other
};

// Collective over the ranks of `comm`. The record is complete on rank 0. A point is ok only when
// its sampled queries agree in every run with the reference (execute/tolerances.h), its counted
// bytes and messages equal the predicted ones, and its memory is the predicted: of a GPU that of
// its slots.
PointRecord measure_point(const PointPlan& plan, const RunnerOptions& options, Communicator& comm);

// Ablations of a point: the time that overlap hides, and the cost of fragmented attends.
//
// Each round runs every mode once: full, compute alone, communication alone, one after the other,
// and, on the host, the rank's pairs as one attend. With P = 1 there is nothing to leave out: full
// and one attend.
//
// Fills record.phases with what the busiest rank computed and merged: parts of one rank do not
// overlap, maxima over several ranks would. With `ablations` also record.ablations, all medians
// over rounds, where
//   compute_s + merge_s <= compute_only_s       (of one compute-only run)
//   exposed_communication_s = full_s - compute_only_s, signed.
// On GPUs compute is that of runs that compute alone, since what kernels lose to NCCL's is exposed
// communication, and noting the times of ops has a run of its own. Needs record.timing. Spoils the
// executor's output. Collective.
void record_phases(PointRecord& record, PointSession& session, bool ablations, Communicator& comm);

// Runs that the ablations take of a point that takes `run_s`.
int ablation_runs(double run_s, const PointParams& params);

}  // namespace longnet
