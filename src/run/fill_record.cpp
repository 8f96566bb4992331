#include "run/fill_record.h"

#include <algorithm>
#include <cmath>
#include <sstream>

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

// " branch 2", " rank 3", or " -".
std::string detail_of(const Action& what) {
  if (const auto* attend = std::get_if<Attend>(&what)) return concat(" branch ", attend->branch);
  if (const auto* send = std::get_if<Send>(&what)) return concat(" rank ", send->to);
  if (const auto* recv = std::get_if<Recv>(&what)) return concat(" rank ", recv->from);
  return " -";
}

// Digests are sums modulo 2^64: they travel as four digits of 16 bits each.
uint64_t sum_modulo(uint64_t mine, Communicator& comm) {
  double digits[4];
  for (int i = 0; i < 4; ++i) digits[i] = double(mine >> (16 * i) & 0xFFFF);
  comm.all_sum(digits);
  uint64_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += uint64_t(digits[i]) << (16 * i);
  return sum;
}

// Bytes of slots and of the kernel's scratch memory, but not the lists of tasks that a GPU holds.
std::pair<int64_t, int64_t> slots_and_workspace(const MemoryLedger& ledger) {
  int64_t slots = 0, workspace = 0;
  for (const auto& [tag, bytes] : ledger.peak_by_tag())
    if (tag != "task_lists") (tag == "workspace" ? workspace : slots) += bytes;
  return {slots, workspace};
}

// Tags of the rank whose peak is the largest (the first of them), on every rank.
std::map<std::string, int64_t> heaviest_ranks_tags(const MemoryLedger& ledger, Communicator& comm) {
  std::ostringstream mine;
  mine << ledger.peak_bytes() << '\n';
  for (const auto& [tag, bytes] : ledger.peak_by_tag()) mine << tag << ' ' << bytes << '\n';
  int64_t most = -1;
  std::map<std::string, int64_t> tags;
  for (const std::string& text : comm.all_texts(mine.str())) {
    std::istringstream lines(text);
    int64_t peak = 0, bytes = 0;
    lines >> peak;
    if (peak <= most) continue;
    most = peak;
    tags.clear();
    for (std::string tag; lines >> tag >> bytes;) tags[tag] = bytes;
  }
  return tags;
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
  const auto ranks = size_t(comm.size()), mine = size_t(comm.rank());
  std::vector<double> values(2 * ranks, 0.0);
  if (!samples.own_s.empty()) values[mine] = median(samples.own_s);
  values[ranks + mine] =
      account(schedule.sharded, schedule.program(comm.rank()), comm.rank()).pairs;
  comm.all_sum(values);
  for (size_t r = 0; r < ranks; ++r)
    record.per_rank.push_back({.rank = int(r), .median_s = values[r], .pairs = values[ranks + r]});
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

void set_content(PointRecord& record, const OutputSummary& output, uint64_t input_digest,
                 int64_t rows) {
  record.content = ContentRecord{output, input_digest};
  if (output.rows != rows)
    fail_check(record, concat("the output has ", output.rows, " rows, there should be ", rows));
}

void record_content(PointRecord& record, const Executor& executor, const RowWorker& worker,
                    Communicator& comm) {
  const AttentionProblem& problem = record.params.problem;
  OutputSummary mine;
  for (const OutputSummary& head : executor.summarize_output(worker)) mine.add(head);
  double sums[6] = {double(mine.rows), double(mine.absent_rows), double(mine.nan_values),
                    mine.sum,          mine.sum_squares,         mine.lse_sum};
  double extremes[2] = {-mine.min, mine.max};
  comm.all_sum(sums);
  comm.all_max(extremes);
  set_content(record,
              {.rows = std::llround(sums[0]),
               .absent_rows = std::llround(sums[1]),
               .nan_values = std::llround(sums[2]),
               .sum = sums[3],
               .sum_squares = sums[4],
               .min = -extremes[0],
               .max = extremes[1],
               .lse_sum = sums[5],
               .digest = sum_modulo(mine.digest, comm)},
              sum_modulo(executor.digest_inputs(worker), comm),
              problem.seq_len * problem.num_heads * problem.batch);
}

void record_timeline(PointRecord& record, const Executor& executor, Communicator& comm) {
  const auto& ops = executor.program().ops;
  const auto times = executor.op_times();
  if (comm.max_of(double(ops.size())) > kTimelineOps || comm.size() > kTimelineRanks) return;
  std::ostringstream mine;
  mine.precision(9);
  for (size_t i = 0; i < ops.size(); ++i) {
    const std::string text = to_text(ops[i]);
    const bool compute = !is_communication(ops[i].what);
    mine << (compute ? "compute" : "communication") << ' ' << times[i].begin_s << ' '
         << times[i].end_s << ' ' << text.substr(0, text.find(' ')) << detail_of(ops[i].what)
         << '\n';
  }
  const auto all = comm.all_texts(mine.str());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::istringstream lines(all[rank]);
    TimelineEntry entry{.rank = int(rank), .lane = {}, .op = {}};
    while (lines >> entry.lane >> entry.begin_s >> entry.end_s >> entry.op) {
      std::getline(lines >> std::ws, entry.detail);
      if (entry.detail == "-") entry.detail.clear();
      record.timeline.push_back(entry);
    }
  }
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
  const double sent = double(c.bytes_sent) / double(runs);
  const double messages = double(c.messages_sent) / double(runs);
  double values[5] = {sent, double(expected.bytes_sent), messages, double(expected.messages_sent),
                      equal ? 0.0 : 1.0};
  comm.all_max(values);
  // Modelled counts of the rank that sends most; 0 on the others.
  double modelled[2] = {
      sent == values[0] ? double(c.modelled_bytes_sent) / double(runs) : 0.0,
      messages == values[2] ? double(c.modelled_messages_sent) / double(runs) : 0.0};
  comm.all_max(modelled);
  record.comm.counted_bytes_per_rank = std::llround(values[0] - modelled[0]);
  record.comm.counted_messages_per_rank = std::llround(values[2] - modelled[1]);
  if (modelled[1] > 0) {
    record.comm.modelled_bytes_per_rank = std::llround(modelled[0]);
    record.comm.modelled_messages_per_rank = std::llround(modelled[1]);
  }
  set_predicted_traffic(record, std::llround(values[1]), std::llround(values[3]));
  if (values[4] > 0) fail_check(record, "counted bytes or messages differ from the predicted ones");
}

