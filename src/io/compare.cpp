#include "io/compare.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "core/check.h"
#include "io/record_table.h"
#include "json/text.h"
#include "measure/statistics.h"

namespace longnet {
namespace {

using PointsById = std::unordered_map<std::string_view, const PointRecord*>;

PointsById by_id(const std::vector<PointRecord>& points) {
  PointsById all;
  for (const PointRecord& r : points) all.emplace(r.id, &r);
  return all;
}

bool is_ok(const PointRecord& r) {
  return r.status == PointStatus::kOk && std::isfinite(r.timing.median_s);
}

// "check_failed: relative error 0.3"
std::string status_text(const PointRecord& r) {
  return r.reason.empty() ? std::string(to_string(r.status))
                          : concat(to_string(r.status), ": ", r.reason);
}

bool has_noise(Source s) { return s != Source::kSimulated; }

bool is_skipped(const PointRecord& r) {
  return r.status != PointStatus::kOk && !is_failure(r.status);
}

// Why the two cannot be compared, or "".
std::string obstacle(const PointRecord& base, const PointRecord* now, const CompareOptions& o) {
  if (!now) return "not in the new result";
  if (!is_ok(base)) return concat("base is ", status_text(base));
  if (!is_ok(*now)) return concat("new is ", status_text(*now));
  if (base.source != now->source)
    return concat("sources differ: ", to_string(base.source), " and ", to_string(now->source));
  if (base.params.way() != now->params.way() && !o.any_transport)
    return concat("transports differ: ", base.params.way(), " and ", now->params.way(),
                  " (--any-transport compares them)");
  return "";
}

// "base: samples are 1.8 times apart", or "".
std::string disturbance(const std::string& id, const Result& base, const Result& now) {
  std::vector<std::string> found;
  for (const auto& [side, result] : {std::pair("base: ", &base), std::pair("new: ", &now)})
    if (const auto why = result->summary.disturbed.find(id); why != result->summary.disturbed.end())
      found.push_back(side + why->second);
  return join(found, "; ");
}

ComparedPoint compare_point(const PointRecord& base, const PointRecord* now,
                            const std::string& disturbed, const CompareOptions& o) {
  ComparedPoint p{.id = base.id, .params = base.params};
  p.base_s = is_ok(base) ? base.timing.median_s : kNotMeasured;
  p.new_s = now && is_ok(*now) ? now->timing.median_s : kNotMeasured;
  p.note = obstacle(base, now, o);
  if (now && is_skipped(base) && is_skipped(*now)) p.verdict = CompareClass::kSkipped;
  p.broken = now && is_ok(base) && is_failure(now->status);
  if (!p.note.empty()) return p;
  p.ratio = p.base_s > 0 ? p.new_s / p.base_s : kNotMeasured;
  if (!has_noise(base.source)) return p;
  if (!disturbed.empty()) {
    p.verdict = CompareClass::kDisturbed;
    p.note = disturbed;
    return p;
  }
  const std::vector<double>& base_samples = base.timing.samples_s;
  const std::vector<double>& new_samples = now->timing.samples_s;
  p.smallest_p = smallest_p_value(base_samples.size(), new_samples.size());
  if (p.smallest_p < 1) p.p_value = mann_whitney(base_samples, new_samples);
  return p;
}

// `tested`: points that Holm's correction counts.
CompareClass classify(const ComparedPoint& p, int64_t tested, const CompareOptions& o) {
  if (!p.note.empty() || !std::isfinite(p.ratio)) return p.verdict;  // disturbed, skipped, missing
  const bool noise = p.smallest_p > 0;
  if (noise && !(p.smallest_p * double(tested) < o.alpha)) return CompareClass::kUndecided;
  const bool slower = p.ratio > 1 + o.threshold, faster = p.ratio < 1 / (1 + o.threshold);
  if (!slower && !faster) return CompareClass::kSame;
  if (noise && !(p.p_adjusted < o.alpha)) return CompareClass::kAmbiguous;
  return slower ? CompareClass::kSlower : CompareClass::kFaster;
}

// "h100-ndr400 (0123456789ab)", or "" of real runs.
std::string cluster_text(const RunInfo& run) {
  return run.cluster.is_null()
             ? ""
             : concat(run.cluster.text("name"), " (", run.cluster_sha256.substr(0, 12), ")");
}

// Returns the conditions that decide the times of a result, by path: nothing that is of the moment.
FlatRecord conditions_of(const Result& r, bool simulated) {
  JsonNode n = JsonNode::object({{"config", r.run.config_sha256.substr(0, 12)},
                                 {"build", to_json(r.build)},
                                 {"environment", to_json(r.environment)},
                                 {"mode", r.run.mode},
                                 {"transport", r.run.transport},
                                 {"cluster", cluster_text(r.run)}});
  for (const char* moment : {"captured_utc", "busy_share", "load_average"})
    n.find("environment")->take(moment);
  if (!simulated) n.set("world_size", r.run.world_size);  // else it is the cluster's
  return flat_record(n);
}

std::vector<EnvironmentDifference> environment_differences(const Result& a, const Result& b) {
  const bool simulated = a.run.mode == "simulated" || b.run.mode == "simulated";
  std::vector<EnvironmentDifference> all;
  const auto at = [&](const std::string& what) -> EnvironmentDifference& {
    const auto known = std::ranges::find(all, what, &EnvironmentDifference::what);
    return known != all.end() ? *known : all.emplace_back(EnvironmentDifference{what, "-", "-"});
  };
  for (const auto& [path, value] : conditions_of(a, simulated))
    at(path).base = human(value, Shown::kText);
  for (const auto& [path, value] : conditions_of(b, simulated))
    at(path).now = human(value, Shown::kText);
  std::erase_if(all, [](const EnvironmentDifference& d) { return d.base == d.now; });
  return all;
}

std::vector<Column<ComparedPoint>> comparison_columns() {
  using enum Shown;
  using P = const ComparedPoint&;
  std::vector<Column<ComparedPoint>> columns{
      {"id", "", kText, 8, 0, [](P p) { return p.id; }},
      {"base_s", "base", kSeconds, 9, 0, [](P p) { return p.base_s; }},
      {"new_s", "new", kSeconds, 9, 0, [](P p) { return p.new_s; }},
      {"ratio", "", kNumber, 6, 0, [](P p) { return p.ratio; }},
      {"p_adjusted", "p", kNumber, 7, 1, [](P p) { return p.p_adjusted; }},
      {"class", "", kText, 9, 0,
       [](P p) { return p.broken ? "broken" : std::string(to_string(p.verdict)); }},
      {"options", "", kText, 10, 2, [](P p) { return shown_options(p.params); }},
      {"note", "", kNote, 0, 0, [](P p) { return p.note; }},
  };
  insert_axis_columns(columns, "base_s", &ComparedPoint::params);
  return columns;
}

}  // namespace

Comparison compare_results(const Result& base, const Result& now, const CompareOptions& options) {
  Comparison c;
  c.options = options;
  c.environment = environment_differences(base, now);
  PointsById in_base = by_id(base.points), in_now = by_id(now.points);
  std::vector<double> p_values;
  for (const PointRecord& r : base.points) {
    c.points.push_back(compare_point(r, in_now[r.id], disturbance(r.id, base, now), options));
    p_values.push_back(c.points.back().p_value);
  }
  const std::vector<double> adjusted = holm_adjust(p_values);
  const int64_t tested = std::max<int64_t>(
      1, std::ranges::count_if(p_values, [](double p) { return std::isfinite(p); }));
  for (size_t i = 0; i < c.points.size(); ++i) {
    c.points[i].p_adjusted = adjusted[i];
    c.points[i].verdict = classify(c.points[i], tested, options);
  }
  for (const PointRecord& r : now.points) {
    if (in_base[r.id]) continue;
    c.points.push_back({.id = r.id,
                        .params = r.params,
                        .new_s = is_ok(r) ? r.timing.median_s : kNotMeasured,
                        .note = "not in the base"});
  }
  return c;
}

std::string conclusion(const Comparison& c) {
  if (c.regressed()) return "REGRESSION";
  if (c.compared() == 0) return "nothing could be compared";
  std::vector<std::string> open;
  using enum CompareClass;
  for (const CompareClass k : {kAmbiguous, kUndecided, kDisturbed})
    if (const int64_t count = c.count(k); count > 0)
      open.push_back(concat(count, " ", to_string(k)));
  if (c.decided() == 0)
    return concat(
        "cannot decide (", join(open, ", "), "): measure again, ",
        c.count(kAmbiguous) + c.count(kUndecided) > 0 ? "with more samples" : "on a quiet machine");
  return concat("no regression among ", c.decided(), " decided points",
                open.empty() ? "" : concat(" (", join(open, ", "), ")"));
}

JsonNode comparison_json(const Comparison& c) {
  JsonNode environment = JsonNode::array(), points = JsonNode::array();
  for (const EnvironmentDifference& d : c.environment)
    environment.push(JsonNode::object({{"what", d.what}, {"base", d.base}, {"now", d.now}}));
  for (const ComparedPoint& p : c.points)
    points.push(JsonNode::object({{"id", p.id},
                                  {"base_s", p.base_s},
                                  {"new_s", p.new_s},
                                  {"ratio", p.ratio},
                                  {"p_adjusted", p.p_adjusted},
                                  {"verdict", to_string(p.verdict)},
                                  {"note", p.note}}));
  return JsonNode::object({{"threshold", c.options.threshold},
                           {"summary", conclusion(c)},
                           {"environment", environment},
                           {"points", points}});
}

void write_comparison(const Comparison& c, const TableStyle& style) {
  Table<ComparedPoint> table(comparison_columns(), style);
  for (const EnvironmentDifference& d : c.environment)
    table.note(concat("differs: ", d.what, ": ", d.base, " -> ", d.now));
  if (c.environment.empty()) table.note("environments are alike");
  table.note(concat("slower or faster: ratio of medians beyond ", 100 * c.options.threshold,
                    " % and Holm-adjusted p < ", c.options.alpha));
  for (const ComparedPoint& p : c.points) table.add(p);
  table.finish();
  std::vector<std::string> counts;
  for (const CompareClass k : enum_values<CompareClass>())
    counts.push_back(concat(to_string(k), " ", c.count(k)));
  table.note(join(counts, ", "));
  table.note(concat("verdict: ", conclusion(c)));
}

}  // namespace longnet
