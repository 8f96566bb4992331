#include "run/fill_record.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/cuda/device.h"
#include "io/units.h"
#include "measure/statistics.h"
#include "pattern/dilated_pattern.h"
#include "run/plan_point.h"
#include "schedule/accounting.h"
#include "schedule/closed_form_counts.h"

namespace longnet {
namespace {

// "branch 2", "rank 3", or "".
std::string detail_of(const Action& what) {
  if (const auto* attend = std::get_if<Attend>(&what)) return concat("branch ", attend->branch);
  if (const auto* send = std::get_if<Send>(&what)) return concat("rank ", send->to);
  if (const auto* recv = std::get_if<Recv>(&what)) return concat("rank ", recv->from);
  return "";
}

// Bytes of slots and of the kernel's scratch memory, but not the lists of tasks that a GPU holds.
std::pair<int64_t, int64_t> slots_and_workspace(const MemoryLedger& ledger) {
  int64_t slots = 0, workspace = 0;
  for (const auto& [tag, bytes] : ledger.peak_by_tag())
    if (tag != "task_lists") (tag == "workspace" ? workspace : slots) += bytes;
  return {slots, workspace};
}

}  // namespace

void fail_check(PointRecord& record, const std::string& reason) {
  record.status = PointStatus::kCheckFailed;
  record.reason += (record.reason.empty() ? "" : "; ") + reason;
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

void record_depth(PointRecord& record, const PointParams& p, const DepthOptions& options) {
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

void set_gradients(PointRecord& record, const std::array<CheckOutcome, 3>& outcomes,
                   const Conservation& laws) {
  const bool has_keys = outcomes[1].queries > 0;
  record.check.gradients =
      GradientRecord{.dq_rel_l2_error = outcomes[0].rel_l2_error,
                     .dk_rel_l2_error = has_keys ? outcomes[1].rel_l2_error : kNotMeasured,
                     .dv_rel_l2_error = has_keys ? outcomes[2].rel_l2_error : kNotMeasured,
                     .keys = outcomes[1].queries,
                     .sum_dk = laws.keys,
                     .q_dq_k_dk = laws.scores,
                     .v_dv_o_do = laws.values,
                     .law_tolerance = laws.values_tolerance};
  if (!laws.hold())
    fail_check(record, concat("a law of conservation is broken: of their terms the sum of dK is ",
                              laws.keys, ", <Q, dQ> - <K, dK> ", laws.scores,
                              ", <V, dV> - <O, dO> ", laws.values, " (allowed ", kLawTolerance,
                              ", ", laws.values_tolerance, " for the last)"));
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

void record_per_rank(PointRecord& record, const Schedule& schedule, const SampleSet& samples,
                     Communicator& comm) {
  const Rank rank = comm.rank();
  record.per_rank = gather(
      comm, RankRecord{.rank = rank,
                       .median_s = samples.own_s.empty() ? 0 : median(samples.own_s),
                       .pairs = account(schedule.sharded, schedule.program(rank), rank).pairs});
}

void set_work(PointRecord& record, const WorkRecord& work) {
  const PointParams& p = record.params;
  WorkRecord& r = record.work = work;
  r.tokens = p.problem.seq_len * p.problem.batch;
  for (int b = 0; b < int(p.pattern.branches.size()); ++b)
    r.coverage.push_back(coverage(p.problem, p.pattern, b));
  if (record.timing.median_s > 0) r.flops_per_s = r.flops / record.timing.median_s;
}

void record_work(PointRecord& record, const PointPlan& plan) {
  const WorldAccount& a = plan.account;
  set_work(record,
           {.flops = a.flops,
            .paper_macs = a.paper_macs,
            .balance = a.max_rank_flops > 0 ? a.balance(record.params.ranks) : kNotMeasured});
}

void set_share_of_peak(PointRecord& record, const std::vector<double>& flops_per_s,
                       const std::vector<double>& peak) {
  std::vector<double> shares, known;
  for (size_t i = 0; i < flops_per_s.size(); ++i) {
    if (!(peak[i] > 0)) continue;
    shares.push_back(flops_per_s[i] / peak[i]);
    known.push_back(peak[i]);
  }
  if (shares.empty()) return;
  record.work.share_of_peak = median(shares);
  record.work.peak_flops_per_s = std::ranges::max(known);
}

void set_predicted_traffic(PointRecord& record, int64_t bytes, int64_t messages) {
  record.comm.predicted_bytes_per_rank = bytes;
  record.comm.predicted_messages_per_rank = messages;
}

void set_memory(PointRecord& record, const MemoryRecord& memory) {
  record.memory.measured_peak_bytes = memory.measured_peak_bytes;
  record.memory.predicted_peak_bytes = memory.predicted_peak_bytes;
  record.memory.by_tag = memory.by_tag;
}

void set_content(PointRecord& record, const ContentRecord& content, int64_t rows) {
  record.content = content;
  if (content.rows != rows)
    fail_check(record, concat("the output has ", content.rows, " rows, there should be ", rows));
}

void record_content(PointRecord& record, const Executor& executor, const RowWorker& worker,
                    Communicator& comm) {
  const AttentionProblem& problem = record.params.problem;
  ContentRecord mine, all;
  mine.input_digest = executor.digest_inputs(worker);
  for (const OutputSummary& head : executor.summarize_output(worker)) mine.add(head);
  if (has_backward(executor.program().pass)) {
    const auto digests = digest_gradients(executor.bound(), worker);
    mine.dq_digest = digests[0], mine.dk_digest = digests[1], mine.dv_digest = digests[2];
  }
  for (const ContentRecord& rank : gather(comm, mine)) {
    all.add(rank);
    all.input_digest += rank.input_digest;
    all.dq_digest += rank.dq_digest;
    all.dk_digest += rank.dk_digest;
    all.dv_digest += rank.dv_digest;
  }
  set_content(record, all, problem.seq_len * problem.num_heads * problem.batch);
}

void record_timeline(PointRecord& record, const Executor& executor, Communicator& comm) {
  const auto& ops = executor.program().ops;
  const auto times = executor.op_times();
  if (comm.max_of(double(ops.size())) > kTimelineOps || comm.size() > kTimelineRanks) return;
  std::vector<TimelineEntry> mine;
  for (size_t i = 0; i < ops.size(); ++i) {
    const std::string text = to_text(ops[i]);
    mine.push_back({.rank = comm.rank(),
                    .lane = is_communication(ops[i].what) ? "communication" : "compute",
                    .op = text.substr(0, text.find(' ')),
                    .begin_s = times[i].begin_s,
                    .end_s = times[i].end_s,
                    .detail = detail_of(ops[i].what)});
  }
  for (const auto& entries : gather(comm, mine))
    record.timeline.insert(record.timeline.end(), entries.begin(), entries.end());
}

void record_communication(PointRecord& record, PointSession& session, const SampleSet& samples,
                          Communicator& comm) {
  const Executor& executor = session.executor();
  const RankAccount expected = account(executor.sharded(), executor.program(), comm.rank());
  const CommCounters& c = session.counters();
  const int64_t runs = samples.warmup + int64_t(samples.samples_s.size());
  const bool equal = c.bytes_sent == runs * expected.bytes_sent &&
                     c.messages_sent == runs * expected.messages_sent &&
                     c.bytes_received == runs * expected.bytes_received;
  const double sent = double(c.bytes_sent) / double(runs), most_sent = comm.max_of(sent);
  const double messages = double(c.messages_sent) / double(runs);
  const double most_messages = comm.max_of(messages);
  // Modelled counts of the rank that sends most; 0 on the others.
  const auto modelled = [&](bool most, int64_t count) {
    return comm.max_of(most ? double(count) / double(runs) : 0.0);
  };
  const double modelled_bytes = modelled(sent == most_sent, c.modelled_bytes_sent);
  const double modelled_messages = modelled(messages == most_messages, c.modelled_messages_sent);
  record.comm.counted_bytes_per_rank = std::llround(most_sent - modelled_bytes);
  record.comm.counted_messages_per_rank = std::llround(most_messages - modelled_messages);
  if (modelled_messages > 0) {
    record.comm.modelled_bytes_per_rank = std::llround(modelled_bytes);
    record.comm.modelled_messages_per_rank = std::llround(modelled_messages);
  }
  set_predicted_traffic(record, std::llround(comm.max_of(double(expected.bytes_sent))),
                        std::llround(comm.max_of(double(expected.messages_sent))));
  if (comm.max_of(equal ? 0.0 : 1.0) > 0)
    fail_check(record, "counted bytes or messages differ from the predicted ones");
}

void record_memory(PointRecord& record, PointSession& session, const PointPlan& plan,
                   Communicator& comm) {
  const Executor& executor = session.executor();
  const auto [slots, workspace] = slots_and_workspace(session.ledger());
  const RankAccount expected = account(executor.sharded(), executor.program(), comm.rank());
  const bool equal = slots == expected.memory_bytes() &&
                     (plan.workspace_bytes == 0 || workspace == plan.workspace_bytes);
  const auto all = gather(comm, MemoryRecord{.measured_peak_bytes = session.ledger().peak_bytes(),
                                             .by_tag = session.ledger().peak_by_tag()});
  // The rank whose peak is the largest, the first of them.
  MemoryRecord memory = *std::ranges::max_element(all, {}, &MemoryRecord::measured_peak_bytes);
  memory.predicted_peak_bytes = plan.memory_bytes();
  set_memory(record, memory);
  if (comm.max_of(equal ? 0.0 : 1.0) > 0)
    fail_check(record, "measured memory differs from the predicted");
}

void record_closed_forms(PointRecord& record, PointSession& session, const SampleSet& samples,
                         Communicator& comm) {
  const PointParams& p = record.params;
  const auto form = closed_form_counts(p.algorithm, sharded_problem(p), collective_choice(p),
                                       comm.rank(), p.pass);
  if (!form) return;  // on no rank
  const Executor& executor = session.executor();
  const RankAccount a = account(executor.sharded(), executor.program(), comm.rank());
  const CommCounters& c = session.counters();
  const int64_t runs = samples.warmup + int64_t(samples.samples_s.size());
  const ClosedFormCounts program{a.bytes_sent, a.messages_sent, a.bytes_received, a.memory_bytes()};
  const ClosedFormCounts counted{c.bytes_sent / runs, c.messages_sent / runs,
                                 c.bytes_received / runs,
                                 slots_and_workspace(session.ledger()).first};
  std::string differs;
  if (*form != program || *form != counted)
    differs = concat("a closed form says of rank ", comm.rank(), ": ", to_text(*form),
                     "; its program says ", to_text(program), "; counted: ", to_text(counted));
  for (const std::string& text : comm.all_texts(differs)) {
    if (text.empty()) continue;
    fail_check(record, text);
    break;
  }
  const auto most = [&](int64_t count) { return std::llround(comm.max_of(double(count))); };
  record.comm.closed_form_bytes_per_rank = most(form->bytes_sent);
  record.comm.closed_form_messages_per_rank = most(form->messages_sent);
  record.memory.closed_form_bytes = most(form->memory_bytes);
}

}  // namespace longnet
