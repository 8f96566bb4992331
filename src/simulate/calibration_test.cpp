// Fits: exact lines come back, noise moves them little, nothing turns negative.
#include "simulate/calibration.h"

#include <gmock/gmock.h>

#include <array>

#include "core/check.h"

namespace longnet {
namespace {

TEST(Calibration, ALineOfMessagesIsFittedExactly) {
  std::vector<MessageTime> times;
  for (double bytes = 64; bytes <= 1 << 24; bytes *= 4)
    times.push_back({bytes, 12e-6 + bytes / 100e6});
  const LinkFit fit = fit_link(times);
  EXPECT_NEAR(fit.alpha_s, 12e-6, 1e-12);
  EXPECT_NEAR(fit.bytes_per_s, 100e6, 1);
  EXPECT_LT(fit.max_rel_error, 1e-9);
}

// Without relative weights the 16 MB message would decide everything and alpha would be lost.
TEST(Calibration, SmallMessagesCountAsMuchAsLargeOnes) {
  std::vector<MessageTime> times;
  int i = 0;
  for (double bytes = 64; bytes <= 1 << 24; bytes *= 4)
    times.push_back({bytes, (12e-6 + bytes / 100e6) * (i++ % 2 == 0 ? 1.02 : 0.98)});
  const LinkFit fit = fit_link(times);
  EXPECT_NEAR(fit.alpha_s / 12e-6, 1, 0.02);
  EXPECT_NEAR(fit.bytes_per_s / 100e6, 1, 0.02);
  EXPECT_LT(fit.max_rel_error, 0.05);
}

// Three messages through a token bucket lie on a line that begins below 0: alpha stays 0.
TEST(Calibration, CoefficientsAreNeverNegative) {
  const std::vector<MessageTime> times{{1e5, 0.5e-3}, {1e6, 9.5e-3}, {1e7, 99.5e-3}};
  const LinkFit fit = fit_link(times);
  EXPECT_EQ(fit.alpha_s, 0);
  EXPECT_GT(fit.bytes_per_s, 0);
  EXPECT_GT(fit.max_rel_error, 0.1);
  EXPECT_THROW(fit_link(std::vector<MessageTime>{{1e2, 1e-3}, {1e3, 1e-3}, {1e4, 1e-3}}), Error);
  EXPECT_THROW(fit_link(std::vector<MessageTime>{{100, 1e-3}}), Error);
  EXPECT_THROW(fit_link(std::vector<MessageTime>{{100, 0}, {200, 1}}), Error);
}

TEST(Calibration, AttendIsSplitIntoItsParts) {
  std::vector<AttendTime> times;
  for (const auto& [blocks, queries, keys] : std::vector<std::array<double, 3>>{{1, 2048, 2048},
                                                                                {1, 2048, 256},
                                                                                {1, 64, 4096},
                                                                                {16, 16, 16},
                                                                                {4, 256, 256},
                                                                                {1, 512, 1024}}) {
    const AttendCounts c{blocks, blocks * queries, blocks * keys, blocks * queries * keys};
    times.push_back({c, c.blocks * 2e-7 + c.queries * 3e-8 + c.key_rows * 2e-8 + c.pairs * 2.5e-9});
  }
  const AttendFit fit = fit_attend(times);
  EXPECT_NEAR(fit.block_s, 2e-7, 1e-13);
  EXPECT_NEAR(fit.query_s, 3e-8, 1e-14);
  EXPECT_NEAR(fit.key_s, 2e-8, 1e-14);
  EXPECT_NEAR(fit.pair_s, 2.5e-9, 1e-15);
  EXPECT_LT(fit.max_rel_error, 1e-6);
}

TEST(Calibration, AProductIsItsFlopsAndItsBytes) {
  std::vector<GemmTime> times;
  for (const auto& [flops, bytes] : {std::pair{1e9, 1e6}, {1e9, 1e7}, {1e8, 1e7}, {1e10, 1e6}})
    times.push_back({flops, bytes, flops / 1e11 + bytes / 1e10});
  const GemmFit fit = fit_gemm(times);
  EXPECT_NEAR(fit.flops_per_s, 1e11, 1e3);
  EXPECT_NEAR(fit.bytes_per_s, 1e10, 1e2);
  EXPECT_LT(fit.max_rel_error, 1e-9);
  for (GemmTime& t : times) t.seconds = t.flops / 1e11;
  EXPECT_EQ(fit_gemm(times).bytes_per_s, 0);
}

}  // namespace
}  // namespace longnet
