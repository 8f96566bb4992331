#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "comm/threads/thread_world.h"
#include "run/backend.h"
#include "run/measure_point.h"
#include "run/plan_point.h"
#include "run/testing/fake_session.h"
#include "run/testing/points.h"

namespace longnet {
namespace {

PointRecord phases_of(int ranks, bool ablations, const std::function<void(FakeExecutor&)>& change,
                      std::vector<RunMode>* runs = nullptr) {
  const Point point = small_point(ranks == 1 ? "local" : "ring", ranks);
  PointRecord root;
  run_on_threads(ranks, [&](Communicator& comm) {
    PointRecord record = make_record(point);
    record.timing.median_s = 5;  // worth two rounds
    FakeSession session(comm);
    session.bind(make_schedule(point.params));
    if (comm.rank() == 1) session.fake().of_phases = {2.25, 0.5, 0, 1.75};  // the busiest
    change(session.fake());
    record_phases(record, session, ablations, comm);
    EXPECT_FALSE(session.fake().timed);
    if (comm.rank() != 0) return;
    root = record;
    if (runs != nullptr) *runs = session.fake().runs;
  });
  return root;
}

TEST(Ablations, WhatOverlapHides) {
  const PointRecord r = phases_of(2, true, [](FakeExecutor&) {});
  ASSERT_TRUE(r.ablations);
  EXPECT_EQ(r.ablations->full_s, 5);
  EXPECT_EQ(r.ablations->compute_only_s, 3);
  EXPECT_EQ(r.ablations->communication_only_s, 2.5);
  EXPECT_EQ(r.ablations->serialised_s, 5.5);
  EXPECT_DOUBLE_EQ(r.ablations->single_attend_s, 0.8);  // 100 of 125 listed pairs
  EXPECT_EQ(r.phases.exposed_communication_s, 2);
  EXPECT_EQ(r.phases.communication_s, 2.5);
  EXPECT_EQ(r.phases.compute_s, 2.25);
  EXPECT_EQ(r.phases.merge_s, 0.5);
  EXPECT_EQ(r.metrics.at("attend_s"), 1.75);
}

TEST(Ablations, MergesThatTakeNoTimeFailThePoint) {
  for (const bool every_run : {true, false}) {  // as on the host, as on a GPU
    const PointRecord r = phases_of(2, true, [=](FakeExecutor& fake) {
      fake.every_run = every_run;
      fake.of_phases.merge_s = 0;
    });
    EXPECT_EQ(r.status, PointStatus::kCheckFailed);
    EXPECT_NE(r.reason.find("merges"), std::string::npos);
  }
}

TEST(Ablations, OneRankHasNothingToLeaveOutButFragments) {
  const PointRecord r = phases_of(1, true, [](FakeExecutor&) {});
  ASSERT_TRUE(r.ablations);
  EXPECT_EQ(r.ablations->compute_only_s, 5);
  EXPECT_EQ(r.ablations->serialised_s, 5);
  EXPECT_EQ(r.ablations->communication_only_s, 0);
  EXPECT_EQ(r.phases.exposed_communication_s, 0);
}

TEST(Ablations, WithoutThemTheLastSampleCounts) {
  std::vector<RunMode> runs;
  const PointRecord r = phases_of(
      2, false, [](FakeExecutor&) {}, &runs);
  EXPECT_FALSE(r.ablations);
  EXPECT_TRUE(runs.empty());
  EXPECT_EQ(r.phases.compute_s, 2.25);
  EXPECT_TRUE(std::isnan(r.phases.communication_s));
}

// An executor like a GPU's: noting the times of ops costs time, and there is no big attend.
TEST(Ablations, TimesOfOpsMayNeedARunOfTheirOwn) {
  const auto like_a_gpu = [](FakeExecutor& e) { e.every_run = false, e.single_s = 0; };
  std::vector<RunMode> runs;
  const PointRecord r = phases_of(2, true, like_a_gpu, &runs);
  EXPECT_EQ(runs.size(), 5u + 2 * 5);  // each once to warm up, then two rounds
  EXPECT_EQ(std::ranges::count(runs, RunMode::kComputeOnly), 2 + 2 * 2);
  EXPECT_EQ(r.ablations->full_s, 5);
  EXPECT_TRUE(std::isnan(r.ablations->single_attend_s));
  const PointRecord alone = phases_of(1, true, like_a_gpu);
  EXPECT_FALSE(alone.ablations);
  EXPECT_EQ(alone.phases.compute_s, 2);
  EXPECT_EQ(alone.phases.communication_s, 0);
}

TEST(Ablations, RunsAreCounted) {
  for (const int ranks : {1, 2})
    for (const char* kernel : {"cpu", "cuda"})
      for (const Scope scope : {Scope::kAttention, Scope::kModel}) {
        PointParams p = small_point("ring", ranks).params;
        p.kernel = kernel;
        p.scope = scope;
        std::vector<RunMode> runs;
        const auto like_it = [&](FakeExecutor& e) {
          e.every_run = !on_gpu(p);
          if (on_gpu(p) || has_layers(scope)) e.single_s = 0;
        };
        phases_of(ranks, true, like_it, &runs);
        EXPECT_EQ(ablation_runs(5, p), int(runs.size())) << ranks << kernel << to_string(scope);
      }
  EXPECT_EQ(ablation_runs(0.1, small_point("local", 1).params), 5 * 2);
}

}  // namespace
}  // namespace longnet
