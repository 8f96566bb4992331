#include "run/measure_point.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "comm/testing/damaged_communicator.h"
#include "comm/threads/thread_world.h"
#include "execute/gradient_check.h"
#include "io/sha256.h"
#include "measure/resident_memory.h"
#include "run/testing/points.h"
#include "run/walk_point.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

RunnerOptions quick_options() {
  RunnerOptions options;
  options.measure = {.warmup = 1, .min_samples = 2, .max_samples = 2};
  options.check.sampled_queries = 64;
  options.peak_flops_per_thread = 1e9;
  return options;
}

PointRecord measured(const PointPlan& plan, const RunnerOptions& options) {
  PointRecord root;
  run_on_threads(plan.point.params.ranks, [&](Communicator& comm) {
    PointRecord mine = measure_point(plan, options, comm);
    if (comm.rank() == 0) root = std::move(mine);
  });
  return root;
}

TEST(MeasurePoint, ARecordIsComplete) {
  const PointRecord r = measured(small_plan("ring", 2), quick_options());
  EXPECT_EQ(r.status, PointStatus::kOk) << r.reason;
  EXPECT_EQ(r.params.transport, "threads");
  EXPECT_EQ(r.timing.samples_s.size(), 2u);
  EXPECT_EQ(r.timing.reduction, "span");
  EXPECT_EQ(r.check.status, "pass");
  EXPECT_EQ(r.comm.counted_bytes_per_rank, r.comm.predicted_bytes_per_rank);
  EXPECT_EQ(r.memory.measured_peak_bytes, r.memory.predicted_peak_bytes);
  EXPECT_GT(r.memory.by_tag.at("program_lists"), 0);
  EXPECT_EQ(r.content->rows, 2 * 256 * 4);
  EXPECT_EQ(r.content->nan_values, 0);
  EXPECT_EQ(r.per_rank.size(), 2u);
  EXPECT_FALSE(r.timeline.empty());
  ASSERT_TRUE(r.ablations);
  EXPECT_GT(r.ablations->communication_only_s, 0);
  EXPECT_LE(r.phases.compute_s + r.phases.merge_s, r.ablations->compute_only_s);
  EXPECT_GT(r.work.peak_flops_per_s, 0);
  EXPECT_FALSE(r.work.share_of_peak <= 0);  // not known beside a busy program
  EXPECT_GE(r.metrics.at("usable_cores"), 1);
}

TEST(MeasurePoint, ContentDoesNotDependOnRanks) {
  const PointRecord one = measured(small_plan("dilated", 1), quick_options());
  const PointRecord three = measured(small_plan("dilated", 3), quick_options());
  EXPECT_EQ(one.content->input_digest, three.content->input_digest);
  EXPECT_NEAR(one.content->sum, three.content->sum, 1e-3);
  EXPECT_EQ(one.content->absent_rows, three.content->absent_rows);
}

PointRecord measured_pass(const std::string& algorithm, int ranks, Pass pass, int threads = 1) {
  RunnerOptions options = quick_options();
  options.ablations = ranks > 1;
  Point point = small_point(algorithm, ranks);
  point.params.pass = pass;
  const PointRecord r = measured(plan_point(point, {}, threads, ranks), options);
  EXPECT_EQ(r.status, PointStatus::kOk) << algorithm << " " << to_string(pass) << ": " << r.reason;
  return r;
}

TEST(MeasurePoint, GradientsAreCheckedAndRecorded) {
  for (const char* algorithm : {"ring", "dilated"}) {
    const PointRecord r = measured_pass(algorithm, 2, Pass::kBackward);
    EXPECT_EQ(r.comm.closed_form_bytes_per_rank, r.comm.counted_bytes_per_rank);
    EXPECT_EQ(r.memory.measured_peak_bytes, r.memory.predicted_peak_bytes);
    ASSERT_TRUE(r.check.gradients);
    EXPECT_GT(r.check.gradients->keys, 10);
    EXPECT_GT(r.check.gradients->dk_rel_l2_error, 0);
    EXPECT_LE(r.check.gradients->dv_rel_l2_error, r.check.tolerance);
    EXPECT_LE(r.check.gradients->sum_dk, r.check.gradients->law_tolerance);
    EXPECT_EQ(r.check.runs, 3);
    ASSERT_TRUE(r.ablations);
    EXPECT_TRUE(std::isnan(r.ablations->single_attend_s));
    EXPECT_EQ(measured_pass(algorithm, 2, Pass::kForward).content->digest, r.content->digest);
  }
}

