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
  const auto reason_of = [&](int64_t queries, int64_t keys, int64_t values, MixRule mix) {
    record = make_record(small_point("dilated", 2));
    record.params.pattern.mix = mix;
    set_gradients(record,
                  {CheckOutcome{.queries = queries + 3, .chosen = queries, .pass = true},
                   CheckOutcome{.queries = keys, .chosen = keys, .pass = true},
                   CheckOutcome{.queries = values, .chosen = values, .pass = true}},
                  {}, {samples, chosen});
    return record.reason;
  };
  EXPECT_EQ(reason_of(8, 4, 4, MixRule::kLse), "");
  EXPECT_EQ(reason_of(0, 4, 4, MixRule::kLse), "dQ of 0 of 8 sampled queries was compared");
  EXPECT_EQ(reason_of(8, 3, 4, MixRule::kLse), "dK of 3 of 4 sampled keys was compared");
  EXPECT_EQ(reason_of(8, 4, 5, MixRule::kLse), "dV of 5 of 4 sampled keys was compared");
  chosen.strata_left_out = 2;
  EXPECT_EQ(reason_of(8, 4, 4, MixRule::kLse),
            "2 of 9 strata (branch, K/V head, rank) have no checked key");
  chosen.keys.resize(kMostKeys);
  EXPECT_EQ(reason_of(8, kMostKeys, kMostKeys, MixRule::kLse), "");
  EXPECT_EQ(record.check.gradients->strata, 9);
  EXPECT_EQ(record.check.gradients->strata_left_out, 2);
  chosen = {};
  EXPECT_EQ(reason_of(8, 0, 0, MixRule::kMean), "");
  EXPECT_EQ(reason_of(7, 0, 0, MixRule::kSum), "dQ of 7 of 8 sampled queries was compared");
  EXPECT_EQ(reason_of(8, 0, 0, MixRule::kLse), "dK and dV of no key were compared");
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

// A ring of two: one message of K and V of a shard. `change` may spoil what was counted or held;
// `told` is what the record says that ran.
PointRecord record_of_ring(const std::function<void(FakeSession&)>& change,
                           const PointParams& told = small_point("ring", 2).params) {
  const PointPlan plan = small_plan("ring", 2);
  const Schedule schedule = make_schedule(plan.point.params);
  PointRecord root;
  run_on_threads(2, [&](Communicator& comm) {
    PointRecord record = make_record(plan.point);
    record.params = told;
    FakeSession session(comm);
    session.bind(schedule);
    const TaggedBuffer workspace(session.own_ledger(), kWorkspaceTag, plan.workspace_bytes);
    const RankAccount once = account(schedule.sharded, schedule.program(comm.rank()), comm.rank());
    session.counted = {
        .bytes_sent = 3 * once.bytes_sent,
        .messages_sent = 3 * once.messages_sent,
        .bytes_received = 3 * once.bytes_received,
        .messages_received =
            3 * received_messages(schedule.sharded, schedule.program(comm.rank()), comm.rank())};
    if (comm.rank() == 1) change(session);
    SampleSet samples;
    samples.samples_s = {1, 1};
    samples.own_s = {1.0 + comm.rank()};
    samples.warmup = 1;
    record_counts(record, session, plan, samples, comm);
    if (comm.rank() == 0) root = record;
  });
  return root;
}

TEST(FillRecord, CountsAreHeldAgainstThePrediction) {
  const PointRecord right = record_of_ring([](FakeSession&) {});
  EXPECT_EQ(right.status, PointStatus::kOk) << right.reason;
  EXPECT_EQ(right.comm.counted_bytes_per_rank, 2 * 2 * 128 * 4 * 16 * 4);  // K, V, batch, rows
  EXPECT_EQ(right.comm.predicted_bytes_per_rank, right.comm.counted_bytes_per_rank);
  EXPECT_EQ(right.comm.closed_form_bytes_per_rank, right.comm.counted_bytes_per_rank);
  EXPECT_EQ(right.comm.predicted_messages_per_rank, 1);
  EXPECT_EQ(right.comm.closed_form_messages_per_rank, 1);
  EXPECT_EQ(right.memory.measured_peak_bytes, right.memory.predicted_peak_bytes);
  ASSERT_EQ(right.per_rank.size(), 2u);
  EXPECT_EQ(right.per_rank[1].median_s, 2);
  EXPECT_EQ(right.per_rank[0].pairs + right.per_rank[1].pairs, 2.0 * 4 * 256 * 256);
  for (int64_t CommCounters::*const count :
       {&CommCounters::bytes_sent, &CommCounters::messages_sent, &CommCounters::bytes_received,
        &CommCounters::messages_received}) {
    const PointRecord lost = record_of_ring([&](FakeSession& s) { s.counted.*count -= 1; });
    EXPECT_EQ(lost.status, PointStatus::kCheckFailed);
    EXPECT_THAT(lost.reason, testing::HasSubstr("bytes or messages"));
  }
}

