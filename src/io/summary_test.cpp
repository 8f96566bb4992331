#include "io/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/axes.h"
#include "io/testing/small_run.h"

namespace longnet {
namespace {

using testing::HasSubstr;

TEST(Summary, VerdictAndFits) {
  const auto all = points();
  std::vector<PointRecord> records;
  for (const Point& p : all) records.push_back(ok_record(p, 1));
  EXPECT_EQ(summarize(records, 7).verdict, "incomplete");
  EXPECT_NEAR(summarize(records, 6).fits[0].exponent, 0, 1e-12);
  records[0].source =
      Source::kSimulated;  // two sources in one series: two points are too few for a fit
  const Summary mixed = summarize(records, 6);
  ASSERT_EQ(mixed.fits.size(), 1u);
  EXPECT_THAT(mixed.fits[0].series, HasSubstr("ring"));
  records[5].status = PointStatus::kSkippedMemory;
  EXPECT_EQ(summarize(records, 6).verdict, "pass");
  EXPECT_TRUE(summarize(records, 6).fits.empty());
  records[5].status = PointStatus::kCheckFailed;
  EXPECT_EQ(summarize(records, 7).verdict, "fail");
}

// Two batches of one series, whose times lie on two lines; then batches of a constant number of
// tokens, which are one line: figure 5 of the paper.
TEST(Summary, FitsNeverMixBatches) {
  const auto record = [](int64_t seq_len, int64_t batch, double median_s) {
    PointRecord r = ok_record(points()[0], 1);
    r.params.problem.seq_len = seq_len;
    r.params.problem.batch = batch;
    set_timing(r, std::vector<double>(10, median_s), 3);
    return r;
  };
  std::vector<PointRecord> two, tokens;
  for (const int64_t n : {1024, 2048, 4096}) {
    two.push_back(record(n, 1, double(n)));
    two.push_back(record(n, 8, n == 4096 ? 1 : 8 * double(n) * double(n)));
    tokens.push_back(record(n, 4096 / n, 7));
  }
  const Summary apart = summarize(two, 6), together = summarize(tokens, 3);
  ASSERT_EQ(apart.fits.size(), 2u);
  EXPECT_NEAR(apart.fits[0].exponent, 1, 1e-9);
  EXPECT_TRUE(apart.fits[0].series.ends_with(" batch=1"));
  EXPECT_TRUE(apart.fits[1].series.ends_with(" batch=8"));
  ASSERT_EQ(together.fits.size(), 1u);
  EXPECT_NEAR(together.fits[0].exponent, 0, 1e-9);
  EXPECT_TRUE(together.fits[0].series.ends_with(" tokens_per_batch=4K"));
}

TEST(Summary, AnExponentHasAnIntervalWhereEachMedianHasOne) {
  std::vector<PointRecord> records;
  for (const int64_t n : {1024, 2048, 4096}) {  // median n, in [n / 2, 2 n]
    records.push_back(ok_record(points()[0], 1));
    records.back().params.problem.seq_len = n;
    const double t = double(n);
    set_timing(records.back(), std::vector<double>{t / 2, t / 2, t, 2 * t, 2 * t}, 3);
  }
  const FitRecord fit = summarize(records, 3).fits[0];
  EXPECT_NEAR(fit.exponent, 1, 1e-9);
  EXPECT_NEAR(fit.exponent_low, 0, 1e-9);
  EXPECT_NEAR(fit.exponent_high, 2, 1e-9);
  for (PointRecord& r : records) r.source = Source::kSimulated;  // a band is no scatter
  EXPECT_TRUE(std::isnan(summarize(records, 3).fits[0].exponent_low));
  for (PointRecord& r : records) r.source = Source::kMeasured;
  set_timing(records[1], std::vector<double>(4, 2048), 3);  // four samples: 88 %
  EXPECT_NEAR(summarize(records, 3).fits[0].exponent, 1, 1e-9);
  EXPECT_TRUE(std::isnan(summarize(records, 3).fits[0].exponent_high));
}

TEST(Summary, ASeriesIsOneSetOfOptions) {
  PointRecord r = ok_record(points()[0], 1);
  std::vector<std::string> names{series_name(r.params)};
  r.params.collective = "bruck";
  names.push_back(series_name(r.params));
  r.params.options = {.ulysses_degree = 2, .ring_inner = 2};
  names.push_back(series_name(r.params));
  r.params.options.head_slice = 2;
  names.push_back(series_name(r.params));
  EXPECT_THAT(names[3], HasSubstr("ulysses_degree=2 ring_inner=2 head_slice=2"));
  for (size_t i = 1; i < names.size(); ++i) EXPECT_NE(names[i], names[i - 1]);
}

}  // namespace
}  // namespace longnet