// A world of one rank, where the terms of the laws come wrong the first time that they are summed.
class WrongLaws final : public LateCommunicator {
 public:
  explicit WrongLaws(Communicator& comm) : LateCommunicator(comm, 1 << 20) {}
  void all_sum(std::span<double> values) override {
    LateCommunicator::all_sum(values);
    if (values.size() == LawTerms().products.size() && judged++ == 0) values[0] += 1e3;
  }
  int judged = 0;
};

TEST(MeasurePoint, LawsOfTheFirstSampleTheLastAndOneBetweenAreJudged) {
  RunnerOptions options = quick_options();
  options.ablations = false;
  options.measure = {.warmup = 1, .min_samples = 5, .max_samples = 5};
  Point point = small_point("local", 1);
  point.params.pass = Pass::kForwardBackward;
  run_on_threads(1, [&](Communicator& comm) {
    WrongLaws wrong(comm);
    const PointRecord r = measure_point(plan_point(point, {}, 1, 1), options, wrong);
    EXPECT_EQ(wrong.judged, 3);
    EXPECT_THAT(r.reason, testing::HasSubstr("a law of conservation is broken"));
  });
}

TEST(MeasurePoint, GradientsHaveTheSameBitsForAnyThreadsAndInBothPasses) {
  const ContentRecord once = *measured_pass("dilated", 2, Pass::kBackward).content;
  const auto expect_same = [&](Pass pass, int threads) {
    const ContentRecord other = *measured_pass("dilated", 2, pass, threads).content;
    EXPECT_EQ(other.gradient_digests, once.gradient_digests);
    EXPECT_EQ(other.digest, once.digest);
    EXPECT_EQ(other.input_digest, once.input_digest);
  };
  for (const int threads : {2, 4}) expect_same(Pass::kBackward, threads);
  for (const int threads : {1, 2}) expect_same(Pass::kForwardBackward, threads);
  EXPECT_NE(once.gradient_digests[1], once.gradient_digests[2]);
}

TEST(MeasurePoint, WithoutTimeThereIsNoSample) {
  RunnerOptions options = quick_options();
  options.measure.point_timeout_s = 1e-9;
  const PointRecord r = measured(small_plan("local", 1), options);
  EXPECT_EQ(r.status, PointStatus::kTimeout);
  EXPECT_NE(r.reason.find("point_timeout_s"), std::string::npos);
}

TEST(MeasurePoint, ATooStrictToleranceFailsThePoint) {
  RunnerOptions options = quick_options();
  options.check.tolerance = 1e-12;
  options.ablations = false;
  const PointRecord r = measured(small_plan("local", 1), options);
  EXPECT_EQ(r.status, PointStatus::kCheckFailed);
  EXPECT_FALSE(r.ablations);
}

TEST(MeasurePoint, EverySampleIsChecked) {
  const PointRecord r = measured(small_plan("ring", 2), quick_options());
  EXPECT_EQ(r.check.runs, 3);  // one of them warms up
  EXPECT_EQ(r.check.strata, 4 + 2 * 4 + 2);
  EXPECT_EQ(r.check.strata_left_out, 0);
  EXPECT_GT(r.check.poison_s, 0);
  EXPECT_GT(r.check.compare_s, 0);
  EXPECT_GT(r.check.proof_s, 0);
  EXPECT_GT(r.metrics.at("peak_windows_s"), 0);
}

TEST(MeasurePoint, StrataBeyondTheBudgetAreCounted) {
  RunnerOptions options = quick_options();
  options.ablations = false;
  options.check.sampled_queries = options.check.max_queries = 3;
  const PointRecord r = measured(small_plan("ring", 2), options);
  EXPECT_EQ(r.status, PointStatus::kOk) << r.reason;
  EXPECT_EQ(r.check.queries, 3);
  EXPECT_EQ(r.check.strata, 14);
  EXPECT_GE(r.check.strata_left_out, 14 - 3 * 3);
}

// The first run waits. Its messages are there when the second one reads them too early: the inputs
// are the same, and so would the output be, had nobody poisoned what came in.
TEST(MeasurePoint, RowsOfAnEarlierRunDoNotPass) {
  RunnerOptions options = quick_options();
  options.ablations = false;
  for (const AlgorithmInfo& algorithm : algorithms()) {
    if (algorithm.one_rank_only) continue;
    const PointPlan plan = small_plan(std::string(algorithm.name), 2);
    PointRecord root;
    run_on_threads(2, [&](Communicator& comm) {
      LateCommunicator late(comm, kBarriersOfTheFirstRun);
      PointRecord mine = measure_point(plan, options, late);
      if (comm.rank() == 0) root = std::move(mine);
    });
    EXPECT_EQ(root.status, PointStatus::kCheckFailed) << algorithm.name;
    EXPECT_EQ(root.check.status, "fail") << algorithm.name;
  }
}

