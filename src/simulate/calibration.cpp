#include "simulate/calibration.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace longnet {
namespace {

// Solves a x = b in place by elimination with pivots; false when a is singular.
bool solve(std::vector<std::vector<double>>& a, std::vector<double>& b) {
  const size_t n = b.size();
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < n; ++row)
      if (std::fabs(a[row][column]) > std::fabs(a[pivot][column])) pivot = row;
    if (std::fabs(a[pivot][column]) < 1e-12) return false;
    std::swap(a[column], a[pivot]);
    std::swap(b[column], b[pivot]);
    for (size_t row = 0; row < n; ++row) {
      if (row == column) continue;
      const double factor = a[row][column] / a[column][column];
      for (size_t k = column; k < n; ++k) a[row][k] -= factor * a[column][k];
      b[row] -= factor * b[column];
    }
  }
  for (size_t i = 0; i < n; ++i) b[i] /= a[i][i];
  return true;
}

// Relative errors of all measurements under these coefficients.
std::vector<double> relative_errors(const std::vector<std::vector<double>>& rows,
                                    std::span<const double> values,
                                    const std::vector<double>& coefficients) {
  std::vector<double> errors;
  for (size_t i = 0; i < rows.size(); ++i) {
    double fitted = 0;
    for (size_t c = 0; c < coefficients.size(); ++c) fitted += coefficients[c] * rows[i][c];
    errors.push_back(std::fabs(fitted - values[i]) / values[i]);
  }
  return errors;
}

// Least squares over the unknowns in `subset`; the others are 0. Empty when there is no solution
// without negative coefficients. Columns are scaled to 1, so that bytes and seconds mix well.
std::vector<double> fit_subset(const std::vector<std::vector<double>>& rows,
                               std::span<const double> values, unsigned subset) {
  const size_t unknowns = rows.front().size();
  std::vector<size_t> columns;
  std::vector<double> scale;
  for (size_t c = 0; c < unknowns; ++c) {
    if (!(subset >> c & 1u)) continue;
    double largest = 0;
    for (size_t i = 0; i < rows.size(); ++i) largest = std::max(largest, rows[i][c] / values[i]);
    if (largest == 0) return {};
    columns.push_back(c);
    scale.push_back(largest);
  }
  const size_t n = columns.size();
  std::vector<std::vector<double>> normal(n, std::vector<double>(n, 0.0));
  std::vector<double> right(n, 0.0);
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t a = 0; a < n; ++a) {
      const double x = rows[i][columns[a]] / values[i] / scale[a];
      right[a] += x;
      for (size_t b = 0; b < n; ++b) normal[a][b] += x * rows[i][columns[b]] / values[i] / scale[b];
    }
  if (!solve(normal, right)) return {};
  std::vector<double> coefficients(unknowns, 0.0);
  for (size_t a = 0; a < n; ++a) {
    if (right[a] < 0) return {};
    coefficients[columns[a]] = right[a] / scale[a];
  }
  return coefficients;
}

struct Fit : FitErrors {
  std::vector<double> coefficients{};
};
// counts_of(a measurement) are its counts, a few; its seconds are positive. Unknown `positive`
// (-1: none) may not be 0. Throws Error when there are fewer measurements than unknowns.
template <class Measurement, class CountsOf>
Fit fit_nonnegative(std::span<const Measurement> times, CountsOf counts_of, int positive = -1) {
  std::vector<std::vector<double>> rows;
  std::vector<double> values;
  for (const Measurement& t : times) {
    rows.push_back(counts_of(t));
    values.push_back(t.seconds);
  }
  check(!rows.empty(), "a fit of ", rows.size(), " rows and ", values.size(), " values");
  const size_t unknowns = rows.front().size();
  check(rows.size() >= unknowns, "a fit of ", unknowns,
        " unknowns needs as many measurements, has ", rows.size());
  for (const double value : values)
    check(value > 0, "a fit needs positive measurements, one is ", value);
  Fit best;
  double least = std::numeric_limits<double>::infinity();
  for (unsigned subset = 1; subset < 1u << unknowns; ++subset) {
    if (positive >= 0 && !(subset >> positive & 1u)) continue;
    const std::vector<double> coefficients = fit_subset(rows, values, subset);
    if (coefficients.empty() || (positive >= 0 && coefficients[size_t(positive)] == 0)) continue;
    double sum = 0;
    for (const double e : relative_errors(rows, values, coefficients)) sum += e * e;
    if (sum < least) least = sum, best.coefficients = coefficients;
  }
  check(!best.coefficients.empty(), "no non-negative fit");
  std::vector<double> errors = relative_errors(rows, values, best.coefficients);
  std::sort(errors.begin(), errors.end());
  best.median_rel_error = errors[errors.size() / 2];
  best.max_rel_error = errors.back();
  return best;
}

}  // namespace

LinkFit fit_link(std::span<const MessageTime> times) {
  const Fit fit = fit_nonnegative(times, [](const MessageTime& t) {
    return std::vector<double>{1, t.bytes};
  });
  check(fit.coefficients[1] > 0,
        "messages take no longer when they are larger: ", times.front().bytes, " bytes take ",
        times.front().seconds, " s, ", times.back().bytes, " bytes ", times.back().seconds, " s");
  return {fit, fit.coefficients[0], 1 / fit.coefficients[1]};
}

AttendFit fit_attend(std::span<const AttendTime> times) {
  const auto counts_of = [](const AttendTime& t) {
    return std::vector<double>{t.counts.blocks, t.counts.queries, t.counts.key_rows,
                               t.counts.pairs};
  };
  const Fit fit = fit_nonnegative(times, counts_of, /*positive=*/3);
  const std::vector<double>& c = fit.coefficients;
  return {fit, c[0], c[1], c[2], c[3]};
}

GemmFit fit_gemm(std::span<const GemmTime> times) {
  const auto counts_of = [](const GemmTime& t) { return std::vector<double>{t.flops, t.bytes}; };
  const Fit fit = fit_nonnegative(times, counts_of, /*positive=*/0);
  const double byte_s = fit.coefficients[1];
  return {fit, 1 / fit.coefficients[0], byte_s > 0 ? 1 / byte_s : 0};
}

}  // namespace longnet
