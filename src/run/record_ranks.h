// Parts of a record that take figures of all ranks of a run. The functions are collective: they
// combine the ranks' figures and fill them in (fill_record.h).
#pragma once
#include "comm/communicator.h"
#include "kernels/row_worker.h"
#include "measure/sampler.h"
#include "run/backend.h"

namespace longnet {

// Each rank's seconds by its own clock (0: it has no sample) and the pairs of its program; bytes
// and messages of the runs so far and the memory that they took, against the account of the
// program, the plan and the closed forms. Fails the point where they differ.
void record_counts(PointRecord& record, PointSession& session, const PointPlan& plan,
                   const SampleSet& samples, Communicator& comm);
// Sums and digests of all ranks' output and inputs.
void record_content(PointRecord& record, const Executor& executor, const RowWorker& worker,
                    Communicator& comm);
// Times of the last run's ops on all ranks.
std::vector<TimelineEntry> timeline_of(const Executor& executor, Communicator& comm);
// Records them, within kTimelineOps and kTimelineRanks.
void record_timeline(PointRecord& record, const Executor& executor, Communicator& comm);

}  // namespace longnet