// The second of four samples: the first, the last and what is recorded of the output are right.
TEST(MeasurePoint, ASampleBetweenThatIsWrongFailsThePoint) {
  RunnerOptions options = quick_options();
  options.ablations = false;
  options.measure = {.warmup = 1, .min_samples = 4, .max_samples = 4};
  for (const bool damaged : {false, true})
    run_on_threads(2, [&](Communicator& comm) {
      DamagedCommunicator network(comm, damaged ? 2 : -1);  // a message a run
      const PointRecord r = measure_point(small_plan("ring", 2), options, network);
      EXPECT_EQ(r.check.runs, 5);
      EXPECT_EQ(r.check.status, damaged ? "fail" : "pass");
      EXPECT_EQ(r.reason.starts_with("the output is wrong"), damaged) << r.reason;
    });
}

#if !defined(LONGNET_ADDRESS_SANITIZER) && \
    !defined(LONGNET_THREAD_SANITIZER)  // they hold memory of their own
TEST(MeasurePoint, MemoryThatNoLedgerKnowsShowsAsADifference) {
  if (!ResidentGrowth().bytes()) GTEST_SKIP() << "the system does not tell";
  RunnerOptions options = quick_options();
  options.measure = {.warmup = 0, .min_samples = 1, .max_samples = 1};
  options.ablations = false;
  Point point = small_point("dilated", 1, 1 << 17);  // 260 MiB of Q, K, V and O
  point.params.pattern = {.branches = {{16, 1}}};
  const PointPlan plan = plan_point(point, {}, 2, 1);
  for (const int64_t uncounted : {0, 80 << 20}) {
    std::vector<char> beside;
    options.progress = [&] { beside.assign(size_t(uncounted), 1); };
    const PointRecord r = measured(plan, options);
    EXPECT_EQ(r.status, PointStatus::kOk) << r.reason;
    ASSERT_TRUE(r.memory.resident_growth_bytes);
    const double expected = double(uncounted) / double(*r.memory.measured_peak_bytes);
    EXPECT_NEAR(r.memory.resident_difference, expected, 0.1);
  }
}
#endif

TEST(WalkPoint, LeavesTheContentThatRanksLeave) {
  for (const char* algorithm : {"ring", "dilated"}) {
    PointPlan plan = small_plan(algorithm, 4);
    const PointRecord real = measured(plan, quick_options());
    Point point = plan.point;
    point.params.mode = Mode::kVirtual;
    plan = plan_point(point, {}, 1, 1);
    const auto walked = walk_point(plan, quick_options(), {});
    ASSERT_TRUE(walked);
    EXPECT_EQ(walked->status, PointStatus::kOk) << walked->reason;
    EXPECT_EQ(walked->content->input_digest, real.content->input_digest);
    EXPECT_EQ(walked->content->digest, real.content->digest);
    EXPECT_EQ(walked->content->rows, real.content->rows);
    EXPECT_EQ(walked->comm.predicted_bytes_per_rank, real.comm.predicted_bytes_per_rank);
    EXPECT_GT(walked->comm.closed_form_bytes_per_rank, 0);
    EXPECT_EQ(walked->comm.closed_form_bytes_per_rank, real.comm.closed_form_bytes_per_rank);
    EXPECT_EQ(walked->comm.closed_form_messages_per_rank, real.comm.closed_form_messages_per_rank);
    EXPECT_EQ(walked->memory.measured_peak_bytes, walked->memory.predicted_peak_bytes);
    EXPECT_EQ(walked->timing.reduction, "sum");
    EXPECT_EQ(walked->per_rank.size(), 4u);
    EXPECT_EQ(walked->memory.closed_form_bytes, real.memory.closed_form_bytes);
    EXPECT_GT(walked->check.poison_s, 0);
    EXPECT_GT(walked->check.proof_s, 0);
    EXPECT_GT(walked->check.strata, 4);
    EXPECT_EQ(walked->check.strata, real.check.strata);
    EXPECT_EQ(walked->check.strata_left_out, 0);
  }
}

