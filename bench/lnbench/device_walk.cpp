// Virtual ranks on a GPU: every rank's program in turn, messages made again by the generator.
#include <algorithm>

#include "core/check.h"
#include "core/cuda/device_clocks.h"
#include "execute/cuda/device_executor.h"
#include "execute/virtual_walk.h"
#include "kernels/cuda/device_kernel.h"
#include "lnbench/device_runner.h"
#include "lnbench/record_parts.h"
#include "lnbench/walk_units.h"
#include "measure/sampler.h"

namespace longnet {
namespace {

// Sums over the units of one walk.
struct WalkSums {
  double forward_s = 0, attend_s = 0, merge_s = 0, receive_s = 0;
  int64_t nan_values = 0, peak_bytes = 0;
  SampleErrors errors;
  std::map<Rank, double> of_rank;
};

void run_unit(const PointPlan& plan, const Schedule& schedule, const DeviceKernel& kernel,
              const WalkUnit& unit, const CheckConfig& check, WalkSums& sums) {
  const AttentionProblem& whole = plan.point.params.problem;
  MemoryLedger ledger;
  DeviceExecutor executor(schedule, unit.rank, kernel, nullptr,
                          {.virtual_ranks = true, .first_batch = unit.first_batch}, ledger);
  executor.fill_inputs();
  const double all = executor.run();  // messages are not part of the forward pass
  const double forward = all - executor.receive_s();
  sums.forward_s += forward;
  sums.of_rank[unit.rank] += forward;
  sums.attend_s += executor.attend_s();
  sums.merge_s += executor.phases().merge_s;
  sums.receive_s += executor.receive_s();
  sums.peak_bytes = std::max(sums.peak_bytes, ledger.peak_bytes());
  sums.nan_values += executor.count_nan();
  const int64_t units = int64_t{plan.point.params.ranks} *
                        ceil_div(whole.batch, std::max<int64_t>(1, plan.batches_at_once));
  const int64_t count = std::max<int64_t>(
      4, ceil_div(std::max<int64_t>(kFewestSamples, check.sampled_queries), units));
  sums.errors.add(
      executor.compare(whole, choose_shard_samples(schedule.sharded, unit.rank, unit.first_batch,
                                                   unit.batches, {}, count)));
}

}  // namespace

std::optional<PointRecord> run_device_walk(const PointPlan& plan, const RunnerOptions& options,
                                           const std::function<bool()>& stop) {
  PointRecord record = make_record(plan.point);
  const PointParams& p = plan.point.params;
  record_depth(record, p);
  const double begin = steady_seconds();
  const auto kernel = make_device_kernel(p.kernel);
  WalkSums sums;
  try {
    for (int64_t first = 0; first < p.problem.batch; first += plan.batches_at_once) {
      PointParams part = p;
      part.problem.batch = std::min(plan.batches_at_once, p.problem.batch - first);
      const Schedule schedule = make_schedule(part);
      for (Rank rank = 0; rank < p.ranks; ++rank) {
        if (stop && stop()) return std::nullopt;
        run_unit(plan, schedule, *kernel, {rank, first, part.problem.batch}, options.check, sums);
      }
    }
  } catch (const std::bad_alloc& e) {
    record.status = PointStatus::kOom;
    record.reason = e.what();
    return record;
  }
  set_timing(record, {sums.forward_s}, 0);
  record.timing.reduction = "sum";
  record.phases.merge_s = sums.merge_s;
  record.phases.compute_s = sums.forward_s - sums.merge_s;
  for (const auto& [rank, seconds] : sums.of_rank) record.per_rank.push_back({rank, seconds});
  record.memory.measured_peak_bytes = sums.peak_bytes;
  record.memory.predicted_peak_bytes = plan.memory_bytes();
  record.metrics["attend_s"] = sums.attend_s;
  record.metrics["walk_receive_s"] = sums.receive_s;
  record.metrics["walk_wall_s"] = steady_seconds() - begin;
  if (const DeviceClocks clocks = read_device_clocks(current_device()); clocks.known)
    record.metrics["device_sm_mhz"] = clocks.sm_mhz;
  const double tolerance = options.check.tolerance > 0 ? options.check.tolerance : kDeviceTolerance;
  const CheckOutcome outcome = judge(sums.errors, sums.nan_values, sharded_problem(p),
                                     {.rel_l2 = tolerance, .lse = kDeviceLseTolerance});
  record_outcome(record, outcome);
  // Every value of every row was looked at; sums and digests of the output are the CPU's alone.
  record.content = ContentRecord{.rows = p.problem.batch * p.problem.seq_len * p.problem.num_heads,
                                 .nan_values = sums.nan_values};
  record_work(record, plan, device_peak_flops(1));
  return record;
}

}  // namespace longnet
