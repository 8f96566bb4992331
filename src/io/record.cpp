#include "io/record.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "core/check.h"
#include "io/units.h"

namespace longnet {
namespace {

// Clocks and turbo make a good kernel seem a little faster than a measured peak.
constexpr double kMaxShareOfPeak = 1.05;

template <class T>
bool unequal(const std::optional<T>& a, const std::optional<T>& b) {
  return a && b && *a != *b;
}

// The rate at which the work is done in `seconds` over the highest peak of its hardware; of older
// records over the only one. NaN where neither is known.
double times_peak(const PointRecord& r, double seconds) {
  const WorkRecord& w = r.work;
  return w.peak_flops_per_s > 0 ? w.flops / seconds / w.peak_flops_per_s
                                : w.share_of_peak * r.timing.median_s / seconds;
}

// Returns the reason why a record cannot have status ok, or "".
std::string contradiction(const PointRecord& r) {
  if (!std::isfinite(r.timing.median_s)) return "ok without a median time";
  if (r.timing.median_s < 0)
    return concat("ok with a negative median time, ", r.timing.median_s, " s");
  if (const double times = times_peak(r, r.timing.median_s); times > kMaxShareOfPeak)
    return concat("faster than the machine's peak: ", format_si(r.work.flops_per_s, "FLOP/s"),
                  " is ", times, " of it; something was not computed, or the peak is wrong");
  return "";
}

// The first part of a measured point that computes faster than its cores can (not timed over all
// ranks, or on a clock that jumped), or "".
std::string impossible_ablation(const PointRecord& r) {
  if (!r.ablations || r.source != Source::kMeasured) return "";
  const AblationsRecord& a = *r.ablations;
  const std::pair<const char*, double> parts[]{{"full_s", a.full_s},
                                               {"compute_only_s", a.compute_only_s},
                                               {"serialised_s", a.serialised_s},
                                               {"single_attend_s", a.single_attend_s}};
  for (const auto& [name, seconds] : parts) {
    const double share = times_peak(r, seconds);
    if (share > kMaxShareOfPeak)
      return concat("a failed measurement: ablations.", name, " = ", seconds, " s means ",
                    format_si(r.work.flops / seconds, "FLOP/s"), ", ", share,
                    " of the peak of the cores that the ranks can use; measure again");
  }
  return "";
}

std::string check_contradiction(const PointRecord& r) {
  if (r.check.status == "fail")
    return concat("the result is wrong: relative error ", r.check.max_rel_error);
  const CommRecord& c = r.comm;
  const std::tuple<const char*, std::optional<int64_t>, std::optional<int64_t>, const char*>
      pairs[]{{"counted ", c.bytes_per_rank(), c.predicted_bytes_per_rank, " bytes"},
              {"counted ", c.messages_per_rank(), c.predicted_messages_per_rank, " messages"},
              {"a closed form says ", c.closed_form_bytes_per_rank, c.predicted_bytes_per_rank,
               " bytes"},
              {"a closed form says ", c.closed_form_messages_per_rank,
               c.predicted_messages_per_rank, " messages"}};
  for (const auto& [says, found, predicted, what] : pairs)
    if (unequal(found, predicted))
      return concat(says, *found, what, " per rank, predicted ", *predicted);
  return "";
}

}  // namespace

PointRecord make_record(const Point& point, Source source) {
  PointRecord r;
  r.id = point.id;
  r.source = source;
  set_status(r, point.status, point.reason);
  r.params = point.params;
  r.work.tokens = point.params.problem.seq_len * point.params.problem.batch;
  return r;
}

void set_timing(PointRecord& record, const std::vector<double>& samples_s, int warmup,
                std::string_view reduction) {
  TimingRecord& t = record.timing;
  t.samples_s = samples_s;
  t.warmup = warmup;
  t.reduction = reduction;
  if (samples_s.empty()) return;
  set_interval(record, median_interval(samples_s), std::ranges::min(samples_s));
  t.p95_s = quantile(samples_s, 0.95);
}

void set_interval(PointRecord& record, const MedianInterval& interval, double min_s) {
  TimingRecord& t = record.timing;
  t.median_s = interval.median;
  t.ci_low_s = interval.low;
  t.ci_high_s = interval.high;
  t.ci_level = interval.level;
  t.min_s = min_s;
  if (t.median_s > 0) record.work.flops_per_s = record.work.flops / t.median_s;
}

bool validate_record(PointRecord& r) {
  if (r.status != PointStatus::kOk) {
    if (!r.reason.empty()) return true;
    set_status(r, r.status, concat(to_string(r.status), " without a reason"));
    return false;
  }
  const auto fail = [&](PointStatus status, const std::string& reason) {
    if (!reason.empty()) set_status(r, status, reason);
    return !reason.empty();
  };
  return !(fail(PointStatus::kError, contradiction(r)) ||
           fail(PointStatus::kError, impossible_ablation(r)) ||
           fail(PointStatus::kCheckFailed, check_contradiction(r)));
}

PointRecord record_from(const JsonNode& n) {
  if (!n.is_object() || n.text("id").empty() || !n.find("params"))
    throw UsageError(n.where(), ": this is no point of a result: it has no id or no params");
  PointRecord r;
  read_fields(n, r);
  return r;
}

}  // namespace longnet
