#include "run/plan_point.h"

#include <gmock/gmock.h>

#include "run/testing/points.h"

namespace longnet {
namespace {

constexpr int64_t kRow = 4 * 16 * 4;  // bytes of one token's heads, fp32

TEST(PlanPoint, ARingInClosedForm) {
  const PointPlan plan = small_plan("ring", 4);
  EXPECT_EQ(plan.point.status, PointStatus::kOk);
  EXPECT_EQ(plan.account.max_messages_sent, 3);
  EXPECT_EQ(plan.account.max_bytes_sent, 3 * 2 * 2 * 64 * kRow);  // K and V, batch 2, shards of 64
  EXPECT_EQ(plan.account.flops, 4.0 * 16 * 2 * 4 * 256 * 256);
  EXPECT_EQ(plan.account.balance(4), 1);
  EXPECT_EQ(plan.memory_bytes(),
            predicted_slots(make_schedule(plan.point.params)) + plan.workspace_bytes);
}

TEST(PlanPoint, RanksWithoutTokensAreRefused) {
  Point point = small_point("ring", 1 << 20);
  EXPECT_EQ(plan_point(point, {}, 1, 1).point.reason,
            "256 tokens for 1048576 ranks leave some without any: use at most as many ranks as "
            "tokens");
  EXPECT_EQ(small_plan("ring", 256).point.status, PointStatus::kOk);
}

TEST(PlanPoint, MemoryThatIsMissingNamesTheCheapestChange) {
  const Point point = small_point("ring", 2);
  const int64_t needed = small_plan("ring", 2).memory_bytes();
  MachineLimits limits;
  limits.memory_bytes = 2 * needed;
  EXPECT_EQ(plan_point(point, limits, 1, 2).point.status, PointStatus::kOk);
  EXPECT_EQ(plan_point(point, limits, 1, 1).point.status, PointStatus::kOk);
  limits.memory_bytes -= 2;  // two ranks share it
  const PointPlan plan = plan_point(point, limits, 1, 2);
  EXPECT_EQ(plan.point.status, PointStatus::kSkippedMemory);
  EXPECT_TRUE(plan.point.reason.ends_with("; fits with dtype=bf16")) << plan.point.reason;
  EXPECT_THAT(plan.point.reason, testing::HasSubstr("fits with dtype=bf16"));
  EXPECT_EQ(plan_point(point, limits, 1, 1).point.status, PointStatus::kOk);  // not at once
}

TEST(PlanPoint, ChangesAreTriedFromTheCheapest) {
  PointParams p = small_point("ring", 2).params;
  p.problem.batch = 8;
  const auto fits_with = [&](auto fits) { return cheapest_change(p, fits); };
  EXPECT_EQ(fits_with([](const PointParams& c) { return c.problem.batch <= 2; }), "batch=2");
  EXPECT_EQ(fits_with([](const PointParams& c) { return c.ranks >= 8; }),
            "ranks=8 on machines of their own");
  EXPECT_EQ(fits_with([](const PointParams& c) { return c.problem.seq_len <= 64; }), "seq_len=64");
  EXPECT_EQ(fits_with([](const PointParams&) { return false; }), "");
  EXPECT_EQ(fits_with([](const PointParams& c) {
              if (c.ranks > 2) throw UsageError("too many ops");
              return c.problem.seq_len <= 64;
            }),
            "seq_len=64");
}

TEST(PlanPoint, AModelWithoutAProgramThatMemoryHoldsIsSkipped) {
  Point point = small_point("dilated", 1024, 1 << 20);
  PointParams& p = point.params;
  p.scope = Scope::kModel, p.pass = Pass::kStep;
  p.problem.batch = 1, p.problem.causal = true;
  p.model = {.layers = 512, .ffn_width = 64};
  const PointPlan plan = plan_point(point, {}, 1, 1);
  EXPECT_EQ(plan.point.status, PointStatus::kSkippedUnsupported);
  EXPECT_THAT(plan.point.reason, testing::HasSubstr("ops: use fewer ranks or layers"));
}

TEST(PlanPoint, ARefusalOfMemorySaysWhatIsNeededAndWhatWouldFit) {
  Point point = small_point("ring", 2);
  const auto never = [](const PointParams&) { return false; };
  skip_for_memory(point, int64_t{3} << 30, int64_t{2} << 30, " on H100", never);
  EXPECT_EQ(point.status, PointStatus::kSkippedMemory);
  EXPECT_EQ(point.reason, "needs 3 GiB per rank, 2 GiB are allowed on H100");
  point.params.mode = Mode::kVirtual;  // one device for all ranks
  skip_for_memory(point, int64_t{3} << 30, int64_t{2} << 30, "",
                  [](const PointParams& p) { return p.problem.dtype == DType::kBFloat16; });
  EXPECT_EQ(point.reason, "needs 3 GiB, 2 GiB are allowed; fits with dtype=bf16");
}

TEST(PlanPoint, TimeAndSupportAreLimits) {
  MachineLimits slow;
  slow.flops_per_rank = 1e3;
  slow.point_timeout_s = 10;
  const PointPlan late = plan_point(small_point("ring", 2), slow, 1, 2);
  EXPECT_EQ(late.point.status, PointStatus::kTimeout);
  EXPECT_EQ(late.estimated_s, late.account.max_rank_flops / 1e3);
  slow.cores = 1;  // two ranks take turns
  EXPECT_EQ(plan_point(small_point("ring", 2), slow, 1, 2).estimated_s, 2 * late.estimated_s);
  EXPECT_EQ(small_plan("local", 2).point.status, PointStatus::kSkippedUnsupported);
  Point excluded = small_point("ring", 2);
  excluded.status = PointStatus::kSkippedExcluded;
  EXPECT_EQ(plan_point(excluded, {}, 1, 2).account.flops, 0);
  Point replicas = small_point("ring", 4);
  replicas.params.replicas = 2;
  EXPECT_THAT(plan_point(replicas, {}, 1, 4).point.reason, testing::HasSubstr("simulate"));
}

TEST(PlanPoint, APassIsWhatItsProgramsDo) {
  const auto planned = [](const std::string& algorithm, Pass pass, auto change) {
    Point point = small_point(algorithm, 2);
    point.params.pass = pass;
    change(point.params);
    return plan_point(point, {}, 1, 2);
  };
  const auto as_it_is = [](PointParams&) {};
  const PointPlan forward = planned("dilated", Pass::kForward, as_it_is);
  const PointPlan backward = planned("dilated", Pass::kBackward, as_it_is);
  const PointPlan both = planned("dilated", Pass::kForwardBackward, as_it_is);
  EXPECT_DOUBLE_EQ(backward.account.flops, 2.5 * forward.account.flops);
  EXPECT_DOUBLE_EQ(both.account.flops, 3.5 * forward.account.flops);
  EXPECT_EQ(both.account.max_bytes_sent,
            forward.account.max_bytes_sent + backward.account.max_bytes_sent);
  EXPECT_GT(both.memory_bytes(), backward.memory_bytes());
  EXPECT_THAT(both.collectives_used, testing::Contains(testing::HasSubstr("reduce_scatter")));
  const auto reason = [&](auto change) {
    const PointPlan plan = planned("dilated", Pass::kBackward, change);
    EXPECT_EQ(plan.point.status, PointStatus::kSkippedUnsupported);
    return plan.point.reason;
  };
  EXPECT_THAT(reason([](PointParams& p) { p.kernel = "gather"; }),
              testing::HasSubstr("no backward pass"));
}

TEST(PlanPoint, AWalkOfABackwardPass) {
  Point point = small_point("dilated", 2);
  point.params.pass = Pass::kBackward;
  point.params.mode = Mode::kVirtual;
  const PointPlan plan = plan_point(point, {}, 1, 1);
  EXPECT_EQ(plan.point.status, PointStatus::kOk) << plan.point.reason;
  EXPECT_GT(plan.account.memory_by_tag.at("shared_gradients"), 0);
  EXPECT_EQ(plan_point(point, {.replayed_ranks = 1}, 1, 1).point.status, PointStatus::kOk);
  point.params.algorithm = "ring";  // a share of exact attention stands for all, and keeps no sums
  const PointPlan part = plan_point(point, {.virtual_ranks = {.sample_share = 0.5}}, 1, 1);
  EXPECT_EQ(part.share, 0.5);
  EXPECT_EQ(part.account.memory_by_tag.count("shared_gradients"), 0u);
}

TEST(PlanPoint, AWalkTakesWhatFits) {
  Point point = small_point("ring", 4);
  point.params.mode = Mode::kVirtual;
  const PointPlan all = plan_point(point, {}, 1, 1);
  EXPECT_EQ(all.batches_at_once, 2);
  EXPECT_EQ(all.share, 1);
  MachineLimits limits;
  limits.memory_bytes = all.memory_bytes() - 1;
  EXPECT_EQ(plan_point(point, limits, 1, 1).batches_at_once, 1);
  limits = {};
  limits.flops_per_rank = 1e6;
  limits.virtual_ranks.exact_point_s = all.account.flops / 1e6 / 4;
  const PointPlan part = plan_point(point, limits, 1, 1);
  EXPECT_DOUBLE_EQ(part.share, 0.25);
  EXPECT_DOUBLE_EQ(part.estimated_s, limits.virtual_ranks.exact_point_s);
  point.params.algorithm = "ulysses";  // its ranks exchange results
  EXPECT_EQ(plan_point(point, {}, 1, 1).point.status, PointStatus::kSkippedUnsupported);
}

TEST(PointCost, RunsInputsAndReference) {
  PointPlan plan = small_plan("local", 1);
  plan.estimated_s = 1;  // worth three rounds of two modes
  const double inputs = 3e-8 * 256 * 2 * 4 * 16, reference = 5e-6 * 256 * 4;
  EXPECT_DOUBLE_EQ(point_cost(plan, {.warmup = 1, .min_samples = 4}).seconds(),
                   5 + 3 * 2 + inputs + reference);
  plan.point.params.mode = Mode::kVirtual;
  EXPECT_DOUBLE_EQ(point_cost(plan, {.warmup = 1, .min_samples = 4}).seconds(), 5.5);
  plan.point.status = PointStatus::kTimeout;
  EXPECT_EQ(point_cost(plan, {}).seconds(), 0);
}

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
