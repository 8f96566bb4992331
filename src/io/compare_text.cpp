#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "core/check.h"
#include "io/compare.h"
#include "io/units.h"

namespace longnet {
namespace {

using Row = std::vector<std::string>;

std::string number(const char* format, double v) {
  if (!std::isfinite(v)) return "-";
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), format, v);
  return text.data();
}

// One word per column, so that awk and gnuplot can read the table; the note comes last.
Row row_of(const ComparedPoint& p) {
  const AttentionProblem& q = p.params.problem;
  return {p.id,
          p.params.algorithm,
          p.params.kernel,
          std::to_string(q.seq_len),
          std::to_string(p.params.ranks),
          std::to_string(q.batch),
          std::string(to_string(q.dtype)),
          number("%.6g", p.base_s),
          number("%.6g", p.new_s),
          number("%.3f", p.ratio),
          number("%.2g", p.p_adjusted),
          p.broken ? "broken" : std::string(to_string(p.verdict)),
          p.note.empty() ? "" : "# " + p.note};
}

std::string aligned(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows[0].size());
  for (const Row& r : rows)
    for (size_t i = 0; i < r.size(); ++i) widths[i] = std::max(widths[i], r[i].size());
  std::string text;
  for (const Row& r : rows) {
    std::string line;
    for (size_t i = 0; i < r.size(); ++i) {
      line += r[i];
      if (i + 1 < r.size()) line += std::string(widths[i] - r[i].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace

std::string comparison_table(const Comparison& c) {
  std::string text;
  for (const EnvironmentDifference& d : c.environment)
    text += concat("# differs: ", d.what, ": ", d.base, " -> ", d.now, "\n");
  if (c.environment.empty()) text += "# environments are alike\n";
  text += concat("# slower or faster: ratio of medians beyond ",
                 number("%g", 100 * c.options.threshold), " % and Holm-adjusted p < ",
                 c.options.alpha, "\n");
  std::vector<Row> rows{{"# id", "algorithm", "kernel", "seq_len", "ranks", "batch", "dtype",
                         "base_s", "new_s", "ratio", "p_adjusted", "class", ""}};
  for (const ComparedPoint& p : c.points) rows.push_back(row_of(p));
  text += aligned(rows);
  text += "#";
  for (CompareClass k : {CompareClass::kFaster, CompareClass::kSlower, CompareClass::kSame,
                         CompareClass::kAmbiguous, CompareClass::kMissing})
    text += concat(" ", to_string(k), " ", c.count(k));
  return text + concat(" : ",
                       c.regressed()       ? "REGRESSION"
                       : c.compared() == 0 ? "nothing could be compared"
                                           : "no regression",
                       "\n");
}

}  // namespace longnet
