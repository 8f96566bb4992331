// Tests of SweepRun: points in order, their errors, disturbed points; a fake measures them.
#include "run/run_sweep.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/check.h"
#include "run/testing/points.h"

namespace longnet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SweepRunTest : public testing::Test {
 protected:
  SweepRunTest() {
    std::filesystem::remove_all(folder_);
    sweep_.config = parse_config(R"({"schema_version": 1, "name": "small",
        "sweep": {"algorithm": ["local"], "seq_len": [256], "ranks": [1]}})",
                                 "small.json", {.known = known_names()});
    sweep_.config.measure.disturbed_budget = 1e9;  // the fake takes microseconds
    plan_.runner.measure = {.warmup = 0, .min_samples = 1, .max_samples = 1};
    plan_.runner.ablations = false;
    for (const int64_t seq_len : {256, 260, 264}) {
      PointPlan& plan = plan_.points.emplace_back(small_plan("local", 1, seq_len));
      plan.point.id = point_id(plan.point.params);
      quiet_.push_back(*run_point(world_, plan, plan_.runner, {}));
      quiet_.back().metrics["busy_share"] = 0;  // whatever else runs beside the test
      quiet_.back().work.share_of_peak = quiet_.back().work.peak_flops_per_s = kNotMeasured;
    }
    hooks_.run_point = [this](const PointPlan& plan) {
      const auto i = size_t(&plan - plan_.points.data());
      ran_ += "abc"[i];
      PointRecord record = quiet_[i];
      return change_(ran_.back(), record);
    };
    hooks_.note = [this](const std::string& line) { notes_.push_back(line); };
  }

  // Runs what is left in the folder; true when that was all.
  bool run() {
    ran_.clear();
    const Result head{.path = folder_,
                      .run = {.name = "small",
                              .config_sha256 = config_sha256(sweep_.config),
                              .config = resolved_config(sweep_.config)}};
    const std::string resume = std::filesystem::exists(folder_) ? folder_ : "";
    SweepRun run(world_, sweep_, plan_, {.head = head, .resume = resume}, watchdog_);
    at_work_ = &run;
    const bool complete = run.run(hooks_);
    summary_ = run.finish();
    records_ = run.records();
    return complete;
  }

  static PointRecord keep(char, PointRecord& r) { return r; }

  const std::string folder_ = concat(testing::TempDir(), "run_sweep_",
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
  World world_{1};
  Watchdog watchdog_{0};
  Sweep sweep_;
  Plan plan_;
  std::vector<PointRecord> quiet_;
  SweepHooks hooks_;
  std::function<std::optional<PointRecord>(char, PointRecord&)> change_ = keep;
  std::string ran_;  // points, in order
  const SweepRun* at_work_ = nullptr;
  std::vector<std::string> notes_;
  Summary summary_;
  std::vector<PointRecord> records_;
};

TEST_F(SweepRunTest, EachPointRunsOnceAndIsNotRunAgainByResume) {
  std::string written;
  hooks_.written = [&](size_t i, const PointRecord& r, double) {
    EXPECT_EQ(r.id, plan_.points[i].point.id);
    written += "abc"[i];
  };
  EXPECT_TRUE(run());
  EXPECT_EQ(ran_, "abc");
  EXPECT_EQ(written, "abc");
  EXPECT_EQ(summary_.verdict, "pass") << records_[0].reason;
  EXPECT_FALSE(records_[0].metrics.contains("times_measured"));
  EXPECT_TRUE(run());
  EXPECT_EQ(ran_, "");
}

TEST_F(SweepRunTest, AnErrorIsWrittenTheNextPointRunsAndResumeTriesAgain) {
  change_ = [](char point, PointRecord& r) { return point == 'b' ? throw Error("broken") : r; };
  EXPECT_TRUE(run());
  EXPECT_EQ(ran_, "abc");
  EXPECT_EQ(summary_.verdict, "fail");
  EXPECT_EQ(records_[1].status, PointStatus::kError);
  EXPECT_EQ(records_[1].reason, "broken");
  EXPECT_THAT(notes_, ElementsAre(AllOf(HasSubstr("error: "), HasSubstr("broken"))));
  change_ = keep;
  EXPECT_TRUE(run());
  EXPECT_EQ(ran_, "b");
  EXPECT_EQ(summary_.verdict, "pass");
}

