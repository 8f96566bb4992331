#include "io/summary.h"

#include <set>
#include <utility>

#include "core/check.h"
#include "io/agreement.h"
#include "io/axes.h"
#include "io/disturbed.h"
#include "io/units.h"

namespace longnet {
namespace {

// A fit never mixes batches: its points hold one number of sequences, or one number of tokens
// (figure 5 of the paper), whichever makes fewer lines of a series. A line of the latter says so
// even alone: its exponent is not that of a sequence's time.
using BatchLines = std::map<std::string, std::vector<const PointRecord*>>;

BatchLines lines_of(const std::string& series, const std::vector<const PointRecord*>& points) {
  BatchLines by_batch, by_tokens;
  for (const PointRecord* r : points) {
    const int64_t batch = r->params.problem.batch, tokens = batch * r->params.problem.seq_len;
    by_batch[concat(series, " batch=", batch)].push_back(r);
    by_tokens[concat(series, " tokens_per_batch=", format_tokens(tokens))].push_back(r);
  }
  if (by_tokens.size() < by_batch.size()) return by_tokens;
  if (by_batch.size() == 1) return {{series, points}};
  return by_batch;
}

// The least confidence level of a median's interval that the fit of an exponent uses: five samples
// reach 94 %.
constexpr double kSureLevel = 0.9;

void add_fits(Summary& s, const std::string& series, Source source,
              const std::vector<const PointRecord*>& points) {
  for (const auto& [name, line] : lines_of(series, points)) {
    std::vector<double> seq_len, median_s, low_s, high_s;
    for (const PointRecord* r : line) {
      seq_len.push_back(double(r->params.problem.seq_len));
      median_s.push_back(r->timing.median_s);
      if (source == Source::kSimulated || !(r->timing.ci_level >= kSureLevel)) continue;
      low_s.push_back(r->timing.ci_low_s);
      high_s.push_back(r->timing.ci_high_s);
    }
    if (std::set(seq_len.begin(), seq_len.end()).size() < 3) continue;
    if (low_s.size() < line.size()) low_s = high_s = {};
    s.fits.push_back({fit_power_law(seq_len, median_s, low_s, high_s), name, source});
  }
}

}  // namespace

Summary summarize(const std::vector<PointRecord>& points, int64_t planned) {
  Summary s;
  s.planned = planned;
  for (const std::string& status : enum_names<PointStatus>()) s.counts[status] = 0;
  bool failed = false;
  std::map<std::pair<std::string, Source>, std::vector<const PointRecord*>> all;
  for (const PointRecord& r : points) {
    ++s.counts[std::string(to_string(r.status))];
    failed = failed || is_failure(r.status);
    if (r.status == PointStatus::kOk && r.timing.median_s > 0)
      all[{series_name(r.params), r.source}].push_back(&r);
  }
  s.disturbed = disturbed_points(points);
  s.disagreeing = disagreeing_points(points);
  failed = failed || !s.disagreeing.empty();
  for (const auto& [key, line] : all) add_fits(s, key.first, key.second, line);
  // A run that has no result is no success, whatever the reasons for its skipped points.
  const bool nothing = s.counts["ok"] == 0 && planned > 0;
  s.verdict = failed ? "fail" : nothing || int64_t(points.size()) < planned ? "incomplete" : "pass";
  return s;
}

}  // namespace longnet
