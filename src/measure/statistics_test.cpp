#include "measure/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/check.h"

namespace longnet {
namespace {

std::vector<double> one_to(int n) {
  std::vector<double> v;
  for (int i = 1; i <= n; ++i) v.push_back(i);
  return v;
}

TEST(Statistics, MedianOfOddAndEven) {
  EXPECT_EQ(median(std::vector<double>{3, 1, 2}), 2);
  EXPECT_EQ(median(std::vector<double>{4, 1, 2, 3}), 2.5);
  EXPECT_THROW(median({}), Error);
}

TEST(Statistics, QuantileInterpolates) {
  EXPECT_EQ(quantile(one_to(5), 0.5), 3);
  EXPECT_DOUBLE_EQ(quantile(one_to(11), 0.95), 10.5);
  EXPECT_EQ(quantile(one_to(1), 0.95), 1);
  EXPECT_EQ(quantile(one_to(4), 1), 4);
  EXPECT_THROW(quantile(one_to(4), 1.5), Error);
}

TEST(MedianInterval, TenSamplesGiveRanksTwoToNine) {
  const MedianInterval i = median_interval(one_to(10));
  EXPECT_NEAR(i.level, 1 - 2 * 11.0 / 1024, 1e-12);
  EXPECT_EQ(i.low, 2);
  EXPECT_EQ(i.high, 9);
  EXPECT_DOUBLE_EQ(i.relative_half_width(), 3.5 / 5.5);
}

TEST(MedianInterval, TooFewSamplesGiveTheWholeRangeAndItsLevel) {
  const MedianInterval five = median_interval(one_to(5));
  EXPECT_EQ(five.low, 1);
  EXPECT_EQ(five.high, 5);
  EXPECT_NEAR(five.level, 1 - 2.0 / 32, 1e-12);  // 93.75 %: less than asked
  EXPECT_EQ(median_interval(one_to(1)).level, 0);
  EXPECT_NEAR(median_interval(one_to(6)).level, 1 - 2.0 / 64, 1e-12);  // the first n with 95 %
}

TEST(MedianInterval, IsTheSmallestWithItsLevel) {
  for (int n = 6; n <= 200; ++n) {
    const MedianInterval i = median_interval(one_to(n));
    EXPECT_GE(i.level, 0.95) << n;
    EXPECT_EQ(i.low + i.high, n + 1);
    // One rank further in would fall short: its level lacks 2 C(n, k) / 2^n.
    const double k = i.low;
    const double lost = 2 * std::exp(std::lgamma(n + 1.0) - std::lgamma(k + 1) -
                                     std::lgamma(n - k + 1) - n * std::log(2.0));
    EXPECT_LT(i.level - lost, 0.95) << n;
  }
}

TEST(MedianInterval, CoversTheMedianAsOftenAsItsLevel) {
  std::mt19937 random(7);
  std::exponential_distribution<double> skewed(1.0);
  int covered = 0;
  const int trials = 4000;
  for (int t = 0; t < trials; ++t) {
    std::vector<double> x(10);
    for (double& v : x) v = skewed(random);
    const MedianInterval i = median_interval(x);
    covered += i.low <= std::log(2.0) && std::log(2.0) <= i.high;
  }
  EXPECT_NEAR(double(covered) / trials, 0.9785, 0.01);
}

TEST(MannWhitney, ExactSmallSamples) {
  // All of a below all of b: one arrangement of C(6, 3) = 20 on either side.
  const double p = mann_whitney(std::vector<double>{1, 2, 3}, std::vector<double>{4, 5, 6});
  EXPECT_NEAR(p, smallest_p_value(3, 3), 1e-12);
  EXPECT_NEAR(p, 2.0 / 20, 1e-12);
  // U = 2 of 16: arrangements with U <= 2 are 1 + 1 + 2 of C(8, 4) = 70.
  EXPECT_NEAR(mann_whitney(std::vector<double>{1, 2, 3, 6}, std::vector<double>{4, 5, 7, 8}),
              2 * 4.0 / 70, 1e-12);
}

TEST(MannWhitney, SymmetricAndBounded) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  for (int t = 0; t < 50; ++t) {
    std::vector<double> a(size_t(2 + t % 9)), b(size_t(3 + t % 5));
    for (double& v : a) v = normal(random);
    for (double& v : b) v = normal(random);
    const double p = mann_whitney(a, b);
    EXPECT_NEAR(p, mann_whitney(b, a), 1e-12);
    EXPECT_LE(p, 1);
    EXPECT_GT(p, 0);
  }
}

TEST(MannWhitney, NormalApproximationIsNearTheExactTest) {
  std::vector<double> a, b;
  for (int i = 0; i < 20; ++i) {
    a.push_back(i);
    b.push_back(i + 5.5);
  }
  const double exact = mann_whitney(a, b);
  a.push_back(9), b.push_back(9);  // ties: 9 twice in a, once in b
  const double normal = mann_whitney(a, b);
  EXPECT_NEAR(normal, 0.011870131, 1e-9);  // U = 120, by hand
  EXPECT_NEAR(exact, normal, 0.01);
}

TEST(MannWhitney, EqualValuesAreNoEvidence) {
  const std::vector<double> same(10, 1.0);
  EXPECT_EQ(mann_whitney(same, same), 1);
}

TEST(Holm, StepsDownAndStaysMonotone) {
  const auto adjusted = holm_adjust(std::vector<double>{0.01, 0.04, 0.03, 0.5});
  EXPECT_DOUBLE_EQ(adjusted[0], 0.04);
  EXPECT_DOUBLE_EQ(adjusted[2], 0.09);
  EXPECT_DOUBLE_EQ(adjusted[1], 0.09);  // 2 x 0.04 would undercut its predecessor
  EXPECT_DOUBLE_EQ(adjusted[3], 0.5);
}

TEST(Holm, SkipsNaN) {
  const auto adjusted = holm_adjust(std::vector<double>{NAN, 0.02, 0.9});
  EXPECT_TRUE(std::isnan(adjusted[0]));
  EXPECT_DOUBLE_EQ(adjusted[1], 0.04);
  EXPECT_DOUBLE_EQ(adjusted[2], 0.9);
}

TEST(PowerFit, FindsTheExponent) {
  std::vector<double> x, y, flat;
  for (double v = 1024; v <= 65536; v *= 2) {
    x.push_back(v);
    y.push_back(3e-9 * v * v);
    flat.push_back(0.25);
  }
  const PowerFit fit = fit_power_law(x, y);
  EXPECT_NEAR(fit.exponent, 2, 1e-12);
  EXPECT_NEAR(fit.r_squared, 1, 1e-12);
  EXPECT_EQ(fit.x_min, 1024);
  EXPECT_EQ(fit.x_max, 65536);
  EXPECT_NEAR(fit_power_law(x, flat).exponent, 0, 1e-12);
  EXPECT_EQ(fit_power_law(x, flat).r_squared, 1);
}

// The first at one end and the last at the other tilt the line most; the middle does not.
TEST(PowerFit, AnExponentIsOpenByTheIntervalsOfAllValues) {
  const std::vector<double> x{1, 2, 4}, y{1, 1, 1}, low{0.5, 0.001, 0.5}, high{2, 1000, 4};
  const PowerFit fit = fit_power_law(x, y, low, high);
  EXPECT_NEAR(fit.exponent, 0, 1e-12);
  EXPECT_NEAR(fit.exponent_low, -1, 1e-12);    // 2 to 1/2 over a factor of 4
  EXPECT_NEAR(fit.exponent_high, 1.5, 1e-12);  // 1/2 to 4
  EXPECT_TRUE(std::isnan(fit_power_law(x, y).exponent_low));
  EXPECT_TRUE(std::isnan(fit_power_law(x, y).exponent_high));
  EXPECT_THROW(fit_power_law(x, y, low, one_to(2)), Error);
  EXPECT_THROW(fit_power_law(x, y, one_to(2), one_to(2)), Error);
  EXPECT_THROW(fit_power_law(x, y, high, low), Error);
}

TEST(PowerFit, RefusesValuesThatCannotBeFitted) {
  EXPECT_THROW(fit_power_law(one_to(2), one_to(2)), Error);
  EXPECT_THROW(fit_power_law(std::vector<double>{1, 2, 3}, std::vector<double>{1, 0, 3}), Error);
  EXPECT_THROW(fit_power_law(std::vector<double>{2, 2, 2}, one_to(3)), Error);
}

}  // namespace
}  // namespace longnet