TEST(FillRecord, WhatALibraryMovedIsModelled) {
  EXPECT_FALSE(record_of_ring([](FakeSession&) {}).comm.modelled_bytes_per_rank);
  // Rank 1's: of the ranks that send most, the one with most of that.
  const PointRecord some = record_of_ring([](FakeSession& s) {
    s.counted.modelled_bytes_sent = s.counted.bytes_sent;
    s.counted.modelled_messages_sent = s.counted.messages_sent;
  });
  EXPECT_EQ(some.status, PointStatus::kOk) << some.reason;
  EXPECT_EQ(some.comm.counted_bytes_per_rank, 0);
  EXPECT_EQ(some.comm.counted_messages_per_rank, 0);
  EXPECT_EQ(some.comm.modelled_bytes_per_rank, some.comm.predicted_bytes_per_rank);
  EXPECT_EQ(some.comm.modelled_messages_per_rank, 1);
}

// Counts and program agree, and both are those of something else.
TEST(FillRecord, ClosedFormsAreHeldAgainstProgramAndCounts) {
  PointParams other = small_point("ring", 2).params;
  other.problem.num_kv_heads = 2;  // half the bytes
  const PointRecord bytes = record_of_ring([](FakeSession&) {}, other);
  EXPECT_EQ(bytes.status, PointStatus::kCheckFailed);
  EXPECT_THAT(bytes.reason,
              testing::StartsWith("a closed form says of rank 0: 65536 B sent in 1 "));
  const PointRecord memory =
      record_of_ring([](FakeSession&) {}, small_point("all_gather", 2).params);
  EXPECT_EQ(memory.status, PointStatus::kCheckFailed);
  EXPECT_THAT(memory.reason, testing::StartsWith("a closed form says"));
  // Where none is known the record says so.
  other = small_point("dilated", 2).params;
  other.pattern.phase_parts = 2;
  const PointRecord none = record_of_ring([](FakeSession&) {}, other);
  EXPECT_EQ(none.status, PointStatus::kOk) << none.reason;
  EXPECT_FALSE(none.comm.closed_form_bytes_per_rank || none.comm.closed_form_messages_per_rank ||
               none.memory.closed_form_bytes);
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

TEST(FillRecord, MemoryIsHeldAgainstThePrediction) {
  const PointRecord more = record_of_ring(
      [](FakeSession& s) { const TaggedBuffer forgotten(s.own_ledger(), "forgotten", 64); });
  EXPECT_EQ(more.status, PointStatus::kCheckFailed);
  EXPECT_THAT(more.reason, testing::HasSubstr("memory"));
  const PointRecord swapped = record_of_ring([](FakeSession& s) {
    auto by_tag = s.own_ledger().peak_by_tag();
    std::swap(by_tag.at("query"), by_tag.at("key_value"));
    s.own_ledger() = {};
    for (const auto& [tag, bytes] : by_tag) CountedBytes(s.own_ledger(), tag, bytes, nullptr);
  });
  EXPECT_EQ(swapped.memory.measured_peak_bytes, swapped.memory.predicted_peak_bytes);
  EXPECT_EQ(swapped.reason, "measured memory differs from the predicted");
  for (const char* tag : {kTaskLists, kProgramLists}) {
    const PointRecord lists =
        record_of_ring([&](FakeSession& s) { const TaggedBuffer some(s.own_ledger(), tag, 64); });
    EXPECT_EQ(lists.status, PointStatus::kOk) << lists.reason;
    EXPECT_EQ(lists.memory.measured_peak_bytes == lists.memory.predicted_peak_bytes,
              tag == std::string_view(kProgramLists));
  }
}

TEST(FillRecord, ContentAndTimelineAreOfAllRanks) {
  const PointPlan plan = small_plan("ring", 2);
  const Schedule schedule = make_schedule(plan.point.params);
  const auto content = [&](int ranks, const Schedule& of) {
    PointRecord root;
    run_on_threads(ranks, [&](Communicator& comm) {
      PointRecord record = make_record(plan.point);
      FakeSession session(comm);
      session.bind(of);
      session.executor().fill_inputs();
      record_content(record, session.executor(), session.worker(), comm);
      record_timeline(record, session.executor(), comm);
      if (comm.rank() == 0) root = record;
    });
    return root;
  };
  const PointRecord two = content(2, schedule);
  const PointRecord one = content(1, make_schedule(small_point("local", 1).params));
  EXPECT_EQ(two.content->input_digest, one.content->input_digest);
  EXPECT_EQ(two.content->rows, 2 * 256 * 4);
  EXPECT_EQ(two.status, PointStatus::kOk) << two.reason;
  // A layout that loses half of the tokens.
  EXPECT_EQ(content(2, make_schedule(small_point("ring", 2, 128).params)).reason,
            "the output has 1024 rows, there should be 2048");
  const size_t ops = schedule.program(0).ops.size();
  ASSERT_EQ(two.timeline.size(), 2 * ops);
  EXPECT_EQ(two.timeline.back().rank, 1);
}

}  // namespace
}  // namespace longnet
