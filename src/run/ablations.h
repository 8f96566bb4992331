// A point with parts left out: what overlap hides, and what fragments cost.
//
// Each round runs every mode once: full, compute alone, communication alone, one after the other,
// and the rank's pairs as one attend. With P = 1 there is nothing to leave out: full and one
// attend.
#pragma once
#include "comm/communicator.h"
#include "execute/program_executor.h"
#include "io/record.h"
#include "run/plan_point.h"
#include "run/point_schedule.h"
#include "run/rank_clock.h"

namespace longnet {

// Of the run before: attends and merges of the rank that spent most on them. Parts of one rank do
// not overlap, maxima over several ranks would. Collective.
void record_phases(PointRecord& record, const ProgramExecutor& executor, Communicator& comm);

// Fills record.ablations, all medians over rounds, and record.phases, where
//   compute_s + merge_s <= compute_only_s       (of one compute-only run)
//   exposed_communication_s = full_s - compute_only_s, signed.
// Needs record.timing. Spoils the executor's output. Collective.
void record_ablations(PointRecord& record, ProgramExecutor& executor, const RankClock& clock,
                      Communicator& comm);

// Runs that record_ablations takes of a point whose forward takes `run_s`.
int ablation_runs(double run_s, int ranks);

// Seconds that a point takes, by the estimate of its plan: its runs and ablations, filling the
// inputs, and the reference for the sampled queries, which regenerates every key that they see.
double point_cost(const PointPlan& plan, const MeasureConfig& measure);

}  // namespace longnet
