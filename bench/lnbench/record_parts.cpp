#include "lnbench/record_parts.h"

#include <cmath>
#include <fstream>

#include "core/check.h"
#include "measure/statistics.h"
#include "pattern/dependency_depth.h"
#include "pattern/dilated_pattern.h"
#include "schedule/accounting.h"

namespace longnet {

double peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::stod(line.substr(6)) * 1024;
  return 0;
}

void record_depth(PointRecord& record, const PointParams& p) {
  const DependencyDepth depth = dependency_depth(p.problem, p.pattern);
  const double estimate = paper_depth_bound(p.pattern, p.problem.seq_len);
  if (depth.layers != DependencyDepth::kUnknown)
    record.metrics["dependency_depth_layers"] = double(depth.layers);  // -1: never
  if (depth.reachable_layers != DependencyDepth::kUnknown)
    record.metrics["dependency_depth_reachable_layers"] = double(depth.reachable_layers);
  if (!std::isnan(estimate)) record.metrics["dependency_depth_bound_layers"] = estimate;
}

void record_outcome(PointRecord& record, const CheckOutcome& outcome) {
  record.check = {.status = outcome.pass ? "pass" : "fail",
                  .reference = "double",
                  .max_rel_error = outcome.max_rel_error,
                  .rel_l2_error = outcome.rel_l2_error,
                  .spread_rel_l2_error = outcome.spread_rel_l2_error,
                  .queries = outcome.queries,
                  .tolerance = outcome.tolerance};
  if (outcome.pass) return;
  record.status = PointStatus::kCheckFailed;
  record.reason =
      concat("the output is wrong: relative L2 error ", outcome.rel_l2_error, ", worst row ",
             outcome.max_rel_error, ", LSE ", outcome.max_lse_error, " (allowed ",
             outcome.tolerance, "), ", outcome.nan_values, " values never written");
}

void record_per_rank(PointRecord& record, const Schedule& schedule, const SampleSet& samples,
                     Communicator& comm) {
  const auto ranks = size_t(comm.size()), mine = size_t(comm.rank());
  std::vector<double> values(2 * ranks, 0.0);
  if (!samples.own_s.empty()) values[mine] = median(samples.own_s);
  values[ranks + mine] =
      account(schedule.sharded, schedule.program(comm.rank()), comm.rank()).pairs;
  comm.all_sum(values);
  for (size_t r = 0; r < ranks; ++r)
    record.per_rank.push_back({.rank = int(r), .median_s = values[r], .pairs = values[ranks + r]});
}

void record_work(PointRecord& record, const PointPlan& plan, double peak_flops) {
  const PointParams& p = plan.point.params;
  record.work.tokens = p.problem.seq_len * p.problem.batch;
  record.work.flops = plan.account.flops;
  record.work.paper_macs = plan.account.paper_macs;
  if (plan.account.max_rank_flops > 0) record.work.balance = plan.account.balance(p.ranks);
  record.work.coverage.clear();
  for (int b = 0; b < int(p.pattern.branches.size()); ++b)
    record.work.coverage.push_back(coverage(p.problem, p.pattern, b));
  if (record.timing.samples_s.empty()) return;
  record.work.flops_per_s = plan.account.flops / record.timing.median_s;
  if (peak_flops > 0) record.work.share_of_peak = record.work.flops_per_s / peak_flops;
}

ContentRecord to_content(const OutputSummary& o) {
  ContentRecord c{.output_digest = o.digest,
                  .rows = o.rows,
                  .absent_rows = o.absent_rows,
                  .nan_values = o.nan_values,
                  .sum = o.sum,
                  .sum_squares = o.sum_squares,
                  .lse_sum = o.lse_sum};
  if (o.rows > 0) c.min = o.min, c.max = o.max;
  return c;
}

}  // namespace longnet
