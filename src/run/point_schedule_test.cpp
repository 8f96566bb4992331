#include "run/point_schedule.h"

#include <gtest/gtest.h>

#include "run/testing/points.h"

namespace longnet {
namespace {

TEST(PointSchedule, AGroupHasItsShareOfRanksAndBatch) {
  PointParams p = small_point("ring", 4).params;
  p.replicas = 2;
  const ShardedProblem s = sharded_problem(p);
  EXPECT_EQ(s.layout.world_size(), 2);
  EXPECT_EQ(s.problem.batch, 1);
  EXPECT_EQ(s.layout.shard(1).tokens(), 128);
}

TEST(PointSchedule, OptionsBecomeWhatTheAlgorithmUses) {
  PointParams p = small_point("usp", 4).params;
  p.problem.num_kv_heads = 2;
  resolve_options(p);
  EXPECT_EQ(p.options.ulysses_degree, 2);  // at most one K/V head each
  PointParams ring = small_point("ring", 4).params;
  resolve_options(ring);
  EXPECT_EQ(ring.options.ulysses_degree, 0);
}

TEST(PointSchedule, CollectivesAreLowered) {
  PointParams p = small_point("all_gather", 4).params;
  const auto gathers = [&] {
    int count = 0;
    for (const Op& op : make_schedule(p).program(1).ops)
      count += std::holds_alternative<AllGather>(op.what);
    return count;
  };
  EXPECT_GT(gathers(), 0);
  p.collective = "ring";
  EXPECT_EQ(gathers(), 0);
}

TEST(PointSchedule, KernelsAreToldTheProblem) {
  PointParams p = small_point("local", 1).params;
  p.problem.causal = true;
  p.problem.dtype = DType::kBFloat16;
  const AttendOptions o = attend_options(p);
  EXPECT_EQ(o.head_dim, 16);
  EXPECT_EQ(o.dtype, DType::kBFloat16);
  EXPECT_TRUE(o.causal);
}

}  // namespace
}  // namespace longnet
