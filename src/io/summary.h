// The summary of a run: its verdict, the points by status, and fits of time against seq_len.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/record.h"
#include "measure/statistics.h"

namespace longnet {

struct FitRecord : PowerFit {  // median_s against seq_len
  std::string series{};        // "dilated mpi cpu ranks=2 ..."
  Source source = Source::kMeasured;
  static void fields(auto& f, auto&& visit) {
    visit("series", f.series);
    visit("source", f.source);
    visit("exponent", f.exponent);
    visit("exponent_low", f.exponent_low, {.later = true});
    visit("exponent_high", f.exponent_high, {.later = true});
    visit("r_squared", f.r_squared);
    visit("points", f.points);
    visit("seq_len_min", f.x_min, {.unit = Unit::kCount});
    visit("seq_len_max", f.x_max, {.unit = Unit::kCount});
  }
};

struct Summary {
  std::string verdict;                    // pass, fail, incomplete
  std::map<std::string, int64_t> counts;  // every status, also those with 0
  int64_t planned = 0;
  std::vector<FitRecord> fits;  // over three ok points or more, of one source and batch
  std::map<std::string, std::string> disturbed;    // disturbed_points()
  std::map<std::string, std::string> disagreeing;  // disagreeing_points()
  static void fields(auto& s, auto&& visit) {
    visit("verdict", s.verdict);
    visit("planned", s.planned);
    visit("counts", s.counts);
    visit("fits", s.fits);
    visit("disturbed", s.disturbed, {.later = true});
    visit("disagreeing", s.disagreeing, {.omit = true});
  }
};

// Fail: a point was wrong or broke (is_failure), or points disagree. Incomplete: fewer records
// than planned.
Summary summarize(const std::vector<PointRecord>& points, int64_t planned);

}  // namespace longnet
