#include "run/fill_record.h"

#include <gmock/gmock.h>

#include <cmath>

#include "comm/threads/thread_world.h"
#include "core/cuda/device.h"
#include "execute/program_executor.h"
#include "run/plan_point.h"
#include "run/testing/fake_session.h"
#include "run/testing/points.h"
#include "schedule/accounting.h"

namespace longnet {
namespace {

TEST(FillRecord, WorkIsTokensCoverageAndRates) {
  PointRecord record = make_record(small_point("dilated", 1));
  set_work(record, 8e9, 1, 0.5);
  EXPECT_EQ(record.work.tokens, 512);
  EXPECT_EQ(record.work.coverage, (std::vector<double>{1, 0.25}));
  EXPECT_TRUE(std::isnan(record.work.flops_per_s));  // before timing
  set_timing(record, {4}, 0);
  EXPECT_EQ(record.work.flops_per_s, 2e9);
}

// Others halve the machine beside the second and third sample: the best peak would make 0.4 of what
// was 0.8 of the peak at that moment.
TEST(FillRecord, AShareOfPeakIsTheMedianOfTheSamplesOwn) {
  PointRecord record;
  set_share_of_peak(record, {9e9, 4e9, 3.5e9, 1e9}, {10e9, 5e9, 5e9, 0});
  EXPECT_DOUBLE_EQ(record.work.share_of_peak, 0.8);
  EXPECT_DOUBLE_EQ(record.work.peak_flops_per_s, 10e9);
  PointRecord unknown;
  set_share_of_peak(unknown, {8e9}, {0});
  EXPECT_TRUE(std::isnan(unknown.work.share_of_peak));
  set_share_of_peak(unknown, {8e9, 9e9}, {6e9, 10e9}, 12e9);  // 1.33 and 0.9
  EXPECT_TRUE(std::isnan(unknown.work.share_of_peak));
  EXPECT_DOUBLE_EQ(unknown.work.peak_flops_per_s, 12e9);
}

TEST(FillRecord, EveryFailedCheckIsNamed) {
  PointRecord record;
  fail_check(record, "one");
  fail_check(record, "two");
  EXPECT_EQ(record.status, PointStatus::kCheckFailed);
  EXPECT_EQ(record.reason, "one; two");
}

TEST(FillRecord, AWrongOutputFailsThePoint) {
  PointRecord record;
  set_check(record, {.queries = 4, .rel_l2_error = 1e-7, .tolerance = 1e-6, .pass = true}, false);
  EXPECT_EQ(record.status, PointStatus::kOk);
  EXPECT_EQ(record.check.status, "pass");
  set_check(record, {.nan_values = 3, .rel_l2_error = 0.5, .tolerance = 1e-6}, false);
  EXPECT_EQ(record.status, PointStatus::kCheckFailed);
  EXPECT_THAT(record.reason, testing::HasSubstr("3 values never written"));
  record = {};
  set_check(record, {.pass = true}, /*passes_poison=*/true);
  EXPECT_EQ(record.reason, "the check passes an output that nobody wrote");
}

TEST(FillRecord, GradientsThatNobodyComparedFailThePoint) {
  const SampleChoice samples{.queries = std::vector<QuerySample>(8)};
  KeyChoice chosen{.keys = std::vector<KeySample>(4), .strata = 9};
  PointRecord record;
  const auto reason_of = [&](int64_t queries, int64_t keys, int64_t values) {
    record = make_record(small_point("dilated", 2));
    set_gradients(record,
                  {CheckOutcome{.queries = queries + 3, .chosen = queries, .pass = true},
                   CheckOutcome{.queries = keys, .chosen = keys, .pass = true},
                   CheckOutcome{.queries = values, .chosen = values, .pass = true}},
                  {}, {samples, chosen});
    return record.reason;
  };
  EXPECT_EQ(reason_of(8, 4, 4), "");
  EXPECT_EQ(reason_of(0, 4, 4), "dQ of 0 of 8 sampled queries was compared");
  EXPECT_EQ(reason_of(8, 3, 4), "dK of 3 of 4 sampled keys was compared");
  EXPECT_EQ(reason_of(8, 4, 5), "dV of 5 of 4 sampled keys was compared");
  chosen.strata_left_out = 2;
  EXPECT_EQ(reason_of(8, 4, 4), "2 of 9 strata (branch, K/V head, rank) have no checked key");
  chosen.is_full = true;
  EXPECT_EQ(reason_of(8, 4, 4), "");
  EXPECT_EQ(record.check.gradients->strata, 9);
  EXPECT_EQ(record.check.gradients->strata_left_out, 2);
  chosen.keys.clear();
  EXPECT_EQ(reason_of(8, 0, 0), "");
  chosen = {};
  EXPECT_EQ(reason_of(8, 0, 0), "dK and dV of no key were compared");
}

TEST(FillRecord, AnEmptyStratumFailsUnlessTheBudgetIsUsedUp) {
  const SampleChoice choice{
      .queries = std::vector<QuerySample>(8), .strata = 20, .strata_left_out = 3};
  PointRecord record;
  set_strata(record, choice, 8, 8);
  EXPECT_EQ(record.status, PointStatus::kOk);
  EXPECT_EQ(record.check.strata_left_out, 3);
  set_strata(record, choice, 8, 9);
  EXPECT_THAT(record.reason, testing::HasSubstr("3 of 20 strata"));
  for (const int64_t compared : {7, 9}) {
    record = {};
    set_strata(record, choice, compared, 8);
    EXPECT_EQ(record.status, PointStatus::kCheckFailed);
    EXPECT_EQ(record.reason, concat(compared, " of 8 sampled queries were compared"));
  }
}

TEST(FillRecord, ContentGoesThereAndBack) {
  const OutputSummary o{.rows = 8,
                        .absent_rows = 1,
                        .nan_values = 2,
                        .sum = 3,
                        .sum_squares = 4,
                        .min = -1,
                        .max = 5,
                        .lse_sum = 6,
                        .digest = 7};
  for (const OutputSummary& written : {o, OutputSummary{}}) {  // an empty one has infinite extremes
    OutputSummary read;
    read_fields(write_fields(written), read);
    EXPECT_EQ(read, written);
  }
}

TEST(FillRecord, OutOfMemorySaysHowMuch) {
  const PointPlan plan = small_plan("ring", 2);
  EXPECT_THAT(
      out_of_memory_reason(std::bad_alloc(), plan, " per rank"),
      testing::AllOf(testing::StartsWith("the machine refused "), testing::EndsWith(" per rank")));
  EXPECT_EQ(out_of_memory_reason(DeviceOutOfMemory("full"), plan, " per rank"), "full");
}

TEST(FillRecord, EachCheckOfAModelFailsAlone) {
  const ModelOutcome step{.lowest_loss = 4,
                          .highest_loss = 4,
                          .gradient_norm = 2,
                          .norm_of_step = 2,
                          .slope = 1,
                          .random_error = 1e-3,
                          .update_error = 1e-4,
                          .attention = {.pass = true}};
  const ModelOutcome forward{
      .lowest_loss = 4, .highest_loss = 4, .loss_without_weights = 1, .attention = {.pass = true}};
  const auto reason_of = [](const ModelOutcome& outcome, bool passes_poison = false) {
    PointRecord record = make_record(small_point("dilated", 1));
    set_model_check(record, outcome, passes_poison);
    return record.reason;
  };
  EXPECT_EQ(reason_of(step), "");
  EXPECT_EQ(reason_of(forward), "");
  const auto expect_fails = [&](ModelOutcome outcome, const char* why, const auto& change) {
    change(outcome);
    EXPECT_THAT(reason_of(outcome), testing::HasSubstr(why));
  };
  using M = ModelOutcome;
  expect_fails(step, "are NaN", [](M& o) { o.nan_values = 1; });
  expect_fails(step, "loss of the runs differs", [](M& o) { o.highest_loss = 4.0000001; });
  expect_fails(step, "gradients of the runs differ", [](M& o) { o.same_gradients = false; });
  expect_fails(step, "rows of attention", [](M& o) { o.attention.pass = false; });
  expect_fails(step, "along its gradient", [](M& o) { o.slope = 0.999; });
  expect_fails(step, "in a random direction", [](M& o) { o.random_error = 0.02; });
  expect_fails(step, "in a random direction", [](M& o) { o.random_error = kNotMeasured; });
  expect_fails(step, "off from AdamW", [](M& o) { o.update_error = 1; });
  expect_fails(step, "clips by a norm", [](M& o) { o.norm_of_step = 1.9; });
  for (const double error : {0.05, kNotMeasured}) {
    PointRecord narrow = make_record(small_point("dilated", 1));
    narrow.params.problem.dtype = DType::kBFloat16;
    ModelOutcome outcome = step;
    outcome.bf16_error = error;
    set_model_check(narrow, outcome, false);
    EXPECT_THAT(narrow.reason, testing::HasSubstr("off from those in fp32"));
  }
  expect_fails(forward, "not that of every row", [](M& o) { o.loss_without_weights = 0.5; });
  expect_fails(forward, "not that of every row",
               [](M& o) { o.loss_without_weights = kNotMeasured; });
  EXPECT_THAT(reason_of(step, /*passes_poison=*/true), testing::HasSubstr("nobody wrote"));
}

TEST(FillRecord, ResidentMemoryIsOfTheProcessThatDiffersMost) {
  constexpr int64_t kGiB = 1 << 30;
  PointRecord record;
  set_resident_memory(record, kGiB, kLeastHeldToTell - 1);
  EXPECT_FALSE(record.memory.resident_growth_bytes);  // too little to tell
  set_resident_memory(record, kGiB + kGiB / 8, kGiB);
  set_resident_memory(record, kGiB - kGiB / 4, kGiB);
  set_resident_memory(record, kGiB, kGiB);
  EXPECT_EQ(record.memory.resident_growth_bytes, kGiB - kGiB / 4);
  EXPECT_EQ(record.memory.resident_difference, -0.25);
}

}  // namespace
}  // namespace longnet
