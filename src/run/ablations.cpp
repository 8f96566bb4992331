#include "run/ablations.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cuda/device_kernel.h"
#include "measure/rounds.h"
#include "measure/statistics.h"

namespace longnet {
namespace {

constexpr int kModes = 5, kModesOfOneRank = 2;
// In the order in which round 0 runs them.
enum Mode { kFull, kSingleAttend, kComputeOnly, kCommunicationOnly, kSerialised };
constexpr std::array<RunMode, kModes> kRunModes{RunMode::kFull, RunMode::kFull,
                                                RunMode::kComputeOnly, RunMode::kCommunicationOnly,
                                                RunMode::kSerialised};

struct Busy {
  double compute_s = 0, merge_s = 0;
  double total() const { return compute_s + merge_s; }
};

// The busiest rank of the last run.
Busy busiest_rank(const ProgramExecutor& executor, Communicator& comm) {
  const RunPhases own = executor.phases();
  std::vector<double> all(2 * size_t(comm.size()), 0.0);
  all[2 * size_t(comm.rank())] = own.compute_s;
  all[2 * size_t(comm.rank()) + 1] = own.merge_s;
  comm.all_sum(all);
  Busy most;
  for (size_t i = 0; i < all.size(); i += 2) {
    const Busy one{all[i], all[i + 1]};
    if (one.total() > most.total()) most = one;
  }
  return most;
}

// Of the round whose run was the median one; of two, the faster: never more than the median.
size_t median_round(const std::vector<double>& seconds) {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const double middle = sorted[(sorted.size() - 1) / 2];
  return size_t(std::find(seconds.begin(), seconds.end(), middle) - seconds.begin());
}

void set_phases(PointRecord& record, const Busy& busy) {
  record.phases.compute_s = busy.compute_s;
  record.phases.merge_s = busy.merge_s;
}

}  // namespace

int ablation_runs(double run_s, int ranks) {
  return worthwhile_rounds(run_s) * (ranks == 1 ? kModesOfOneRank : kModes) + 1;
}

void record_phases(PointRecord& record, const ProgramExecutor& executor, Communicator& comm) {
  set_phases(record, busiest_rank(executor, comm));
  if (comm.size() == 1) record.phases.communication_s = record.phases.exposed_communication_s = 0;
}

void record_ablations(PointRecord& record, ProgramExecutor& executor, const RankClock& clock,
                      Communicator& comm) {
  const SingleAttend single = executor.single_attend();
  const bool alone = comm.size() == 1;
  const Mode compute_mode = alone ? kFull : kComputeOnly;
  std::vector<Busy> busy;
  if (!alone) executor.run(RunMode::kCommunicationOnly);  // warms up
  const auto seconds = take_rounds(
      alone ? kModesOfOneRank : kModes, worthwhile_rounds(record.timing.median_s), [&](int mode) {
        if (mode == kSingleAttend) return clock.time([&] { executor.run(single); });
        const double took = clock.time([&] { executor.run(kRunModes[size_t(mode)]); });
        if (mode == compute_mode) busy.push_back(busiest_rank(executor, comm));
        return took;
      });
  double pairs[2] = {single.pairs, single.listed_pairs};  // the big attend has a few more
  comm.all_sum(pairs);
  AblationsRecord& a = record.ablations.emplace();
  a.full_s = median(seconds[kFull]);
  a.single_attend_s = median(seconds[kSingleAttend]) * (pairs[1] > 0 ? pairs[0] / pairs[1] : 1);
  a.compute_only_s = median(seconds[compute_mode]);
  a.communication_only_s = alone ? 0 : median(seconds[kCommunicationOnly]);
  a.serialised_s = alone ? a.full_s : median(seconds[kSerialised]);
  set_phases(record, busy[median_round(seconds[compute_mode])]);
  record.phases.communication_s = a.communication_only_s;
  record.phases.exposed_communication_s = a.full_s - a.compute_only_s;
}

double point_cost(const PointPlan& plan, const MeasureConfig& measure) {
  if (plan.point.status != PointStatus::kOk) return 0;
  const PointParams& p = plan.point.params;
  const double samples = double(measure.warmup + measure.min_samples);
  if (is_virtual(p)) return 1.1 * plan.estimated_s * samples;  // its other work is below a tenth
  double keys = 0;
  for (const DilatedBranch& b : p.pattern.branches)
    keys += double(std::min(b.segment_length, p.problem.seq_len)) / double(b.dilation_rate);
  const double fill =
      (is_device_kernel(p.kernel) ? 0 : 3e-8) *  // a GPU generates in no time
      double(p.problem.seq_len * p.problem.batch * p.problem.num_heads * p.problem.head_dim) /
      p.ranks;
  return plan.estimated_s * (samples + ablation_runs(plan.estimated_s, p.ranks)) + fill +
         5e-6 * keys * double(p.problem.num_heads);
}

}  // namespace longnet
