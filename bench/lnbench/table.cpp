#include "lnbench/table.h"

#include <cmath>
#include <iomanip>
#include <sstream>

#include "core/check.h"

namespace longnet {
namespace {

// A column of fixed width; never runs into the next one.
template <class T>
void column(std::ostream& out, int width, const T& value) {
  std::ostringstream cell;
  cell << value;
  out << std::left << std::setw(width) << cell.str() << ' ';
}

std::string number(double value, int digits) {
  if (!std::isfinite(value)) return "-";
  std::ostringstream out;
  out << std::setprecision(digits) << value;
  return out.str();
}

}  // namespace

std::string plan_header() {
  std::ostringstream out;
  out << "# no. id       algorithm ranks seq_len    batch  flops      bytes/rank messages "
         "memory/rank  balance "
         "estimate   options          status";
  return out.str();
}

std::string plan_row(int no, const PointPlan& plan) {
  const PointParams& p = plan.point.params;
  const bool known = plan.account.pairs > 0;
  std::ostringstream out;
  column(out, 5, no);
  column(out, 8, plan.point.id);
  column(out, 9, p.algorithm);
  column(out, 5, p.ranks);
  column(out, 10, p.problem.seq_len);
  column(out, 6, p.problem.batch);
  column(out, 10, known ? number(plan.account.flops, 4) : "-");
  column(out, 10, known ? concat(plan.account.max_bytes_sent) : "-");
  column(out, 8, known ? concat(plan.account.max_messages_sent) : "-");
  column(out, 12, known ? concat(plan.memory_bytes()) : "-");
  column(out, 7, known ? number(plan.account.balance(p.group_ranks()), 4) : "-");
  column(out, 10, known ? number(plan.estimated_s, 3) : "-");
  const std::string variant = options_text(p);
  column(out, 16, variant.empty() ? "-" : variant);
  out << to_string(plan.point.status);
  if (!plan.point.reason.empty()) out << "  # " << plan.point.reason;
  return out.str();
}

std::string result_header() {
  return "# id     status       algorithm ranks seq_len    batch  median_s   ci_low_s   ci_high_s  "
         "n   gflops/s  "
         "of_peak bytes/rank rel_l2_err options";
}

std::string result_row(const PointRecord& r) {
  const PointParams& p = r.params;
  std::ostringstream out;
  column(out, 8, r.id);
  column(out, 12, to_string(r.status));
  column(out, 9, p.algorithm);
  column(out, 5, p.ranks);
  column(out, 10, p.problem.seq_len);
  column(out, 6, p.problem.batch);
  column(out, 10, number(r.timing.median_s, 5));
  column(out, 10, number(r.timing.ci_low_s, 5));
  column(out, 10, number(r.timing.ci_high_s, 5));
  column(out, 3, r.timing.samples_s.size());
  column(out, 9, number(r.work.flops_per_s / 1e9, 4));
  column(out, 7, number(r.work.share_of_peak, 3));
  // Counted and predicted are equal where both are known, or the point has failed.
  const auto bytes = r.comm.counted_bytes_per_rank ? r.comm.counted_bytes_per_rank
                                                   : r.comm.predicted_bytes_per_rank;
  column(out, 10, bytes ? concat(*bytes) : "-");
  column(out, 10, number(r.check.rel_l2_error, 2));
  std::string options = options_text(p);
  if (const size_t changes = p.cluster.find(' '); changes != std::string::npos)
    options += (options.empty() ? "" : " ") + p.cluster.substr(changes + 1);
  out << (options.empty() ? "-" : options);
  if (const auto share = r.metrics.find("measured_share"); r.source == Source::kExtrapolated)
    out << " # extrapolated"
        << (share == r.metrics.end()
                ? ""
                : concat(" from ", number(100 * share->second, share->second < 0.1 ? 2 : 3), " %"));
  if (r.source == Source::kReplayed) out << " # replayed";
  if (!r.reason.empty()) out << " # " << r.reason;
  return out.str();
}

}  // namespace longnet
