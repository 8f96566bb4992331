#include "measure/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"

namespace longnet {
namespace {

std::vector<double> sorted_copy(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

double median_of_sorted(std::span<const double> x) {
  const size_t n = x.size();
  return n % 2 == 1 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

// P(X <= k) for X ~ Binomial(n, 1/2). Logarithms, because 2^-n underflows at n = 1075; summed up
// rather than by lgamma, which writes a global (signgam) and so is a race between ranks that are
// threads.
double binomial_half_cdf(int64_t k, int64_t n) {
  double sum = 0, log_term = -double(n) * std::log(2.0);
  for (int64_t i = 0; i <= k; ++i) {
    if (i > 0) log_term += std::log(double(n - i + 1) / double(i));
    sum += std::exp(log_term);
  }
  return std::min(sum, 1.0);
}

double normal_upper_tail(double z) { return std::erfc(z / std::sqrt(2.0)) / 2; }

// P(U <= u) without ties: the number of ways to reach each U obeys
//   ways(a, b, u) = ways(a - 1, b, u - b) + ways(a, b - 1, u)
// (the largest value is from the first or from the second sample). Counted in doubles, scaled by
// the number of arrangements, so nothing overflows.
double exact_cdf(int64_t na, int64_t nb, int64_t u) {
  // p[b][u] for the current a, as probabilities: the largest is from the first with a / (a + b).
  const int64_t max_u = na * nb;
  std::vector<std::vector<double>> p(size_t(nb + 1), std::vector<double>(size_t(max_u + 1), 0.0));
  for (int64_t b = 0; b <= nb; ++b) p[size_t(b)][0] = 1;  // a = 0
  for (int64_t a = 1; a <= na; ++a) {
    for (int64_t b = 1; b <= nb; ++b) {
      std::vector<double> next(size_t(max_u + 1), 0.0);
      const double from_first = double(a) / double(a + b);
      for (int64_t v = 0; v <= a * b; ++v) {
        const double first = v >= b ? p[size_t(b)][size_t(v - b)] : 0;
        next[size_t(v)] = from_first * first + (1 - from_first) * p[size_t(b - 1)][size_t(v)];
      }
      p[size_t(b)] = std::move(next);
    }
  }
  const auto& last = p[size_t(nb)];
  return std::accumulate(last.begin(), last.begin() + u + 1, 0.0);
}

struct RankSums {
  double first = 0;     // sum of the mid-ranks of the first sample
  double tie_term = 0;  // sum of t^3 - t over groups of t equal values
};

RankSums rank_sums(std::span<const double> a, std::span<const double> b) {
  std::vector<std::pair<double, bool>> all;
  for (double x : a) all.emplace_back(x, true);
  for (double x : b) all.emplace_back(x, false);
  std::sort(all.begin(), all.end());
  RankSums sums;
  for (size_t i = 0; i < all.size();) {
    size_t end = i;
    while (end < all.size() && all[end].first == all[i].first) ++end;
    const double rank = double(i + 1 + end) / 2;
    const double ties = double(end - i);
    sums.tie_term += ties * ties * ties - ties;
    for (; i < end; ++i)
      if (all[i].second) sums.first += rank;
  }
  return sums;
}

}  // namespace

double median(std::span<const double> values) {
  check(!values.empty(), "median of ", values.size(), " values");
  return median_of_sorted(sorted_copy(values));
}

double quantile(std::span<const double> values, double q) {
  check(!values.empty(), "quantile of ", values.size(), " values");
  check(q >= 0 && q <= 1, "quantile needs 0 <= q <= 1, q = ", q);
  const std::vector<double> x = sorted_copy(values);
  const double at = q * double(x.size() - 1);
  const size_t below = size_t(at);
  const size_t above = std::min(below + 1, x.size() - 1);
  return x[below] + (at - double(below)) * (x[above] - x[below]);
}

MedianInterval median_interval_sorted(std::span<const double> x) {
  constexpr double kLevel = 0.95;
  check(!x.empty(), "interval of ", x.size(), " values");
  const int64_t n = int64_t(x.size());
  // Ranks k .. n + 1 - k miss the median with probability 2 P(X <= k - 1): take the largest k
  // allowed.
  int64_t k = 1;
  while (2 * (k + 1) <= n && 1 - 2 * binomial_half_cdf(k, n) >= kLevel) ++k;
  MedianInterval interval;
  interval.low = x[size_t(k - 1)];
  interval.high = x[size_t(n - k)];
  interval.level = std::max(0.0, 1 - 2 * binomial_half_cdf(k - 1, n));
  interval.median = median_of_sorted(x);
  return interval;
}

MedianInterval median_interval(std::span<const double> values) {
  return median_interval_sorted(sorted_copy(values));
}

double mann_whitney(std::span<const double> a, std::span<const double> b) {
  check(!a.empty() && !b.empty(), "Mann-Whitney of ", a.size(), " and ", b.size(), " samples");
  const double na = double(a.size()), nb = double(b.size()), n = na + nb;
  const RankSums sums = rank_sums(a, b);
  // Pairs (x in a, y in b) with x > y, ties count half.
  const double u = sums.first - na * (na + 1) / 2, smaller = std::min(u, na * nb - u);
  if (sums.tie_term == 0 && na * nb <= 2500)
    return std::min(1.0, 2 * exact_cdf(int64_t(na), int64_t(nb), std::llround(smaller)));
  const double variance = na * nb / 12 * (n + 1 - sums.tie_term / (n * (n - 1)));
  if (variance <= 0) return 1;  // all values equal
  const double z = std::max(0.0, na * nb / 2 - smaller - 0.5) / std::sqrt(variance);
  return std::min(1.0, 2 * normal_upper_tail(z));
}

double smallest_p_value(size_t n_a, size_t n_b) {
  const double a = double(n_a), b = double(n_b);
  const double arrangements = std::lgamma(a + b + 1) - std::lgamma(a + 1) - std::lgamma(b + 1);
  return std::min(1.0, 2 * std::exp(-arrangements));
}

std::vector<double> holm_adjust(std::span<const double> p_values) {
  std::vector<size_t> order;
  for (size_t i = 0; i < p_values.size(); ++i)
    if (!std::isnan(p_values[i])) order.push_back(i);
  std::ranges::stable_sort(order, {}, [&](size_t i) { return p_values[i]; });
  std::vector<double> adjusted(p_values.begin(), p_values.end());
  double running = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    running = std::max(running, double(order.size() - k) * p_values[order[k]]);
    adjusted[order[k]] = std::min(1.0, running);
  }
  return adjusted;
}

PowerFit fit_power_law(std::span<const double> x, std::span<const double> y,
                       std::span<const double> y_low, std::span<const double> y_high) {
  check(x.size() == y.size(), "fit of ", x.size(), " x to ", y.size(), " y");
  check(y_low.size() == y_high.size() && (y_low.empty() || y_low.size() == y.size()),
        "intervals of a fit: ", y_low.size(), " and ", y_high.size(), " ends of ", y.size(), " y");
  check(x.size() >= 3, "a fit needs three points, has ", x.size());
  const double n = double(x.size());
  double mean_x = 0, mean_y = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    check(x[i] > 0 && y[i] > 0, "a power law needs positive values: x = ", x[i], ", y = ", y[i]);
    mean_x += std::log(x[i]) / n;
    mean_y += std::log(y[i]) / n;
  }
  double xx = 0, xy = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double dx = std::log(x[i]) - mean_x, dy = std::log(y[i]) - mean_y;
    xx += dx * dx;
    xy += dx * dy;
    yy += dy * dy;
  }
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  check(*low < *high, "a fit needs two different x, all are ", *low);
  PowerFit fit{.exponent = xy / xx, .x_min = *low, .x_max = *high, .points = int64_t(x.size())};
  if (!y_low.empty()) fit.exponent_low = fit.exponent_high = 0;
  for (size_t i = 0; i < y_low.size(); ++i) {
    check(y_low[i] > 0 && y_low[i] <= y_high[i], "interval ", y_low[i], " to ", y_high[i]);
    const double weight = (std::log(x[i]) - mean_x) / xx;
    const double at_low = weight * std::log(y_low[i]), at_high = weight * std::log(y_high[i]);
    fit.exponent_low += std::min(at_low, at_high);
    fit.exponent_high += std::max(at_low, at_high);
  }
  // y constant up to rounding leaves no variation to explain.
  const double residual = std::max(0.0, yy - fit.exponent * xy);
  fit.r_squared = yy <= 1e-24 * n ? 1 : 1 - residual / yy;
  return fit;
}

}  // namespace longnet
