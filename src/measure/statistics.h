// Statistics of benchmark samples: order statistics first, because run times are skewed and have
// outliers.
//
// Example: ten sorted samples x1 <= ... <= x10. The median lies in [x2, x9] unless at least nine
// samples fell on one side of it, which has probability 2 (C(10,0) + C(10,1)) / 2^10 = 0.0215:
// level 97.9 %. Nothing about the distribution is assumed beyond independence.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace longnet {

// All of these throw Error on an empty span.
double median(std::span<const double> values);
// Linear between order statistics, 0 <= q <= 1.
double quantile(std::span<const double> values, double q);

// Confidence interval of the median, between two order statistics.
struct MedianInterval {
  double low = 0, high = 0;
  double level = 0;  // the level reached: 95 % at least, or less when n is too small
  double median = 0;

  double relative_half_width() const { return median > 0 ? (high - low) / 2 / median : 0; }
};

// The smallest symmetric interval with that level; min..max where n is too small for it.
MedianInterval median_interval(std::span<const double> values);
// median_interval of values that are sorted already: allocates nothing.
MedianInterval median_interval_sorted(std::span<const double> sorted);

// p-value of the two-sided Mann-Whitney U test of "a and b come from one distribution": by counting
// arrangements without ties and where n_a n_b <= 2500; else normal with tie correction.
double mann_whitney(std::span<const double> a, std::span<const double> b);
// The smallest p-value that samples of these sizes can reach: 2 / C(n_a + n_b, n_a). 1 without
// samples. Three against three reach 0.1, four against four 0.029.
double smallest_p_value(size_t n_a, size_t n_b);

// Holm's step-down adjustment for testing several hypotheses at once; keeps the order of the input.
// NaN means "not tested": it stays NaN and does not count.
std::vector<double> holm_adjust(std::span<const double> p_values);

// y ~ x^exponent by least squares on logarithms. Needs three points with x, y > 0 and two different
// x; throws Error otherwise.
//
// Example: y = 1, 1, 1 at x = 1, 2, 4 has exponent 0; where each y is known to [1/2, 2], it lies in
// [-1, 1]: the first at one end, the last at the other tilt the line most, the middle does not.
struct PowerFit {
  double exponent = 0;
  // Least and largest exponent of all y between their ends; NaN where none are given.
  double exponent_low = std::numeric_limits<double>::quiet_NaN();
  double exponent_high = std::numeric_limits<double>::quiet_NaN();
  double r_squared = 0;  // 1 when y is constant and fitted exactly
  double x_min = 0, x_max = 0;
  int64_t points = 0;
};
// The ends of the interval of each y, if given: 0 < y_low <= y <= y_high.
PowerFit fit_power_law(std::span<const double> x, std::span<const double> y,
                       std::span<const double> y_low = {}, std::span<const double> y_high = {});

}  // namespace longnet
