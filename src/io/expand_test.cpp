#include "io/expand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/testing/test_support.h"
#include "io/testing/small_run.h"

namespace longnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> names(const std::vector<Point>& points) {
  std::vector<std::string> all;
  for (const Point& p : points)
    all.push_back(concat(p.params.algorithm, ":", p.params.ranks, ":", p.params.problem.seq_len));
  return all;
}

TEST(Expand, OrderIsFixed) {
  const Config c =
      config(R"("algorithm": ["dilated", "ring"], "seq_len": [64, 32], "ranks": [2, 1])");
  EXPECT_THAT(names(expand(c)),
              ElementsAre("dilated:2:64", "dilated:2:32", "dilated:1:64", "dilated:1:32",
                          "ring:2:64", "ring:2:32", "ring:1:64", "ring:1:32"));
}

TEST(Expand, ConstantTokensSetTheBatch) {
  const auto points = expand(config(
      R"("algorithm": "ring", "seq_len": [8, 24, 64, 65],
          "batch": {"rule": "constant_tokens", "tokens_per_batch": 64})"));
  std::vector<int64_t> batches;
  for (const Point& p : points) batches.push_back(p.params.problem.batch);
  EXPECT_THAT(batches,
              ElementsAre(8, 2, 1, 1));  // longer than tokens_per_batch: still one sequence
}

TEST(Expand, KvHeadsFollowHeads) {
  const auto points = expand(config(R"("algorithm": "ring", "seq_len": 8, "heads": [4, 6])"));
  EXPECT_EQ(points[0].params.problem.num_kv_heads, 4);
  EXPECT_EQ(points[1].params.problem.num_kv_heads, 6);
}

TEST(Expand, IdsAreStableAndIgnoreModeAndTransport) {
  const Config c =
      config(R"("algorithm": ["dilated", "ring"], "seq_len": ["8K", "16K"], "ranks": [1, 2])");
  const auto threads = expand(c), mpi = expand(c, {.world_size = 2, .transport = "mpi"}),
             walked = expand(c, {.mode = Mode::kVirtual, .transport = ""});
  std::set<std::string> ids;
  for (size_t i = 0; i < threads.size(); ++i) {
    EXPECT_EQ(threads[i].id, mpi[i].id);
    EXPECT_EQ(mpi[i].params.transport, "mpi");
    EXPECT_EQ(threads[i].id, walked[i].id);
    EXPECT_EQ(walked[i].params.mode, Mode::kVirtual);
    EXPECT_EQ(threads[i].id.size(), 8u);
    EXPECT_EQ(threads[i].id.find_first_not_of("0123456789abcdef"), std::string::npos);
    ids.insert(threads[i].id);
  }
  EXPECT_EQ(ids.size(), threads.size());
}

TEST(Expand, PassesAreAnAxisThatForwardPointsDoNotShow) {
  const auto points = expand(config(
      R"("algorithm": "ring", "seq_len": 8, "pass": ["forward", "backward", "forward_backward"])"));
  ASSERT_EQ(points.size(), 3u);
  const auto without = expand(config(R"("algorithm": "ring", "seq_len": 8)"));
  EXPECT_EQ(points[0].id, without[0].id);
  EXPECT_EQ(canonical_params_json(points[0].params), canonical_params_json(without[0].params));
  EXPECT_EQ(points[1].params.pass, Pass::kBackward);
  EXPECT_EQ(series_name(points[0].params), series_name(without[0].params));
  EXPECT_THAT(series_name(points[1].params), HasSubstr("pass=backward"));
  EXPECT_THAT(describe(points[2].params), HasSubstr("ring forward_backward"));
}

TEST(Expand, ExcludeKeepsAPointWithItsReason) {
  const auto points =
      expand(config(R"("algorithm": "ring", "seq_len": [8, 16], "ranks": [1, 2])",
                    R"("exclude": [{"where": "ranks == 2 && seq_len > 8", "reason": "slow"}])"));
  ASSERT_EQ(points.size(), 4u);
  EXPECT_EQ(points[3].status, PointStatus::kSkippedExcluded);
  EXPECT_EQ(points[3].reason, "slow");
  EXPECT_EQ(points[2].status, PointStatus::kOk);
}

TEST(Expand, FilterDropsAndMaxRanksSkips) {
  const Config c = config(R"("algorithm": "ring", "seq_len": [8, 16], "ranks": [1, 2, 4])");
  const auto points = expand(c, {.max_ranks = 2, .filter = "seq_len == 8"});
  EXPECT_THAT(names(points), ElementsAre("ring:1:8", "ring:2:8", "ring:4:8"));
  EXPECT_EQ(points[2].status, PointStatus::kSkippedUnsupported);
  EXPECT_EQ(points[2].reason, "needs 4 ranks, there are 2");
}

TEST(Expand, EqualPointsAppearOnce) {
  EXPECT_EQ(
      expand(config(R"("algorithm": ["ring", "ring"], "seq_len": 8, "ranks": [1, "world", 1])"))
          .size(),
      1u);
}

TEST(Expand, NothingLeftSaysWhatRemovedIt) {
  const Config c = config(R"("algorithm": "ring", "seq_len": [8, 16], "ranks": [1, 4])",
                          R"("exclude": [{"where": "seq_len == 8", "reason": "too short"}])");
  const std::string error =
      usage_error([&] { expand(c, {.max_ranks = 2, .filter = "ranks == 4"}); });
  EXPECT_THAT(error, HasSubstr("t.json: no point left to run out of 4"));
  EXPECT_THAT(error, HasSubstr("--filter 'ranks == 4' removed 2"));
  EXPECT_THAT(error, HasSubstr("exclude[0] (seq_len == 8: too short) removed 1"));
  EXPECT_THAT(error, HasSubstr("1 need more than the 2 ranks"));
  EXPECT_THAT(error, HasSubstr("hint: --ranks 4, or mpirun -np 4"));
  EXPECT_THAT(usage_error([&] { expand(c, {.filter = "ranks == 2"}); }),
              HasSubstr("hint: `lnbench plan` without --filter"));
  const Config empty = config(
      R"("algorithm": "ring", "seq_len": 8, "ranks": {"from": 4, "to": "world", "factor": 2})");
  EXPECT_THAT(usage_error([&] { expand(empty, {.world_size = 2}); }),
              HasSubstr("an axis of the sweep has no value"));
  EXPECT_THAT(usage_error([&] { expand(c, {.filter = "rank == 4"}); }),
              HasSubstr("did you mean 'ranks'?"));
}

TEST(Expand, TooManyCombinationsAreRefusedBeforeAPointIsMade) {
  const auto error = [](const std::string& sweep, int64_t world) {
    return usage_error([&] {
      expand(config(sweep),
             {.world_size = world, .resolve = [](PointParams&) { FAIL() << "a point was made"; }});
    });
  };
  const std::string to_world = R"("algorithm": "ring", "seq_len": {"from": 1, "to": 1000,
      "step": 1}, "ranks": {"from": 1, "to": "world", "step": 1})";
  EXPECT_EQ(error(to_world, 101),
            "t.json: sweep: makes 101000 combinations where \"world\" is 101\n  hint: stay below "
            "100000: use ranges with a factor");
  EXPECT_THAT(error(to_world, 1 << 20), HasSubstr("t.json: sweep.ranks: a range from 1 to 1048576 "
                                                  "has more than 10000 values"));
  // 1, 2, 4 ... 4096 have 91 divisors together.
  EXPECT_THAT(error(R"("algorithm": "usp", "seq_len": {"from": 1, "to": 1100, "step": 1},
      "ranks": {"from": 1, "to": "world", "factor": 2}, "ulysses_degree": "divisors")",
                    4096),
              HasSubstr("makes 100100 combinations"));
}

TEST(Expand, AFilterNamesKnownValues) {
  const Config c = config(R"("algorithm": "ring", "seq_len": 8)");
  const KnownNames known{.names = {{"algorithm", {"dilated", "ring"}}}};
  const auto error = [&](const std::string& filter) {
    return usage_error([&] { expand(c, {.filter = filter, .known = known}); });
  };
  EXPECT_THAT(error("algorithm==dilted"), HasSubstr("no algorithm is named 'dilted'"));
  EXPECT_THAT(error("algorithm==dilted"), HasSubstr("did you mean 'dilated'?"));
  EXPECT_THAT(error("ranks > 2 && dtype != fp23"), HasSubstr("did you mean 'fp32'?"));
  EXPECT_THAT(error("algorithm == dilated"), HasSubstr("no point left"));  // known, not swept
  EXPECT_EQ(error("algorithm == ring && kernel == anything || ranks == 1"), "");
}

}  // namespace
}  // namespace longnet
