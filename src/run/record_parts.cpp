#include "run/record_parts.h"

#include <cmath>
#include <fstream>
#include <sstream>

#include "core/check.h"
#include "measure/statistics.h"
#include "pattern/dependency_depth.h"
#include "pattern/dilated_pattern.h"
#include "schedule/accounting.h"
#include "schedule/program_text.h"

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

namespace {

constexpr int kTimelineOps = 64, kTimelineRanks = 8;  // beyond that a picture shows nothing

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

}  // namespace

void record_content(PointRecord& record, const std::vector<OutputSummary>& heads,
                    uint64_t input_digest, Communicator& comm) {
  OutputSummary mine;
  for (const OutputSummary& head : heads) mine.add(head);
  double sums[6] = {double(mine.rows), double(mine.absent_rows), double(mine.nan_values),
                    mine.sum,          mine.sum_squares,         mine.lse_sum};
  double extremes[2] = {-mine.min, mine.max};
  comm.all_sum(sums);
  comm.all_max(extremes);
  record.content = to_content({.rows = std::llround(sums[0]),
                               .absent_rows = std::llround(sums[1]),
                               .nan_values = std::llround(sums[2]),
                               .sum = sums[3],
                               .sum_squares = sums[4],
                               .min = -extremes[0],
                               .max = extremes[1],
                               .lse_sum = sums[5],
                               .digest = sum_modulo(mine.digest, comm)});
  record.content->input_digest = sum_modulo(input_digest, comm);
}

void record_timeline(PointRecord& record, const RankProgram& program, std::span<const OpTime> times,
                     Communicator& comm) {
  const auto& ops = program.ops;
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

void record_communication(PointRecord& record, const RankAccount& expected, const CommCounters& c,
                          int64_t runs, Communicator& comm) {
  const bool equal = c.bytes_sent == runs * expected.bytes_sent &&
                     c.messages_sent == runs * expected.messages_sent &&
                     c.bytes_received == runs * expected.bytes_received;
  double values[5] = {double(c.bytes_sent) / double(runs), double(expected.bytes_sent),
                      double(c.messages_sent) / double(runs), double(expected.messages_sent),
                      equal ? 0.0 : 1.0};
  comm.all_max(values);
  record.comm.counted_bytes_per_rank = std::llround(values[0]);
  record.comm.predicted_bytes_per_rank = std::llround(values[1]);
  record.comm.counted_messages_per_rank = std::llround(values[2]);
  record.comm.predicted_messages_per_rank = std::llround(values[3]);
  if (values[4] > 0) {
    record.status = PointStatus::kCheckFailed;
    record.reason = "counted bytes or messages differ from the predicted ones";
  }
}

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

}  // namespace longnet
