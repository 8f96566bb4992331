#include <algorithm>
#include <cmath>

#include "core/check.h"
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

std::string series_name(const PointRecord& r) {
  const PointParams& p = r.params;
  std::string name = concat(p.algorithm, " ", p.transport, " ", p.kernel, " ranks=", p.ranks,
                            " heads=", p.problem.num_heads);
  if (p.problem.num_kv_heads != p.problem.num_heads)
    name += concat(" kv_heads=", p.problem.num_kv_heads);
  name += concat(" head_dim=", p.problem.head_dim, " ", to_string(p.problem.dtype));
  if (p.problem.causal) name += " causal";
  if (p.layout != "contiguous") name += " layout=" + p.layout;
  if (p.collective != "native") name += " collective=" + p.collective;
  if (p.ulysses_degree > 0) name += concat(" ulysses_degree=", p.ulysses_degree);
  if (p.ring_inner > 0) name += concat(" ring_inner=", p.ring_inner);
  if (p.head_slice > 0) name += concat(" head_slice=", p.head_slice);
  if (p.node_size > 0) name += concat(" node_size=", p.node_size);
  if (p.gather_scope != "segment_group") name += " gather_scope=" + p.gather_scope;
  if (p.pattern.offset != OffsetRule::kPaper)
    name += concat(" offset=", to_string(p.pattern.offset));
  if (p.pattern.mix != MixRule::kLse) name += concat(" mix=", to_string(p.pattern.mix));
  if (p.pattern.phase_parts != 1) name += " phase=shard";
  if (p.replicas > 1) name += concat(" replicas=", p.replicas);
  if (!p.cluster.empty()) name += " on " + p.cluster;
  return name + concat(" threads=", p.threads, " seed=", p.problem.seed);
}

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
    Series& series = all[{series_name(r), r.source}];
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
