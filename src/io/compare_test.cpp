#include "io/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <sstream>

#include "core/check.h"

namespace longnet {
namespace {

using testing::HasSubstr;

PointRecord record(const std::string& id, double mean, double noise = 0.01, int n = 20,
                   uint32_t seed = 1) {
  PointRecord r;
  r.id = id;
  r.params.algorithm = "ring";
  r.params.problem.seq_len = 8192;
  r.params.pattern = dense_pattern(8192);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(mean, noise * mean);
  std::vector<double> samples;
  for (int i = 0; i < n; ++i) samples.push_back(normal(random));
  set_timing(r, samples, 1);
  return r;
}

Result result(std::vector<PointRecord> points) {
  Result r;
  r.points = std::move(points);
  return r;
}

std::string table_of(const Comparison& comparison, bool wide = true) {
  std::ostringstream out;
  write_comparison(comparison, {.wide = wide, .out = &out});
  return out.str();
}

TEST(Compare, ClassesOfPoints) {
  PointRecord failed = record("e", 1), base_failed = record("f", 1), simulated = record("g", 1);
  failed.status = PointStatus::kCheckFailed;
  failed.reason = "error 0.3";
  base_failed.status = PointStatus::kOom;
  base_failed.reason = "3 TiB";
  simulated.source = Source::kSimulated;
  const Result base =
      result({record("a", 1), record("b", 1), record("c", 1), record("d", 1, 0.01, 3),
              record("e", 1), base_failed, record("g", 1), record("h", 1)});
  const Result now = result({record("a", 1.2, 0.01, 20, 2), record("b", 0.8, 0.01, 20, 3),
                             record("c", 1.01, 0.001, 20, 4), record("d", 1.3, 0.01, 3, 5), failed,
                             record("f", 1), simulated, record("new", 1)});
  const Comparison c = compare_results(base, now);
  const auto verdict = [&](size_t i) { return c.points[i].verdict; };
  EXPECT_EQ(verdict(0), CompareClass::kSlower);
  EXPECT_EQ(verdict(1), CompareClass::kFaster);
  EXPECT_EQ(verdict(2), CompareClass::kSame);       // certain, but one per cent
  EXPECT_EQ(verdict(3), CompareClass::kUndecided);  // three samples prove nothing
  EXPECT_EQ(verdict(4), CompareClass::kMissing);
  EXPECT_TRUE(c.points[4].broken);
  EXPECT_THAT(c.points[4].note, HasSubstr("new is check_failed: error 0.3"));
  EXPECT_EQ(verdict(5), CompareClass::kMissing);
  EXPECT_FALSE(c.points[5].broken);
  EXPECT_THAT(c.points[6].note, HasSubstr("sources differ"));
  EXPECT_EQ(c.points[7].note, "not in the new result");
  EXPECT_EQ(c.points[8].note, "not in the base");
  EXPECT_EQ(c.count(CompareClass::kMissing), 5);
  EXPECT_TRUE(c.regressed());
  EXPECT_FALSE(compare_results(base, base).regressed());
  EXPECT_TRUE(compare_results(result({record("e", 1)}), result({failed})).regressed());
}

TEST(Compare, WhatNeitherSideRanIsSkippedNotMissing) {
  const auto with = [](PointStatus status) {
    PointRecord r = record("a", 1);
    r.status = status;
    r.reason = "why";
    return result({r, record("b", 1)});
  };
  const auto verdict = [&](PointStatus then, PointStatus now) {
    return compare_results(with(then), with(now)).points[0].verdict;
  };
  using enum PointStatus;
  EXPECT_EQ(verdict(kSkippedExcluded, kSkippedExcluded), CompareClass::kSkipped);
  EXPECT_EQ(verdict(kSkippedMemory, kSkippedUnsupported), CompareClass::kSkipped);
  EXPECT_EQ(verdict(kSkippedExcluded, kOk), CompareClass::kMissing);
  EXPECT_EQ(verdict(kOk, kSkippedExcluded), CompareClass::kMissing);
  EXPECT_EQ(verdict(kSkippedExcluded, kError), CompareClass::kMissing);
  EXPECT_EQ(verdict(kOom, kOom), CompareClass::kMissing);  // a failure is no choice
  const Comparison c = compare_results(with(kSkippedExcluded), with(kSkippedExcluded));
  EXPECT_EQ(c.compared(), 1);
  EXPECT_THAT(table_of(c), HasSubstr("verdict: no regression among 1 decided points\n"));
}

// Two samples against two can never differ certainly: that is not "same".
TEST(Compare, TooFewSamplesDecideNothing) {
  const auto run = [](int samples, uint32_t seed) {
    return result({record("a", 1, 0.01, samples, seed), record("b", 1, 0.01, samples, seed + 1)});
  };
  for (const int n : {1, 2, 3, 4}) {  // 4: p >= 2 / 70, and two points are tested
    const Comparison c = compare_results(run(n, 1), run(n, 7));
    EXPECT_EQ(c.count(CompareClass::kUndecided), 2) << n;
    EXPECT_EQ(c.decided(), 0);
    EXPECT_THAT(table_of(c), HasSubstr("cannot decide (2 undecided)"));
  }
  EXPECT_EQ(compare_results(run(5, 1), run(5, 7)).count(CompareClass::kSame), 2);
}

TEST(Compare, EveryTimeThatAClockTookHasNoise) {
  for (const Source source : {Source::kMeasured, Source::kReplayed, Source::kExtrapolated})
    for (const double now : {1.0, 1.01, 2.0}) {
      PointRecord a = record("a", 1, 0, 1), b = record("a", now, 0, 1);
      a.source = b.source = source;
      EXPECT_EQ(compare_results(result({a}), result({b})).points[0].verdict,
                CompareClass::kUndecided)
          << to_string(source) << " " << now;
    }
}

TEST(Compare, HolmGuardsAgainstManyPoints) {
  std::vector<PointRecord> a, b;
  for (int i = 0; i < 200; ++i) {
    a.push_back(record(concat("p", i), 1, 0.2, 10, uint32_t(i)));
    b.push_back(record(concat("p", i), 1, 0.2, 10, uint32_t(1000 + i)));
  }
  const Comparison c = compare_results(result(a), result(b));
  EXPECT_EQ(c.count(CompareClass::kSlower) + c.count(CompareClass::kFaster), 0);
  const int64_t ambiguous = c.count(CompareClass::kAmbiguous);
  EXPECT_GT(ambiguous, 0);
  EXPECT_EQ(conclusion(c), concat("no regression among ", 200 - ambiguous, " decided points (",
                                  ambiguous, " ambiguous)"));
}

// A point that either run names disturbed has its class and reason, and decides nothing.
TEST(Compare, DisturbedPointsDecideNothing) {
  Result base = result({record("a", 1), record("b", 1)});
  Result now = result({record("a", 2, 0.01, 20, 2), record("b", 1, 0.01, 20, 3)});
  EXPECT_TRUE(compare_results(base, now).regressed());
  now.summary.disturbed["a"] = "samples are 1.8 times apart";
  Comparison c = compare_results(base, now);
  EXPECT_EQ(c.points[0].verdict, CompareClass::kDisturbed);
  EXPECT_EQ(c.points[0].note, "new: samples are 1.8 times apart");
  EXPECT_NEAR(c.points[0].ratio, 2, 0.1);
  EXPECT_FALSE(std::isfinite(c.points[0].p_value));  // Holm's correction does not count it
  EXPECT_FALSE(c.regressed());
  EXPECT_EQ(conclusion(c), "no regression among 1 decided points (1 disturbed)");
  base.summary.disturbed["b"] = "other programs used 31 % of the cores";
  c = compare_results(base, now);
  EXPECT_EQ(c.points[1].note, "base: other programs used 31 % of the cores");
  EXPECT_EQ(c.decided(), 0);
  EXPECT_THAT(table_of(c), HasSubstr("cannot decide (2 disturbed)"));
}

TEST(Compare, SimulatedPointsHaveNoNoise) {
  PointRecord a = record("a", 1, 0, 1), b = record("a", 1.06, 0, 1);
  a.source = b.source = Source::kSimulated;
  EXPECT_EQ(compare_results(result({a}), result({b})).points[0].verdict, CompareClass::kSlower);
  EXPECT_EQ(compare_results(result({a}), result({a})).points[0].verdict, CompareClass::kSame);
  EXPECT_EQ(compare_results(result({a}), result({b}), {.threshold = 0.1}).points[0].verdict,
            CompareClass::kSame);
}

TEST(Compare, JsonSaysWhatTheTableSays) {
  const Comparison c =
      compare_results(result({record("a", 1), record("b", 1)}), result({record("a", 2)}));
  const JsonNode json = comparison_json(c);
  EXPECT_EQ(json.text("summary"), conclusion(c));
  EXPECT_EQ(json.real("threshold"), c.options.threshold);
  const std::vector<JsonNode>& points = json.find("points")->items;
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].text("verdict"), to_string(c.points[0].verdict));
  EXPECT_DOUBLE_EQ(points[0].real("ratio"), c.points[0].ratio);
  EXPECT_EQ(points[1].text("verdict"), "missing");
  EXPECT_TRUE(points[1].find("new_s")->is_null());
}