// Walks of four units, of two ranks and two parts of the batch.
RunnerOptions some_walks(int walks) {
  RunnerOptions options = quick_options();
  options.measure = {.warmup = 0, .min_samples = walks, .max_samples = walks};
  return options;
}
PointPlan four_units(Pass pass) {
  Point point = small_point("ring", 2);
  point.params.pass = pass;
  point.params.mode = Mode::kVirtual;
  PointPlan plan = plan_point(point, {}, 1, 1);
  plan.batches_at_once = 1;
  return plan;
}
// Stopped after some of its units, the first of which are changed in the journal.
std::optional<PointRecord> resumed_after(int units, void (*change)(UnitLine&),
                                         Pass pass = Pass::kForward, int walks = 1) {
  const std::string folder = testing::TempDir() + "longnet-walk-" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  int asked = 0;
  const VirtualRun stopped{.directory = folder, .stop = [&] { return asked++ == units; }};
  EXPECT_FALSE(walk_point(four_units(pass), some_walks(walks), stopped));
  const std::string path = concat(folder, "/shards-", four_units(pass).point.id, ".jsonl");
  std::string header, first, rest;
  std::ifstream before(path);
  std::getline(before, header);
  std::getline(before, first);
  std::getline(before, rest, '\0');
  UnitLine line;
  read_fields(parse_json(first, path), line);
  change(line);
  std::ofstream(path) << header << "\n" << sealed(dump_json(write_fields(line))) << "\n" << rest;
  auto record = walk_point(four_units(pass), some_walks(walks), {.directory = folder});
  std::filesystem::remove_all(folder);
  return record;
}

TEST(WalkPoint, GoesOnWhereItWasStopped) {
  for (const Pass pass : {Pass::kForward, Pass::kForwardBackward}) {
    const auto whole = walk_point(four_units(pass), some_walks(1), {});
    ASSERT_TRUE(whole);
    EXPECT_EQ(whole->status, PointStatus::kOk) << whole->reason;
    for (const int units : {1, 2, 3}) {
      const auto rest = resumed_after(
          units, [](UnitLine&) {}, pass);
      ASSERT_TRUE(rest);
      EXPECT_EQ(rest->status, PointStatus::kOk) << rest->reason;
      EXPECT_EQ(rest->metrics.at("walk_resumed_units"), units);
      EXPECT_EQ(rest->content->digest, whole->content->digest);
      EXPECT_EQ(rest->content->gradient_digests, whole->content->gradient_digests);
      EXPECT_EQ(rest->content->rows, whole->content->rows);
    }
  }
}

TEST(WalkPoint, WhatOneUnitGotWrongFailsThePoint) {
  const std::pair<const char*, void (*)(UnitLine&)> faults[] = {
      {"sampled queries were compared", [](UnitLine& l) { --l.errors.chosen; }},
      {"rows, there should be", [](UnitLine& l) { --l.heads[0].rows; }},
      {"passes an output that nobody wrote", [](UnitLine& l) { l.passes_poison = true; }},
      {"a closed form says", [](UnitLine& l) { l.slot_bytes += 64; }},
      {"a closed form says", [](UnitLine& l) { l.received_bytes -= 4; }}};
  for (const auto& [reason, fault] : faults) {
    const auto record = resumed_after(1, fault);
    ASSERT_TRUE(record);
    EXPECT_EQ(record->status, PointStatus::kCheckFailed) << reason;
    EXPECT_THAT(record->reason, testing::HasSubstr(reason));
  }
}

// The second of two walks is right.
TEST(WalkPoint, GradientsOfEveryWalkAreJudged) {
  const auto reason_with = [](void (*change)(UnitLine&)) {
    return resumed_after(4, change, Pass::kForwardBackward, 2).value().reason;
  };
  EXPECT_EQ(reason_with([](UnitLine&) {}), "");
  EXPECT_THAT(reason_with([](UnitLine& l) { l.gradients->laws.products[0] += 1e3; }),
              testing::HasSubstr("a law of conservation is broken"));
  EXPECT_THAT(reason_with([](UnitLine& l) { --l.gradients->errors[0].chosen; }),
              testing::HasSubstr("sampled queries was compared"));
  EXPECT_THAT(reason_with([](UnitLine& l) { l.gradients->errors[1].difference += 1e3; }),
              testing::HasSubstr("the output is wrong"));
  EXPECT_THAT(reason_with([](UnitLine& l) { l.gradients->errors[2].difference += 1e3; }),
              testing::HasSubstr("the output is wrong"));
}

}  // namespace
}  // namespace longnet
