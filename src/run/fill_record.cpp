#include "run/fill_record.h"

#include <algorithm>
#include <cmath>

#include "core/cuda/device.h"
#include "io/agreement.h"
#include "io/units.h"
#include "measure/statistics.h"
#include "pattern/dilated_pattern.h"

namespace longnet {

void fail_check(PointRecord& record, const std::string& reason) {
  const std::string before = record.reason.empty() ? "" : record.reason + "; ";
  set_status(record, PointStatus::kCheckFailed, before + reason);
}

std::string out_of_memory_reason(const std::bad_alloc& error, const PointPlan& plan,
                                 const std::string& of_whom) {
  if (dynamic_cast<const DeviceOutOfMemory*>(&error) != nullptr) return error.what();
  return concat("the machine refused ", format_bytes(double(plan.memory_bytes())), of_whom);
}

void set_resident_memory(PointRecord& record, int64_t growth, int64_t held) {
  if (held < kLeastHeldToTell) return;
  const double difference = double(growth) / double(held) - 1;
  MemoryRecord& m = record.memory;
  if (m.resident_growth_bytes && std::abs(difference) <= std::abs(m.resident_difference)) return;
  m.resident_growth_bytes = std::max<int64_t>(growth, 0);
  m.resident_difference = difference;
}

void set_depth(PointRecord& record, const PointParams& p, const DepthOptions& options) {
  const DependencyDepth depth = dependency_depth(p.problem, p.pattern, options);
  const double estimate = paper_depth_bound(p.pattern, p.problem.seq_len);
  if (depth.layers != DependencyDepth::kUnknown)
    record.metrics["dependency_depth_layers"] = double(depth.layers);  // -1: never
  if (depth.reachable_layers != DependencyDepth::kUnknown)
    record.metrics["dependency_depth_reachable_layers"] = double(depth.reachable_layers);
  if (!std::isnan(estimate)) record.metrics["dependency_depth_bound_layers"] = estimate;
}

void set_check(PointRecord& record, const CheckOutcome& outcome, bool passes_poison) {
  record.check = {.status = outcome.pass ? "pass" : "fail",
                  .reference = "double",
                  .max_rel_error = outcome.max_rel_error,
                  .rel_l2_error = outcome.rel_l2_error,
                  .spread_rel_l2_error = outcome.spread_rel_l2_error,
                  .queries = outcome.queries,
                  .tolerance = outcome.tolerance};
  if (passes_poison) fail_check(record, "the check passes an output that nobody wrote");
  if (outcome.pass) return;
  fail_check(record,
             concat("the output is wrong: relative L2 error ", outcome.rel_l2_error, ", worst row ",
                    outcome.max_rel_error, ", LSE ", outcome.max_lse_error, " (allowed ",
                    outcome.tolerance, "), ", outcome.nan_values, " values never written"));
}

void set_model_check(PointRecord& record, const ModelOutcome& o, bool passes_poison) {
  constexpr double kNormTolerance = 1e-6;  // sums of the same squares in another order, in double
  const bool in_bf16 = record.params.problem.dtype == DType::kBFloat16;
  const double usual = in_bf16 ? kBf16Tolerance : kSlopeTolerance;
  const double tolerance = o.tolerance > 0 ? o.tolerance : usual;
  const bool has_gradient = !std::isnan(o.gradient_norm);
  const bool of_layer = record.params.scope == Scope::kLayer;
  const std::string what = of_layer ? "<y, dO>" : "the loss";
  record.metrics[of_layer ? kOutputProduct : kLossNats] = o.lowest_loss;
  record.check.status = "pass";
  if (has_gradient) {
    record.metrics["gradient_norm"] = o.gradient_norm;
    record.check.reference = in_bf16 ? "fp32" : "central_difference";
    record.check.rel_l2_error = record.check.max_rel_error =
        in_bf16 ? o.bf16_error : std::abs(o.slope - 1);
    record.check.tolerance = tolerance;
  }
  const auto fail_unless = [&](bool holds, const std::string& reason) {
    if (!holds) record.check.status = "fail", fail_check(record, reason);
  };
  if (passes_poison) fail_check(record, "the check passes an output that nobody wrote");
  fail_unless(o.nan_values == 0,
              concat(o.nan_values, " values of loss, gradients and weights are NaN"));
  record.check.queries = o.attention.queries;
  record.metrics["attention_rel_l2_error"] = o.attention.rel_l2_error;
  fail_unless(o.attention.pass, concat("rows of attention are off by ", o.attention.rel_l2_error,
                                       ", the worst by ", o.attention.max_rel_error));
  fail_unless(o.lowest_loss == o.highest_loss,
              concat(what, " of the runs differs: ", o.lowest_loss, " and ", o.highest_loss));
  fail_unless(o.same_gradients, "gradients of the runs differ");
  fail_unless(!has_gradient || !in_bf16 || o.bf16_error <= tolerance,
              concat("gradients are off from those in fp32 by ", o.bf16_error, " (allowed ",
                     tolerance, ")"));
  fail_unless(!has_gradient || in_bf16 || std::abs(o.slope - 1) <= tolerance,
              concat("along its gradient ", what, " rises by ", o.slope,
                     " of what that says (allowed ", tolerance, " from 1)"));
  fail_unless(!has_gradient || in_bf16 || o.random_error <= kRandomTolerance,
              concat("in a random direction ", what,
                     " rises by something else than its gradient says: ", o.random_error,
                     " of what is usual (allowed ", kRandomTolerance, ")"));
  fail_unless(std::isnan(o.update_error) || o.update_error <= kUpdateTolerance,
              concat("weights or moments after the step are off from AdamW by ", o.update_error,
                     " of its rate (allowed ", kUpdateTolerance, ")"));
  fail_unless(has_gradient || std::abs(o.loss_without_weights - 1) <= kNormTolerance,
              concat("without weights ", what, " is off by ", o.loss_without_weights - 1,
                     ": it is not that of every row once"));
  fail_unless(std::isnan(o.norm_of_step) ||
                  std::abs(o.norm_of_step - o.gradient_norm) <= kNormTolerance * o.gradient_norm,
              concat("the step clips by a norm of ", o.norm_of_step, ", its gradients have ",
                     o.gradient_norm));
}

void set_gradients(PointRecord& record, const std::array<CheckOutcome, 3>& outcomes,
                   const Conservation& laws, const GradientChoice& chosen) {
  const KeyChoice& keys = chosen.keys;
  const bool has_keys = !keys.keys.empty();
  record.check.gradients =
      GradientRecord{.dq_rel_l2_error = outcomes[0].rel_l2_error,
                     .dk_rel_l2_error = has_keys ? outcomes[1].rel_l2_error : kNotMeasured,
                     .dv_rel_l2_error = has_keys ? outcomes[2].rel_l2_error : kNotMeasured,
                     .keys = outcomes[1].queries,
                     .strata = keys.strata,
                     .strata_left_out = keys.strata_left_out,
                     .sum_dk = laws.keys,
                     .q_dq_k_dk = laws.scores,
                     .v_dv_o_do = laws.values,
                     .law_tolerance = laws.values_tolerance,
                     .q_dq_terms = laws.terms[0],
                     .k_dk_terms = laws.terms[1],
                     .v_dv_terms = laws.terms[2]};
  if (!laws.hold())
    fail_check(record, concat("a law of conservation is broken: of their terms the sum of dK is ",
                              laws.keys, ", <Q, dQ> - <K, dK> ", laws.scores,
                              ", <V, dV> - <O, dO> ", laws.values, " (allowed ", laws.tolerance,
                              ", ", laws.values_tolerance, " for the last)"));
  constexpr std::array kNames{"dQ", "dK", "dV"};
  for (size_t i = 0; i < outcomes.size(); ++i)
    if (const size_t all = i == 0 ? chosen.queries.queries.size() : keys.keys.size();
        outcomes[i].chosen != int64_t(all))
      fail_check(record, concat(kNames[i], " of ", outcomes[i].chosen, " of ", all, " sampled ",
                                i == 0 ? "queries" : "keys", " was compared"));
  if (!has_keys && !keys.is_full) fail_check(record, "dK and dV of no key were compared");
  if (keys.strata_left_out > 0 && !keys.is_full)
    fail_check(record, concat(keys.strata_left_out, " of ", keys.strata,
                              " strata (branch, K/V head, rank) have no checked key"));
}

void set_check_cost(PointRecord& record, int64_t runs, double poison_s, double compare_s) {
  record.check.runs = runs;
  record.check.poison_s = poison_s;
  record.check.compare_s = compare_s;
}

void set_strata(PointRecord& record, const SampleChoice& choice, int64_t compared, int64_t budget) {
  const auto sampled = int64_t(choice.queries.size());
  record.check.strata = choice.strata;
  record.check.strata_left_out = choice.strata_left_out;
  if (choice.strata_left_out > 0 && sampled < budget)
    fail_check(record, concat(choice.strata_left_out, " of ", choice.strata,
                              " strata (branch, head, rank) have no checked query"));
  if (compared != sampled)
    fail_check(record, concat(compared, " of ", sampled, " sampled queries were compared"));
}

void set_work(PointRecord& record, double flops, double paper_macs, double balance) {
  const PointParams& p = record.params;
  WorkRecord& r = record.work;
  r.flops = flops;
  r.paper_macs = paper_macs;
  r.balance = balance;
  for (int b = 0; b < int(p.pattern.branches.size()); ++b)
    r.coverage.push_back(coverage(p.problem, p.pattern, b));
}

void set_plan(PointRecord& record, const PointPlan& plan) {
  const WorldAccount& a = plan.account;
  set_work(record, a.flops, a.paper_macs,
           a.max_rank_flops > 0 ? a.balance(record.params.ranks) : kNotMeasured);
  record.comm.collectives_used = plan.collectives_used;
}

void set_share_of_peak(PointRecord& record, const std::vector<double>& flops_per_s,
                       const std::vector<double>& peak, double highest) {
  std::vector<double> shares, known;
  for (size_t i = 0; i < flops_per_s.size(); ++i) {
    if (!(peak[i] > 0)) continue;
    shares.push_back(flops_per_s[i] / peak[i]);
    known.push_back(peak[i]);
  }
  if (shares.empty()) return;
  if (const double share = median(shares); share <= 1) record.work.share_of_peak = share;
  record.work.peak_flops_per_s = std::max(highest, std::ranges::max(known));
}

void set_phases(PointRecord& record, double compute_s, double merge_s, double communication_s) {
  record.phases = {compute_s, communication_s, communication_s, merge_s};
}

void set_model_phases(PointRecord& record, double gemm_s, double row_wise_s, double update_s) {
  record.metrics["gemm_s"] = gemm_s;
  record.metrics["row_wise_s"] = row_wise_s;
  record.metrics["update_s"] = update_s;
}

void set_ablations(PointRecord& record, const AblationsRecord& parts) {
  record.ablations = parts;
  record.phases.communication_s = parts.communication_only_s;
  record.phases.exposed_communication_s = parts.full_s - parts.compute_only_s;
}

void set_predicted_traffic(PointRecord& record, int64_t bytes, int64_t messages) {
  record.comm.predicted_bytes_per_rank = bytes;
  record.comm.predicted_messages_per_rank = messages;
}

void set_closed_forms(PointRecord& record, const RankCounts& most) {
  record.comm.closed_form_bytes_per_rank = most.bytes_sent;
  record.comm.closed_form_messages_per_rank = most.messages_sent;
  if (most.memory_bytes > 0) record.memory.closed_form_bytes = most.memory_bytes;
}

void set_memory(PointRecord& record, int64_t predicted_bytes,
                const std::map<std::string, int64_t>& by_tag,
                std::optional<int64_t> measured_bytes) {
  record.memory.predicted_peak_bytes = predicted_bytes;
  record.memory.by_tag = by_tag;
  record.memory.measured_peak_bytes = measured_bytes;
}

void set_content(PointRecord& record, const ContentRecord& content, int64_t rows) {
  record.content = content;
  if (content.rows != rows)
    fail_check(record, concat("the output has ", content.rows, " rows, there should be ", rows));
}

}  // namespace longnet
