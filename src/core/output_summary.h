// Summary of an output too large to keep: equal for every way to run a point up to fp32 rounding.
#pragma once
#include <cmath>
#include <cstdint>

#include "core/random.h"

namespace longnet {

// Sums of O, unless a name says otherwise. NaN values are counted and left out of the sums. min and
// max of no values: +inf and -inf.
struct OutputSummary {
  int64_t rows = 0;
  int64_t absent_rows = 0;  // LSE = -inf: no branch selects them
  int64_t nan_values = 0;   // in O and LSE
  double sum = 0, sum_squares = 0;
  double min = INFINITY, max = -INFINITY;
  double lse_sum = 0;  // over rows that are not absent
  uint64_t digest = 0;
  LONGNET_HOST_DEVICE void add(const OutputSummary& o) {
    rows += o.rows;
    absent_rows += o.absent_rows;
    nan_values += o.nan_values;
    sum += o.sum;
    sum_squares += o.sum_squares;
    min = fmin(min, o.min);
    max = fmax(max, o.max);
    lse_sum += o.lse_sum;
    digest += o.digest;
  }
  bool operator==(const OutputSummary&) const = default;
  static void fields(auto& s, auto&& visit) {  // in results: io/field.h
    visit("output_digest", s.digest);
    visit("rows", s.rows);
    visit("absent_rows", s.absent_rows);
    visit("nan_values", s.nan_values);
    visit("sum", s.sum);
    visit("sum_squares", s.sum_squares);
    visit("min", s.min, {.null_is = INFINITY});
    visit("max", s.max, {.null_is = -INFINITY});
    visit("lse_sum", s.lse_sum);
  }
};

}  // namespace longnet
