// The parts of a record, each filled in one place: from plain figures, whoever has them (ranks of a
// run, a walk, a simulation), or from the ranks of a run, which first agree on the figures.
#pragma once
#include <array>
#include <new>

#include "comm/communicator.h"
#include "execute/gradient_check.h"
#include "kernels/row_worker.h"
#include "measure/sampler.h"
#include "pattern/dependency_depth.h"
#include "run/backend.h"

namespace longnet {

// ---- from figures ----

// The point is check_failed; a reason that is there stays, before this one.
void fail_check(PointRecord& record, const std::string& reason);

// `work` with tokens and coverage; after timing also its rate.
void set_work(PointRecord& record, const WorkRecord& work);
// Fills `work` from the prediction of a plan.
void record_work(PointRecord& record, const PointPlan& plan);
// The share of the peak is the median of the samples' own: `flops_per_s` of each and `peak` (FLOP/s)
// of the hardware beside it, 0 where it is not known. Also records the highest peak.
void set_share_of_peak(PointRecord& record, const std::vector<double>& flops_per_s,
                       const std::vector<double>& peak);
void record_depth(PointRecord& record, const PointParams& params, const DepthOptions& options = {});
void set_predicted_traffic(PointRecord& record, int64_t bytes, int64_t messages);
// Measured and predicted peak with the parts by tag; what else `record.memory` holds stays.
void set_memory(PointRecord& record, const MemoryRecord& memory);
// The check; a wrong output makes the point check_failed, with the figures as its reason, and so does
// a check that passes a poisoned output, which nobody wrote.
void set_check(PointRecord& record, const CheckOutcome& outcome, bool passes_poison);
// Records what was found of the gradients, and fails the point where a law of conservation is broken.
void set_gradients(PointRecord& record, const std::array<CheckOutcome, 3>& outcomes,
                   const Conservation& laws);
// Records what the check covers. Fails the point where a stratum has no checked query although the budget
// allowed one, or others than the chosen queries were `compared`.
void set_strata(PointRecord& record, const SampleChoice& choice, int64_t compared, int64_t budget);
// Fails the point where the output has not that many `rows`.
void set_content(PointRecord& record, const ContentRecord& content, int64_t rows);

// Returns the reason of a point whose allocation failed: the GPU's own message, or "the machine
// refused 12.0 GiB per rank".
std::string out_of_memory_reason(const std::bad_alloc& error, const PointPlan& plan,
                                 const std::string& of_whom);
// Growth of a process's resident memory beside what its ranks' buffers took, where that is enough
// to tell; of several processes the one that differs most stays.
void set_resident_memory(PointRecord& record, int64_t growth, int64_t held);
inline constexpr int64_t kLeastHeldToTell = int64_t{256} << 20;

// Limits of a readable timeline: larger ones are dropped, unless a simulation is asked to keep it.
inline constexpr int kTimelineOps = 64, kTimelineRanks = 8;

// ---- from ranks, all of which call these ----

// Records each rank's seconds by its own clock (0: it has no sample) and the pairs of its program.
void record_per_rank(PointRecord& record, const Schedule& schedule, const SampleSet& samples,
                     Communicator& comm);
// Counted bytes and messages of the runs so far against the prediction for one.
void record_communication(PointRecord& record, PointSession& session, const SampleSet& samples,
                          Communicator& comm);
// Slots must take what the program says, and scratch memory what the plan says where it knows it;
// the lists of tasks that a GPU holds beside follow from its kernel.
void record_memory(PointRecord& record, PointSession& session, const PointPlan& plan,
                   Communicator& comm);
// The closed forms of each rank's bytes, messages and slots against its program and its counts.
// Fails the point where they differ; without a closed form the record has none.
void record_closed_forms(PointRecord& record, PointSession& session, const SampleSet& samples,
                         Communicator& comm);
// Sums and digests of all ranks' output and inputs.
void record_content(PointRecord& record, const Executor& executor, const RowWorker& worker,
                    Communicator& comm);
// Records the times of the last run's ops, within kTimelineOps and kTimelineRanks.
void record_timeline(PointRecord& record, const Executor& executor, Communicator& comm);

}  // namespace longnet