void record_memory(PointRecord& record, PointSession& session, const PointPlan& plan,
                   Communicator& comm) {
  const Executor& executor = session.executor();
  const auto [slots, workspace] = slots_and_workspace(session.ledger());
  const RankAccount expected = account(executor.sharded(), executor.program(), comm.rank());
  const bool equal = slots == expected.memory_bytes() &&
                     (plan.workspace_bytes == 0 || workspace == plan.workspace_bytes);
  double values[2] = {double(session.ledger().peak_bytes()), equal ? 0.0 : 1.0};
  comm.all_max(values);
  set_memory(record, {.measured_peak_bytes = std::llround(values[0]),
                      .predicted_peak_bytes = plan.memory_bytes(),
                      .by_tag = heaviest_ranks_tags(session.ledger(), comm)});
  if (values[1] > 0) fail_check(record, "measured memory differs from the predicted");
}

void record_closed_forms(PointRecord& record, PointSession& session, const SampleSet& samples,
                         Communicator& comm) {
  const PointParams& p = record.params;
  const auto form =
      closed_form_counts(p.algorithm, sharded_problem(p), collective_choice(p), comm.rank());
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
  double values[3] = {double(form->bytes_sent), double(form->messages_sent),
                      double(form->memory_bytes)};
  comm.all_max(values);
  record.comm.closed_form_bytes_per_rank = std::llround(values[0]);
  record.comm.closed_form_messages_per_rank = std::llround(values[1]);
  record.memory.closed_form_bytes = std::llround(values[2]);
}

}  // namespace longnet
