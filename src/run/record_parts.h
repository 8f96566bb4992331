// Parts of a record that do not depend on how its point ran.
#pragma once
#include "comm/communicator.h"
#include "execute/program_executor.h"
#include "execute/sample_check.h"
#include "io/record.h"
#include "kernels/row_worker.h"
#include "measure/sampler.h"
#include "run/plan_point.h"
#include "run/point_schedule.h"
#include "schedule/accounting.h"
#include "schedule/program.h"

namespace longnet {

// FLOPs, tokens, balance and coverage; after timing also rates. `peak_flops`: of all cores that are
// at work at the same time (usable_cores); 0 when it is not known.
void record_work(PointRecord& record, const PointPlan& plan, double peak_flops);
void record_depth(PointRecord& record, const PointParams& params);
// The check; a wrong output makes the point check_failed, with the figures as its reason.
void record_outcome(PointRecord& record, const CheckOutcome& outcome);
// What each rank took by its own clock (0: it has no sample), and the pairs of its program.
void record_per_rank(PointRecord& record, const Schedule& schedule, const SampleSet& samples,
                     Communicator& comm);
ContentRecord to_content(const OutputSummary& output);
// Sums and digests of all ranks' output (`heads`: this rank's, by query head) and inputs.
void record_content(PointRecord& record, const std::vector<OutputSummary>& heads,
                    uint64_t input_digest, Communicator& comm);
// What each op of the last run took, where a picture of it shows something.
void record_timeline(PointRecord& record, const RankProgram& program, std::span<const OpTime> times,
                     Communicator& comm);
// `counters` of `runs` runs against what `expected` says of one: else the point is check_failed.
void record_communication(PointRecord& record, const RankAccount& expected,
                          const CommCounters& counters, int64_t runs, Communicator& comm);
// Tags of the rank whose peak is the largest (the first of them), on every rank.
std::map<std::string, int64_t> heaviest_ranks_tags(const MemoryLedger& ledger, Communicator& comm);
// The largest resident size that this process has had, in bytes (Linux; else 0).
double peak_resident_bytes();

}  // namespace longnet
