#include "io/record_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>

#include "io/units.h"

namespace longnet {
namespace {

JsonNode optional(const std::optional<int64_t>& known, const std::optional<int64_t>& other) {
  return known ? to_json(*known) : to_json(other);
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

void flatten(const std::string& path, const JsonNode& node, FlatRecord& out) {
  if (!node.is_object()) return out.emplace_back(path, node), void();
  for (size_t i = 0; i < node.keys.size(); ++i)
    flatten(path.empty() ? node.keys[i] : concat(path, ".", node.keys[i]), node.items[i], out);
}

}  // namespace

std::string note_of(const PointRecord& r) {
  std::vector<std::string> notes;
  if (r.source == Source::kReplayed) notes.emplace_back("replayed");
  if (r.source == Source::kExtrapolated) {
    const auto share = r.metrics.find("measured_share");
    notes.push_back(share == r.metrics.end()
                        ? "extrapolated"
                        : "extrapolated from " + human(share->second, Shown::kPercent));
  }
  if (r.check.strata_left_out > 0)
    notes.push_back(concat(r.check.strata_left_out, " of ", r.check.strata,
                           " strata beyond check.max_queries"));
  if (r.check.gradients && r.check.gradients->strata_left_out > 0)
    notes.push_back(concat(r.check.gradients->strata_left_out, " of ", r.check.gradients->strata,
                           " strata of gradients without a checked key"));
  if (const double more = r.memory.resident_difference; std::abs(more) > kNotedResidentDifference)
    notes.push_back(concat("resident memory grew by ",
                           format_bytes(double(r.memory.resident_growth_bytes.value_or(0))), ", ",
                           human(std::abs(more), Shown::kPercent), more > 0 ? " more" : " less",
                           " than the buffers"));
  if (const Guess guess = guess_of(r); guess != Guess::kNone) notes.emplace_back(to_string(guess));
  if (!r.reason.empty()) notes.push_back(r.reason);
  return join(notes, "; ");
}

Guess guess_of(const PointRecord& record) {
  const auto at = record.metrics.find(kBeyondTable);
  return at == record.metrics.end()
             ? Guess::kNone
             : Guess(std::clamp(at->second, 0.0, double(Guess::kNoFigure)));  // a file may have any
}

JsonNode ratio_to_unchanged(const PointRecord& record) {
  const auto at = record.metrics.find(kRatioToUnchanged);
  return at == record.metrics.end() ? JsonNode() : JsonNode(at->second);
}

ColumnHead column_of(const Axis& axis) {
  using enum Shown;
  const bool is_number = std::holds_alternative<int64_t>(axis.standard);
  return {.name = std::string(axis.key),
          .shown = axis.field.unit == Unit::kTokens ? kTokens
                   : is_number                      ? kNumber
                                                    : kText,
          .width = axis.use.width,
          .priority = axis.use.priority};
}

std::string shown_options(const PointParams& params, const std::set<std::string>& without) {
  PointParams p = params;
  if (p.mode == Mode::kSimulated) find_axis("kernel")->member.set(p, find_axis("kernel")->standard);
  std::string text = options_text(p);
  if (p.pass == Pass::kForward) text += concat(text.empty() ? "" : " ", kForwardWord);
  if (const size_t changes = p.cluster.find(' '); changes != std::string::npos)
    text += (text.empty() ? "" : " ") + p.cluster.substr(changes + 1);
  std::vector<std::string> words = words_of(text);
  std::erase_if(words, [&](const std::string& word) { return without.contains(word); });
  return join(words, " ");
}

Constants constants_of(const std::vector<Point>& points) {
  if (points.size() < 2) return {.columns = {}, .options = {kForwardWord}, .text = {}};
  Constants same;
  std::vector<std::string> said;
  for (const Axis& axis : axes()) {
    if (axis.use.width == 0 || axis.use.priority > 0) continue;  // options say the kernel
    const Value first = axis.member.get(points[0].params);
    if (!std::ranges::all_of(points,
                             [&](const Point& p) { return axis.member.get(p.params) == first; }))
      continue;
    same.columns.emplace(axis.key);
    said.push_back(concat(axis.key, " ", human(to_json(first), column_of(axis).shown)));
  }
  std::vector<std::string> common = words_of(shown_options(points[0].params, {}));
  bool more = false;  // options that differ
  for (const Point& point : points) {
    const auto words = words_of(shown_options(point.params, {}));
    std::erase_if(common, [&](const auto& word) { return std::ranges::count(words, word) == 0; });
  }
  same.options = {common.begin(), common.end()};
  for (const Point& point : points) more |= !shown_options(point.params, same.options).empty();
  if (!more) same.columns.emplace("options");
  std::erase(common, kForwardWord);  // goes without saying
  if (!common.empty()) said.push_back(join(common, " "));
  same.text = join(said, ", ");
  return same;
}

std::map<std::string, int> widest_cells(const std::vector<Point>& points,
                                        const std::set<std::string>& without) {
  std::map<std::string, int> widest;
  const auto add = [&](std::string_view column, const std::string& cell) {
    int& width = widest[std::string(column)];
    width = std::max(width, int(cell.size()));
  };
  for (const Point& point : points) {
    for (const Axis& axis : axes())
      if (axis.use.width > 0)
        add(axis.key, human(to_json(axis.member.get(point.params)), column_of(axis).shown));
    add("options", shown_options(point.params, without));
  }
  return widest;
}

bool compares_clusters(const std::vector<Point>& points) {
  const auto changed = std::ranges::count_if(
      points, [](const Point& p) { return p.params.cluster.find(' ') != std::string::npos; });
  return changed > 0 && changed < std::ssize(points);
}

std::vector<Column<PointRecord>> record_columns(const std::set<std::string>& common, bool ratios) {
  using enum Shown;
  using R = const PointRecord&;
  std::vector<Column<PointRecord>> columns{
      {"id", "", kText, 8, 0, [](R r) { return r.id; }},
      {"status", "", kText, 8, 0, [](R r) { return to_string(r.status); }},
      {"source", "", kText, 12, 4, [](R r) { return to_string(r.source); }},
      {"median_s", "time", kSeconds, 9, 0, [](R r) { return r.timing.median_s; }},
      {"ci_low_s", "low", kSeconds, 9, 3, [](R r) { return r.timing.ci_low_s; }},
      {"ci_high_s", "high", kSeconds, 9, 3, [](R r) { return r.timing.ci_high_s; }},
      {"samples", "n", kNumber, 4, 3, [](R r) { return r.timing.samples_s.size(); }},
      {"flops_per_s", "FLOP/s", kCount, 7, 3, [](R r) { return r.work.flops_per_s; }},
      {"share_of_peak", "of peak", kPercent, 7, 1, [](R r) { return r.work.share_of_peak; }},
      // Counted and predicted are equal where both are known, or the point has failed.
      {"bytes_per_rank", "sent", kBytes, 8, 1,
       [](R r) { return optional(r.comm.bytes_per_rank(), r.comm.predicted_bytes_per_rank); }},
      {"memory_bytes", "memory", kBytes, 8, 2,
       [](R r) { return optional(r.memory.measured_peak_bytes, r.memory.predicted_peak_bytes); }},
      {"rel_l2_error", "error", kNumber, 7, 3, [](R r) { return r.check.rel_l2_error; }},
      {"options", "", kText, 16, 0, [common](R r) { return shown_options(r.params, common); }},
      {"note", "", kNote, 0, 0, [](R r) { return note_of(r); }},
  };
  if (ratios)
    columns.insert(std::ranges::find(columns, "ci_low_s", &Column<PointRecord>::name),
                   {{kRatioToUnchanged, "ratio", kRatio, 6, 0}, ratio_to_unchanged});
  insert_axis_columns(columns, "median_s", &PointRecord::params);
  return columns;
}

std::string_view colour_of(PointStatus status) {
  return status == PointStatus::kOk ? "32" : is_failure(status) ? "31" : "33";
}

FlatRecord flat_record(const JsonNode& record) {
  FlatRecord out;
  flatten("", record, out);
  return out;
}

std::vector<Column<FlatRecord>> flat_columns(const std::vector<FlatRecord>& records,
                                             bool with_lists) {
  std::vector<Column<FlatRecord>> columns;
  for (const FlatRecord& record : records)
    for (const auto& [path, value] : record) {
      if (value.is_array() && !with_lists) continue;
      if (std::ranges::find(columns, path, &Column<FlatRecord>::name) != columns.end()) continue;
      columns.push_back({{path}, [path](const FlatRecord& r) {
                           const auto at =
                               std::ranges::find(r, path, &FlatRecord::value_type::first);
                           return at == r.end() ? JsonNode() : at->second;
                         }});
    }
  return columns;
}

}  // namespace longnet
