// Two results of the same config, point by point: did anything get slower?
//
// Per point the Mann-Whitney test on the samples, Holm's correction over all points, and a
// threshold on the ratio of medians, because a difference can be certain and too small to matter:
//
//                        ratio within threshold     beyond it
//   p < alpha            same                       faster / slower
//   p >= alpha           same                       ambiguous: take more samples
//   alpha out of reach   undecided                  undecided: take more samples
//
// Few samples cannot reach alpha, whatever they are: three against three give p = 0.1 at best, and
// Holm's correction multiplies by the number of points. Points without noise (simulated) are judged
// by the ratio alone. Disturbed points (disturbed.h) decide nothing. A point that neither side ran,
// by its own choice or for memory, is skipped; one that only one side has a time of is missing.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "io/result.h"
#include "io/table.h"
#include "json/json_tree.h"

namespace longnet {

struct CompareOptions {
  double threshold = 0.05;  // slower: new / base > 1 + threshold; faster: < 1 / (1 + threshold)
  double alpha = 0.05;
  bool any_transport = false;  // compares points whose bytes went other ways
};

// Classes of compared points: first those with a verdict, then those with a time on both sides but
// no verdict, then the rest.
enum class CompareClass {
  kFaster,
  kSlower,
  kSame,
  kAmbiguous,
  kUndecided,
  kDisturbed,
  kSkipped,
  kMissing
};
constexpr auto texts_of(CompareClass) {
  return texts("faster", "slower", "same", "ambiguous", "undecided", "disturbed", "skipped",
               "missing");
}

struct ComparedPoint {
  std::string id;
  PointParams params;
  double base_s = kNotMeasured, new_s = kNotMeasured;  // medians
  double ratio = kNotMeasured;                         // new / base
  double p_value = kNotMeasured, p_adjusted = kNotMeasured;
  double smallest_p = 0;  // that so many samples can reach; 0 without noise
  CompareClass verdict = CompareClass::kMissing;
  bool broken = false;  // was ok, and is now recorded as failed
  std::string note{};   // why it is disturbed, skipped or missing
};

struct EnvironmentDifference {
  std::string what, base, now;
};

struct Comparison {
  std::vector<EnvironmentDifference> environment;
  std::vector<ComparedPoint> points;  // in the order of the base, then those only in the new result
  CompareOptions options;
  int64_t count(CompareClass c) const {
    return std::ranges::count(points, c, &ComparedPoint::verdict);
  }
  bool regressed() const {  // anything slower or broken
    return count(CompareClass::kSlower) > 0 || std::ranges::any_of(points, &ComparedPoint::broken);
  }
  // Points that have a time on both sides, and those of them that have a verdict.
  int64_t compared() const {
    return int64_t(points.size()) - count(CompareClass::kMissing) - count(CompareClass::kSkipped);
  }
  int64_t decided() const {
    using enum CompareClass;
    return count(kFaster) + count(kSlower) + count(kSame);
  }
};

Comparison compare_results(const Result& base, const Result& now,
                           const CompareOptions& options = {});

// "REGRESSION", "no regression among 20 decided points (2 undecided)", or why that is not known.
std::string conclusion(const Comparison& comparison);

// { "threshold", "summary", "environment": [{what, base, now}],
//   "points": [{id, base_s, new_s, ratio, p_adjusted, verdict, note}] }
// as the report reads it; a number that was not measured is null.
JsonNode comparison_json(const Comparison& comparison);

// Notes on the environments and the threshold, one row per point, a note of the counts.
void write_comparison(const Comparison& comparison, const TableStyle& style);

}  // namespace longnet