TEST(Compare, SimulatedResultsDifferByTheirClusterNotByAWorldSize) {
  const auto on = [](const char* cluster, int gpus) {
    Result r = result({record("a", 1)});
    r.run.mode = "simulated";
    r.run.world_size = gpus;
    r.run.cluster = JsonNode::object({{"name", cluster}});
    r.run.cluster_sha256 = concat(cluster, "-0123456789");
    return r;
  };
  const auto differences = [](const Result& base, const Result& now) {
    std::string text;
    for (const EnvironmentDifference& d : compare_results(base, now).environment)
      text += concat(d.what, ": ", d.base, " -> ", d.now, "\n");
    return text;
  };
  EXPECT_EQ(differences(on("x", 8), on("y", 4096)),
            "cluster: x (x-0123456789) -> y (y-0123456789)\n");
  Result real = result({record("a", 1)});
  EXPECT_EQ(differences(real, on("x", 8)),
            "mode: real -> simulated\ncluster: - -> x (x-0123456789)\n");
  Result more = real;
  more.run.world_size = 2;
  EXPECT_EQ(differences(real, more), "world_size: 1 -> 2\n");
}

TEST(Compare, TableStartsWithTheEnvironment) {
  Result base = result({record("aaaaaaaa", 1)}), now = result({record("aaaaaaaa", 2, 0.01, 20, 2)});
  base.environment.cpu_model = "old";
  now.environment.cpu_model = "new";
  now.environment.variables["OMP_NUM_THREADS"] = "2";
  const std::string table = table_of(compare_results(base, now), /*wide=*/false);
  EXPECT_THAT(table, testing::StartsWith("# differs: environment.cpu.model: old -> new\n"));
  EXPECT_THAT(table, HasSubstr("# differs: environment.variables.OMP_NUM_THREADS: - -> 2\n"));
  EXPECT_THAT(table, HasSubstr("# id "));
  EXPECT_THAT(table, HasSubstr("REGRESSION"));
  std::istringstream lines(table);
  int rows = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100U) << line;
    rows += !line.starts_with('#');
  }
  EXPECT_EQ(rows, 1);
}

}  // namespace
}  // namespace longnet
