#include "io/disturbed.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "measure/machine_load.h"

namespace longnet {
namespace {

constexpr double kSamplesApart = 1.5;  // slowest over fastest; 1.4 at most on a quiet machine
constexpr double kRepeated = 1.25;     // between two measurements of the same step
constexpr double kSameWork = 1.10;     // a single attend of as many pairs, between points

double metric(const PointRecord& r, const char* name) {
  const auto found = r.metrics.find(name);
  return found == r.metrics.end() ? kNotMeasured : found->second;
}

bool has_own_clock(const PointRecord& r) {
  if (r.status != PointStatus::kOk || r.source == Source::kSimulated || !(r.timing.median_s > 0))
    return false;
  const PointParams& p = r.params;
  return p.mode == Mode::kVirtual ||
         !(metric(r, "usable_cores") < p.ranks * p.threads || metric(r, "devices") < p.ranks);
}

double rounded(double ratio) { return std::round(100 * ratio) / 100; }

// Everything that the time of a single attend depends on: the busiest rank's pairs and how they are
// computed, not the algorithm.
std::string work_of(const PointRecord& r) {
  double most_pairs = 0;
  for (const RankRecord& rank : r.per_rank) most_pairs = std::max(most_pairs, rank.pairs);
  const PointParams& p = r.params;
  const AttentionProblem& a = p.problem;
  return concat(int64_t(most_pairs), " ", to_string(p.mode), " ", p.ranks, " ", p.transport, " ",
                p.kernel, " ", p.threads, " ", a.seq_len, " ", a.batch, " ", to_string(a.dtype),
                " ", a.num_heads, " ", a.num_kv_heads, " ", a.head_dim, " ", a.causal);
}

std::string own_evidence(const PointRecord& r) {
  if (const double busy = metric(r, "busy_share"); busy > kBusyShare)
    return concat("other programs used ", std::lround(100 * busy), " % of the cores");
  if (r.work.peak_flops_per_s > 0 && !(r.work.share_of_peak <= 1))  // older records: above 1
    return "the cores' peak beside the samples was lower than the samples' own rate";
  if (!r.timing.samples_s.empty()) {
    const auto [fastest, slowest] = std::ranges::minmax(r.timing.samples_s);
    if (slowest > kSamplesApart * fastest)
      return concat("samples are ", rounded(slowest / fastest), " times apart");
  }
  if (!r.ablations || !(r.ablations->full_s > 0)) return {};
  const double ratio = r.ablations->full_s / r.timing.median_s;
  if (std::max(ratio, 1 / ratio) > kRepeated)
    return concat("the full step, repeated by the ablations, took ", rounded(ratio),
                  " times as long");
  return {};
}

}  // namespace

std::map<std::string, std::string> disturbed_points(const std::vector<PointRecord>& points) {
  std::map<std::string, std::string> found;
  std::map<std::string, const PointRecord*> fastest;  // by work
  std::vector<const PointRecord*> singles;
  for (const PointRecord& r : points) {
    if (!has_own_clock(r)) continue;
    if (const std::string why = own_evidence(r); !why.empty()) found[r.id] = why;
    if (!r.ablations || !(r.ablations->single_attend_s > 0)) continue;
    singles.push_back(&r);
    const PointRecord*& best = fastest[work_of(r)];
    if (!best || r.ablations->single_attend_s < best->ablations->single_attend_s) best = &r;
  }
  for (const PointRecord* r : singles) {
    const PointRecord& best = *fastest[work_of(*r)];
    const double ratio = r->ablations->single_attend_s / best.ablations->single_attend_s;
    if (ratio > kSameWork)
      found.emplace(r->id, concat("its pairs as a single attend took ", rounded(ratio),
                                  " times as long as those of ", best.id));
  }
  return found;
}

}  // namespace longnet
