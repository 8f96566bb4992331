#include "run/record_ranks.h"

#include <gmock/gmock.h>

#include "comm/threads/thread_world.h"
#include "core/tagged_memory.h"
#include "run/plan_point.h"
#include "run/testing/fake_session.h"
#include "run/testing/points.h"
#include "schedule/accounting.h"

namespace longnet {
namespace {

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

TEST(RecordRanks, CountsAreHeldAgainstThePrediction) {
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

TEST(RecordRanks, WhatALibraryMovedIsModelled) {
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
TEST(RecordRanks, ClosedFormsAreHeldAgainstProgramAndCounts) {
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

TEST(RecordRanks, MemoryIsHeldAgainstThePrediction) {
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

TEST(RecordRanks, ContentAndTimelineAreOfAllRanks) {
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
