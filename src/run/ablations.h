// Ablations of a point: the time that overlap hides, and the cost of fragmented attends.
//
// Each round runs every mode once: full, compute alone, communication alone, one after the other,
// and, on the host, the rank's pairs as one attend. With P = 1 there is nothing to leave out: full
// and one attend.
#pragma once
#include "comm/communicator.h"
#include "io/record.h"
#include "run/point_session.h"

namespace longnet {

// Fills record.phases with what the busiest rank computed and merged: parts of one rank do not
// overlap, maxima over several ranks would. With `ablations` also record.ablations, all medians
// over rounds, where
//   compute_s + merge_s <= compute_only_s       (of one compute-only run)
//   exposed_communication_s = full_s - compute_only_s, signed.
// On GPUs compute is that of runs that compute alone, since what kernels lose to NCCL's is exposed
// communication, and noting the times of ops has a run of its own. Needs record.timing. Spoils the
// executor's output. Collective.
void record_phases(PointRecord& record, PointSession& session, bool ablations, Communicator& comm);

// Runs that the ablations take of a point whose forward takes `run_s`.
int ablation_runs(double run_s, int ranks);

}  // namespace longnet