TEST_F(SweepRunTest, WithoutAResultBrokenPointsAreRecordsToo) {
  std::vector<PointRecord> records;
  hooks_.written = [&](size_t, const PointRecord& r, double) { records.push_back(r); };
  change_ = [](char point, PointRecord& r) {
    if (point == 'b') throw Error("broken");
    r.metrics["busy_share"] = 0.5;  // not measured again
    if (point == 'c') r.timing.median_s = -1;
    return r;
  };
  EXPECT_TRUE(SweepRun(world_, sweep_, plan_, watchdog_).run(hooks_));
  EXPECT_EQ(ran_, "abc");
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].status, PointStatus::kOk) << records[0].reason;
  EXPECT_EQ(records[1].status, PointStatus::kError);
  EXPECT_EQ(records[1].reason, "broken");
  EXPECT_THAT(records[2].reason, HasSubstr("negative median"));
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(SweepRunTest, AUsageErrorEndsTheRun) {
  change_ = [](char, PointRecord&) -> PointRecord { throw UsageError("unfit"); };
  EXPECT_THROW(run(), UsageError);
  EXPECT_EQ(ran_, "a");
}

TEST_F(SweepRunTest, EndsEarlyOnRequestAfterItsTimeAndWithAStoppedWalk) {
  hooks_.stop = [this] { return ran_ == "a"; };
  EXPECT_FALSE(run());
  EXPECT_EQ(ran_, "a");
  EXPECT_EQ(summary_.verdict, "incomplete");
  hooks_.stop = [] { return false; };
  sweep_.stop_at_s = 0;  // long ago: one point all the same
  EXPECT_FALSE(run());
  EXPECT_EQ(ran_, "b");
  sweep_.config.run.mode = Mode::kVirtual;
  change_ = [](char, PointRecord&) { return std::nullopt; };
  std::filesystem::remove_all(folder_);
  EXPECT_FALSE(run());
  EXPECT_EQ(ran_, "a");
  EXPECT_TRUE(records_.empty());
}

TEST_F(SweepRunTest, DisturbedPointsRunUpToTwiceMore) {
  change_ = [this](char point, PointRecord& r) {
    if (point == 'a' || ran_ == "abc") r.metrics["busy_share"] = 0.5;
    return r;
  };
  const auto again = [this](size_t i) {
    return concat("measured again: ", plan_.points[i].point.id,
                  ": other programs used 50 % of the cores");
  };
  std::string left;  // points after this one, for the ETA
  hooks_.written = [&](size_t i, const PointRecord&, double) {
    const std::vector<bool>& todo = at_work_->todo();
    left += std::to_string(std::count(todo.begin() + std::ptrdiff_t(i) + 1, todo.end(), true));
    EXPECT_EQ(std::isfinite(at_work_->budget_s()), left.size() > 3);
  };
  EXPECT_TRUE(run());
  EXPECT_EQ(ran_, "abcaca");
  EXPECT_EQ(left, "210100");
  EXPECT_EQ(records_[0].metrics.at("times_measured"), 3);
  EXPECT_EQ(records_[2].metrics.at("times_measured"), 2);
  EXPECT_EQ(summary_.disturbed.size(), 1u);
  EXPECT_THAT(notes_, ElementsAre(again(0), again(2), again(0)));
  EXPECT_TRUE(run());
  EXPECT_EQ(ran_, "") << "points of an earlier run stay";
}

TEST_F(SweepRunTest, DisturbedPointsStayBeyondTheBudgetOrTheTime) {
  change_ = [](char, PointRecord& r) {
    r.metrics["busy_share"] = 0.5;
    return r;
  };
  sweep_.config.measure.disturbed_budget = 0;
  EXPECT_TRUE(run());
  EXPECT_EQ(ran_, "abc");
  sweep_.config.measure.disturbed_budget = 1e9;
  hooks_.stop = [this] { return ran_ == "abca"; };
  std::filesystem::remove_all(folder_);
  EXPECT_TRUE(run());
  EXPECT_EQ(ran_, "abca");
}

}  // namespace
}  // namespace longnet
