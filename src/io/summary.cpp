#include <algorithm>
#include <cmath>

#include "io/axes.h"
#include "io/result.h"
#include "measure/statistics.h"

namespace longnet {
namespace {

bool is_failure(PointStatus s) {
  return s == PointStatus::kOom || s == PointStatus::kTimeout || s == PointStatus::kCheckFailed ||
         s == PointStatus::kError;
}

struct Series {
  std::vector<double> seq_len, median_s;
};

}  // namespace

Summary summarize(const std::vector<PointRecord>& points, int64_t planned) {
  Summary s;
  s.planned = planned;
  for (int i = 0; i <= int(PointStatus::kError); ++i)
    s.counts[std::string(to_string(PointStatus(i)))] = 0;
  bool failed = false;
  std::map<std::pair<std::string, Source>, Series> all;  // a fit never mixes sources
  for (const PointRecord& r : points) {
    ++s.counts[std::string(to_string(r.status))];
    failed = failed || is_failure(r.status);
    if (r.status != PointStatus::kOk || !(r.timing.median_s > 0)) continue;
    Series& series = all[{series_name(r.params), r.source}];
    series.seq_len.push_back(double(r.params.problem.seq_len));
    series.median_s.push_back(r.timing.median_s);
  }
  for (const auto& [key, series] : all) {
    std::vector<double> distinct = series.seq_len;
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    if (distinct.size() < 3) continue;
    const PowerFit fit = fit_power_law(series.seq_len, series.median_s);
    s.fits.push_back({.series = key.first,
                      .source = key.second,
                      .exponent = fit.exponent,
                      .r_squared = fit.r_squared,
                      .points = fit.points,
                      .seq_len_min = int64_t(fit.x_min),
                      .seq_len_max = int64_t(fit.x_max)});
  }
  // A run that has no result is no success, whatever the reasons for its skipped points.
  const bool nothing = s.counts["ok"] == 0 && planned > 0;
  s.verdict = failed ? "fail" : nothing || int64_t(points.size()) < planned ? "incomplete" : "pass";
  return s;
}

}  // namespace longnet
