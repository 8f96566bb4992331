// Points of scope model: measured, checked, planned.
#include <gmock/gmock.h>

#include "comm/testing/damaged_communicator.h"
#include "comm/threads/thread_world.h"
#include "run/measure_point.h"
#include "run/testing/points.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

Point model_point(const std::string& algorithm, int ranks, Pass pass = Pass::kStep) {
  Point point = small_point(algorithm, ranks, 128);
  PointParams& p = point.params;
  p.scope = Scope::kModel;
  p.pass = pass;
  p.problem.causal = true;
  p.model = {.layers = 2, .ffn_width = 96, .vocabulary = 61};
  return point;
}

PointRecord measured_model(const Point& point, double tolerance = 0, bool late_messages = false,
                           bool ablations = false) {
  RunnerOptions options;
  options.measure = {.warmup = 1, .min_samples = 2, .max_samples = 2};
  options.check.tolerance = tolerance;
  options.ablations = ablations;
  options.peak_flops_per_thread =
      1e11;  // beyond any core: a window that was disturbed refutes none
  const PointPlan plan = plan_point(point, {}, 1, point.params.ranks);
  PointRecord root;
  run_on_threads(point.params.ranks, [&](Communicator& comm) {
    LateCommunicator late(comm, kBarriersOfTheFirstRun);
    PointRecord mine = measure_point(plan, options, late_messages ? late : comm);
    if (comm.rank() == 0) root = std::move(mine);
  });
  return root;
}

TEST(ModelPoint, ARecordIsComplete) {
  const PointRecord r = measured_model(model_point("dilated", 2), 0, false, /*ablations=*/true);
  EXPECT_EQ(r.status, PointStatus::kOk) << r.reason;
  EXPECT_EQ(r.timing.samples_s.size(), 2u);
  EXPECT_EQ(r.check.status, "pass");
  EXPECT_EQ(r.check.reference, "central_difference");
  EXPECT_EQ(r.check.runs, 3);
  EXPECT_GT(r.check.rel_l2_error, 0);
  EXPECT_LT(r.check.rel_l2_error, r.check.tolerance);
  EXPECT_EQ(r.comm.counted_bytes_per_rank, r.comm.predicted_bytes_per_rank);
  EXPECT_GT(r.comm.counted_bytes_per_rank, 0);
  EXPECT_EQ(r.memory.measured_peak_bytes, r.memory.predicted_peak_bytes);
  for (const char* tag : {"weights", "weight_gradients", "optimizer", "activations", "logits"})
    EXPECT_GT(r.memory.by_tag.at(tag), 0) << tag;
  EXPECT_FALSE(r.content);
  EXPECT_GT(r.metrics.at("gradient_norm"), 0);
  EXPECT_GE(r.check.queries, 16);
  EXPECT_EQ(r.check.strata, 2 * 4 + 2 * 4 + 2 * 2);  // (branch, head), (rank, head), (rank, branch)
  EXPECT_EQ(r.check.strata_left_out, 0);
  EXPECT_GT(r.metrics.at("attention_rel_l2_error"), 0);
  EXPECT_LT(r.metrics.at("attention_rel_l2_error"), 1e-6);
  EXPECT_TRUE(r.ablations);
  PointRecord again = record_from_json(record_to_json(r));
  EXPECT_TRUE(validate_record(again)) << again.reason;
  EXPECT_EQ(record_to_json(again), record_to_json(r));
}

// Other programs lower the shares of what was timed, which are nearly 1 without them: the best of
// some points counts. A cost beside the ops is in every one.
TEST(ModelPoint, TimesOfOpsAreNearlyAll) {
  constexpr double kShare = 0.95;
  for (const int ranks : {1, 2}) {
    Point point = model_point("dilated", ranks);
    point.params.problem.seq_len = 1024;
    double op_time_share = 0, share_of_parts = 0;
    for (int i = 0; i < 20 && (op_time_share < kShare || share_of_parts < kShare); ++i) {
      const PointRecord r = measured_model(point);
      const double parts = r.metrics.at("gemm_s") + r.metrics.at("row_wise_s") +
                           r.metrics.at("update_s") + r.metrics.at("attend_s");
      EXPECT_LE(parts, (1 + 1e-9) * r.phases.compute_s);
      EXPECT_LE(r.metrics.at("op_time_share"), 1);
      EXPECT_LT(0, r.metrics.at("cross_entropy_s"));
      EXPECT_LE(r.metrics.at("cross_entropy_s"), r.metrics.at("row_wise_s"));
      op_time_share = std::max(op_time_share, r.metrics.at("op_time_share"));
      share_of_parts = std::max(share_of_parts, parts / r.phases.compute_s);
    }
    EXPECT_GT(op_time_share, kShare) << ranks;
    EXPECT_GT(share_of_parts, kShare) << ranks;
  }
}

TEST(ModelPoint, MeasuredMemoryIsThePredictedByTag) {
  for (const Recompute recompute : enum_values<Recompute>())
    for (const bool shard : {false, true}) {
      Point point = model_point("dilated", 2);
      point.params.model.recompute = recompute;
      point.params.model.shard_optimizer = shard;
      const auto predicted = plan_point(point, {}, 1, 2).account.memory_by_tag;
      const auto measured = measured_model(point).memory.by_tag;
      EXPECT_GE(predicted.size(), 10u);
      for (const auto& [tag, bytes] : predicted) EXPECT_EQ(measured.at(tag), bytes) << tag;
    }
}

TEST(ModelPoint, AShardedOptimizerTakesItsPartOfTheMemory) {
  for (const int ranks : {2, 3})
    for (const int head_groups : {1, 2}) {
      Point point = model_point("dilated", ranks * head_groups);
      point.params.problem.num_heads = point.params.problem.num_kv_heads = 8;
      point.params.head_groups = head_groups;
      const auto of_rank = [&](bool shard, Rank rank) {
        point.params.model.shard_optimizer = shard;
        return make_schedule(point.params).program(rank).memory_by_tag();
      };
      const auto whole = of_rank(false, 0);
      EXPECT_EQ(whole.at("optimizer"), 2 * whole.at("weights"));
      for (Rank r = 0; r < point.params.ranks; ++r) {
        const auto part = of_rank(true, r);
        EXPECT_EQ(part.at("optimizer") * ranks, whole.at("optimizer")) << "rank " << r;
        EXPECT_EQ(part.at("weights"), whole.at("weights"));
      }
      EXPECT_TRUE(point.params.model.shard_optimizer);
      EXPECT_EQ(measured_model(point).memory.by_tag.at("optimizer") * ranks, whole.at("optimizer"));
    }
}

TEST(ModelPoint, ActivationsInBf16TakeHalfTheMemoryAndHaveTheGradientsOfFp32) {
  for (const Scope scope : {Scope::kModel, Scope::kLayer})
    for (const Recompute recompute : enum_values<Recompute>())
      for (const char* algorithm : {"dilated", "ring"}) {
        const Pass pass = scope == Scope::kModel ? Pass::kStep : Pass::kForwardBackward;
        Point point = model_point(algorithm, 2, pass);
        point.params.scope = scope;
        point.params.model.recompute = recompute;
        const PointRecord wide = measured_model(point);
        point.params.problem.dtype = DType::kBFloat16;
        const PointRecord r = measured_model(point);
        EXPECT_EQ(r.status, PointStatus::kOk) << algorithm << ": " << r.reason;
        EXPECT_EQ(r.check.reference, "fp32");
        EXPECT_GT(r.check.rel_l2_error, 1e-4);
        EXPECT_LT(r.check.rel_l2_error, r.check.tolerance);
        EXPECT_EQ(r.memory.measured_peak_bytes, r.memory.predicted_peak_bytes);
        for (const char* half : {"query", "key_value", "grad_out"})
          EXPECT_EQ(2 * r.memory.by_tag.at(half), wide.memory.by_tag.at(half)) << half;
        const int64_t sums = scope == Scope::kModel ? 2 * 16 : 0;  // two ranks' doubles
        EXPECT_EQ(2 * (r.memory.by_tag.at("activations") - sums),
                  wide.memory.by_tag.at("activations") - sums);
        for (const char* same : {"weights", "weight_gradients", "output", "grad_query"})
          EXPECT_EQ(r.memory.by_tag.at(same), wide.memory.by_tag.at(same)) << same;
        EXPECT_EQ(r.comm.closed_form_bytes_per_rank, r.comm.counted_bytes_per_rank);
        EXPECT_EQ(r.comm.counted_bytes_per_rank, r.comm.predicted_bytes_per_rank);
      }
}

TEST(ModelPoint, EveryPassHasTheSameLossAndGradient) {
  const auto first = measured_model(model_point("dilated", 1)).metrics;
  EXPECT_NEAR(first.at("loss_nats"), std::log(61.0), 1.5);  // random tokens
  for (const Pass pass : {Pass::kForward, Pass::kForwardBackward, Pass::kStep})
    for (const int ranks : {1, 2, 3}) {
      Point point = model_point("dilated", ranks, pass);
      point.params.model.shard_optimizer = ranks == 3;
      const PointRecord r = measured_model(point);
      EXPECT_EQ(r.status, PointStatus::kOk) << r.reason;
      EXPECT_NEAR(r.metrics.at("loss_nats") / first.at("loss_nats"), 1, 1e-6);
      EXPECT_EQ(r.metrics.contains("gradient_norm"), has_backward(pass));
      EXPECT_EQ(std::isnan(r.check.rel_l2_error), !has_backward(pass));
      if (!has_backward(pass)) continue;
      EXPECT_NEAR(r.metrics.at("gradient_norm") / first.at("gradient_norm"), 1, 1e-5);
    }
}

TEST(ModelPoint, ReplicasHaveTheSameLossAndGradient) {
  const auto with = [](int ranks, int replicas, Pass pass) {
    Point point = model_point("dilated", ranks, pass);
    point.params.replicas = replicas;
    return measured_model(point);
  };
  const auto first = with(1, 1, Pass::kStep).metrics;
  for (const Pass pass : {Pass::kForward, Pass::kForwardBackward, Pass::kStep})
    for (const int ranks : {2, 4}) {
      const PointRecord r = with(ranks, 2, pass);
      EXPECT_EQ(r.status, PointStatus::kOk) << r.reason;
      EXPECT_NEAR(r.metrics.at("loss_nats") / first.at("loss_nats"), 1, 1e-6);
      EXPECT_TRUE(r.comm.closed_form_bytes_per_rank);
      EXPECT_EQ(r.comm.closed_form_bytes_per_rank, r.comm.counted_bytes_per_rank);
      if (!has_backward(pass)) continue;
      EXPECT_NEAR(r.metrics.at("gradient_norm") / first.at("gradient_norm"), 1, 1e-5);
    }
}

TEST(ModelPoint, RanksThatSplitHeadsHaveTheSameLossAndGradient) {
  const auto with = [](const char* algorithm, int ranks, int replicas, int head_groups, Pass pass,
                       Scope scope) {
    Point point = model_point(algorithm, ranks, pass);
    point.params.problem.num_heads = point.params.problem.num_kv_heads = 8;
    point.params.scope = scope;
    point.params.replicas = replicas, point.params.head_groups = head_groups;
    point.params.model.shard_optimizer = replicas == 2;
    return point;
  };
  for (const char* algorithm : {"dilated", "ring", "ulysses"})
    for (const Scope scope : {Scope::kLayer, Scope::kModel})
      for (const Pass pass : {Pass::kForward, Pass::kForwardBackward, Pass::kStep}) {
        if (scope == Scope::kLayer && pass == Pass::kStep) continue;
        const auto metrics = measured_model(with(algorithm, 1, 1, 1, pass, scope)).metrics;
        const std::string said = scope == Scope::kLayer ? "output_product" : "loss_nats";
        for (const auto& [ranks, replicas, heads] :
             {std::array{2, 1, 2}, std::array{4, 1, 2}, std::array{4, 2, 2}}) {
          const Point point = with(algorithm, ranks, replicas, heads, pass, scope);
          const PointRecord r = measured_model(point);
          const std::string name = describe(point.params);
          EXPECT_EQ(r.status, PointStatus::kOk) << name << ": " << r.reason;
          EXPECT_NEAR(r.metrics.at(said), metrics.at(said),
                      1e-6 * std::max(1.0, std::abs(metrics.at(said))))
              << name;
          EXPECT_EQ(r.comm.closed_form_bytes_per_rank, r.comm.counted_bytes_per_rank) << name;
          EXPECT_EQ(r.comm.counted_bytes_per_rank, r.comm.predicted_bytes_per_rank) << name;
          EXPECT_EQ(r.memory.measured_peak_bytes, r.memory.predicted_peak_bytes) << name;
          if (has_backward(pass)) {
            EXPECT_NEAR(r.metrics.at("gradient_norm") / metrics.at("gradient_norm"), 1, 1e-5);
          }
        }
      }
}

TEST(ModelPoint, CollectivesOfAnyOrderGiveTheSameLossAndGradient) {
  const auto first = measured_model(model_point("dilated", 1)).metrics;
  for (const char* collective : {"ring", "bruck", "recursive_doubling", "hierarchical"})
    for (const int ranks : {3, 4}) {
      if (ranks == 3 && std::string(collective) == "hierarchical") continue;  // no two nodes
      Point point = model_point("dilated", ranks);
      point.params.collective = collective;
      const PointRecord r = measured_model(point);
      EXPECT_EQ(r.status, PointStatus::kOk) << collective << " " << ranks << ": " << r.reason;
      EXPECT_EQ(r.comm.closed_form_bytes_per_rank, r.comm.counted_bytes_per_rank) << collective;
      EXPECT_NEAR(r.metrics.at("loss_nats") / first.at("loss_nats"), 1, 1e-6) << collective;
    }
}

TEST(ModelPoint, ALayerAloneHasGradientsOfItsRowsAndWeights) {
  const auto layer = [](const std::string& algorithm, int ranks, Pass pass, int replicas = 1) {
    Point point = model_point(algorithm, ranks, pass);
    point.params.scope = Scope::kLayer;
    point.params.replicas = replicas;
    return point;
  };
  std::map<std::string, double> products;  // by the function that is computed
  for (const char* algorithm : {"dilated", "local", "ring", "ulysses"})
    for (const Pass pass : {Pass::kForward, Pass::kForwardBackward})
      for (const int ranks : {1, 2, 4}) {
        if (std::string(algorithm) == "local" && ranks > 1) continue;
        const PointRecord r = measured_model(layer(algorithm, ranks, pass, ranks == 4 ? 2 : 1));
        EXPECT_EQ(r.status, PointStatus::kOk) << algorithm << " " << ranks << ": " << r.reason;
        EXPECT_EQ(r.comm.counted_bytes_per_rank, r.comm.predicted_bytes_per_rank);
        EXPECT_EQ(r.memory.measured_peak_bytes, r.memory.predicted_peak_bytes);
        EXPECT_FALSE(r.memory.by_tag.contains("optimizer"));
        EXPECT_EQ(r.comm.closed_form_bytes_per_rank, r.comm.counted_bytes_per_rank);
        const std::string function = std::string(algorithm) == "dilated" ? "dilated" : "dense";
        const double product = r.metrics.at("output_product");
        EXPECT_NEAR(products.try_emplace(function, product).first->second, product, 1e-6);
        if (!has_backward(pass)) continue;
        EXPECT_GT(r.metrics.at("gradient_norm"), 0);
        EXPECT_LT(r.check.rel_l2_error, r.check.tolerance);
      }
  const PointRecord wrong =
      measured_model(layer("ring", 2, Pass::kForwardBackward), /*tolerance=*/1e-15);
  EXPECT_THAT(wrong.reason, testing::HasSubstr("along its gradient <y, dO> rises by"));
  EXPECT_EQ(measured_model(layer("ring", 2, Pass::kForward), 0, /*late_messages=*/true).status,
            PointStatus::kCheckFailed);
  const PointPlan step = plan_point(layer("ring", 2, Pass::kStep), {}, 1, 2);
  EXPECT_THAT(step.point.reason, testing::HasSubstr("sweep.scope model"));
}

TEST(ModelPoint, ExactAlgorithmsHaveTheSameLoss) {
  const double loss = measured_model(model_point("local", 1)).metrics.at("loss_nats");
  for (const AlgorithmInfo& info : algorithms())
    for (const Recompute recompute : enum_values<Recompute>()) {
      if (info.pattern != PatternKind::kDense || info.one_rank_only) continue;
      const std::string algorithm(info.name);
      Point point = model_point(algorithm, 2);
      point.params.model.recompute = recompute;
      const PointRecord r = measured_model(point);
      EXPECT_EQ(r.status, PointStatus::kOk) << algorithm << ": " << r.reason;
      EXPECT_NEAR(r.metrics.at("loss_nats") / loss, 1, 1e-6) << algorithm;
      // With more layers, scratch memory of a forward pass lies where a step has smaller slots.
      point.params.model.layers = 4;
      EXPECT_EQ(measured_model(point).status, PointStatus::kOk) << algorithm;
    }
}

TEST(ModelPoint, AWrongGradientFails) {
  const PointRecord r = measured_model(model_point("local", 1), /*tolerance=*/1e-15);
  EXPECT_EQ(r.status, PointStatus::kCheckFailed);
  EXPECT_EQ(r.check.status, "fail");
  EXPECT_THAT(r.reason, testing::HasSubstr("along its gradient the loss rises by"));
}

TEST(ModelPoint, RowsOfAttentionAreThoseOfTheDefinition) {
  for (const MixRule mix : {MixRule::kLse, MixRule::kMean, MixRule::kSum})
    for (const Recompute recompute : enum_values<Recompute>()) {
      Point point = model_point("dilated", 3);
      point.params.pattern.mix = mix;
      point.params.problem.batch = 2;
      point.params.model.recompute = recompute;
      const PointRecord r = measured_model(point);
      EXPECT_EQ(r.status, PointStatus::kOk) << to_string(mix) << ": " << r.reason;
      EXPECT_GT(r.metrics.at("attention_rel_l2_error"), 0);
    }
  Point zigzag = model_point("ring", 2);
  zigzag.params.layout = LayoutKind::kZigzag;
  EXPECT_EQ(measured_model(zigzag).status, PointStatus::kOk);
}

// Messages of all runs but the first come too late, as in MeasurePoint.RowsOfAnEarlierRunDoNotPass.
TEST(ModelPoint, ValuesOfAnEarlierRunDoNotPass) {
  for (const Pass pass : {Pass::kForward, Pass::kStep}) {
    const PointRecord r = measured_model(model_point("ring", 2, pass), 0, /*late_messages=*/true);
    EXPECT_EQ(r.status, PointStatus::kCheckFailed);
    EXPECT_THAT(r.reason, testing::HasSubstr("are NaN"));
  }
}

// Rows of K and V that a backward pass receives, in one run of four: its loss, and all of the last
// run, are right.
TEST(ModelPoint, GradientsOfEveryRunAreTheSame) {
  for (const Scope scope : {Scope::kModel, Scope::kLayer}) {
    Point point = model_point("ring", 2, Pass::kForwardBackward);
    point.params.scope = scope;
    if (scope == Scope::kModel) point.params.collective = "ring";  // no message is a library's
    const PointPlan plan = plan_point(point, {}, 1, 2);
    const RankProgram program = make_schedule(point.params).program(0);
    const auto is_receive = [](const Op& op) { return std::holds_alternative<Recv>(op.what); };
    const int64_t messages = std::ranges::count_if(program.ops, is_receive);
    const int64_t in_forward = scope == Scope::kModel ? 2 : 1;  // one a layer
    RunnerOptions options;
    options.measure = {.warmup = 1, .min_samples = 3, .max_samples = 3};
    options.peak_flops_per_thread = 1e11;
    options.ablations = false;
    for (const bool damaged : {false, true})
      run_on_threads(2, [&](Communicator& comm) {
        DamagedCommunicator network(comm, damaged ? 2 * messages + in_forward : -1);
        const PointRecord r = measure_point(plan, options, network);
        EXPECT_EQ(r.check.runs, 4);
        EXPECT_EQ(r.reason, damaged ? "gradients of the runs differ" : "");
      });
  }
}

TEST(ModelPoint, RefusalsSayWhatToDo) {
  const auto reason_with = [](auto change) {
    Point point = model_point("dilated", 2);
    change(point.params);
    const PointPlan plan = plan_point(point, {}, 1, 2);
    EXPECT_EQ(plan.point.status, PointStatus::kSkippedUnsupported);
    return plan.point.reason;
  };
  using testing::HasSubstr;
  EXPECT_THAT(reason_with([](PointParams& p) { p.kernel = "cuda"; }), HasSubstr("model.dtype"));
  EXPECT_THAT(reason_with([](PointParams& p) { p.mode = Mode::kVirtual; }), HasSubstr("virtual"));
  EXPECT_THAT(reason_with([](PointParams& p) { p.head_groups = 2; }), HasSubstr("at rate 4"));
  EXPECT_THAT(reason_with([](PointParams& p) {
                p.head_groups = 2, p.model.ffn_width = 97, p.pattern.branches = {{64, 1}};
              }),
              HasSubstr("model.ffn_width"));
  EXPECT_THAT(reason_with([](PointParams& p) { p.pass = Pass::kBackward; }),
              HasSubstr("forward_backward"));
}

// Gradients that a GPU makes are held against an fp32 run in the memory and time of the cores.
TEST(ModelPoint, AGpusGradientsAreCheckedOnTheCores) {
  Point point = model_point("dilated", 2);
  const int64_t check = plan_point(point, {}, 1, 2).memory_bytes();
  point.params.kernel = "cuda", point.params.problem.dtype = DType::kBFloat16;
  const auto planned = [&](const MachineLimits& limits) { return plan_point(point, limits, 1, 2); };
  EXPECT_EQ(planned({.memory_bytes = 2 * check}).point.status, PointStatus::kOk);
  EXPECT_EQ(planned({.memory_bytes = 2 * check}).check_bytes, check);
  const PointPlan small = planned({.memory_bytes = 2 * check - 1});
  EXPECT_EQ(small.point.status, PointStatus::kSkippedMemory);
  EXPECT_THAT(small.point.reason, testing::HasSubstr("the fp32 run on the cores"));
  const double flops = small.account.max_rank_flops;
  EXPECT_EQ(planned({.flops_per_rank = flops, .point_timeout_s = 2}).check_s, 1);
  const PointPlan slow = planned({.flops_per_rank = flops, .point_timeout_s = 0.5});
  EXPECT_EQ(slow.point.status, PointStatus::kTimeout);
  EXPECT_THAT(slow.point.reason, testing::HasSubstr("the fp32 run on the cores"));
}

PointPlan planned_within(const Point& point, int64_t memory_bytes) {
  MachineLimits limits;
  limits.memory_bytes = memory_bytes;
  return plan_point(point, limits, 1, 1);
}

int64_t planned_memory(const Point& point) { return plan_point(point, {}, 1, 1).memory_bytes(); }

// bf16 would be cheaper, but its check needs the fp32 run beside it.
TEST(ModelPoint, RecomputingIsTheCheapestChangeOfMemory) {
  const Point point = model_point("dilated", 1);
  Point full = point, bf16 = point;
  full.params.model.recompute = Recompute::kFull;
  bf16.params.problem.dtype = DType::kBFloat16;
  const int64_t most = std::max(planned_memory(full), planned_memory(bf16));
  ASSERT_LT(most, planned_memory(point));
  const PointPlan plan = planned_within(point, most);
  EXPECT_EQ(plan.point.status, PointStatus::kSkippedMemory);
  EXPECT_TRUE(plan.point.reason.ends_with("; fits with recompute=full")) << plan.point.reason;
}

TEST(ModelPoint, ShardingTheOptimizerIsAChangeOfMemory) {
  for (const int ranks : {1, 2}) {
    Point point = model_point("dilated", ranks);
    point.params.model.recompute = Recompute::kFull;
    Point sharded = point;
    sharded.params.model.shard_optimizer = true;
    MachineLimits limits;
    limits.memory_bytes = ranks * planned_memory(point) - 1;
    const std::string reason = plan_point(point, limits, 1, ranks).point.reason;
    const bool smaller = planned_memory(sharded) < planned_memory(point);
    EXPECT_EQ(smaller, ranks == 2);
    EXPECT_EQ(reason.ends_with("; fits with shard_optimizer=true"), smaller) << reason;
  }
}

TEST(ModelPoint, CheckedGradientsInBf16NeedTheMemoryOfAnFp32RunToo) {
  for (const Pass pass : {Pass::kForward, Pass::kStep}) {
    const Point wide = model_point("dilated", 1, pass);
    Point bf16 = wide;
    bf16.params.problem.dtype = DType::kBFloat16;
    const int64_t check = pass == Pass::kForward ? 0 : planned_memory(wide);
    const int64_t needed = planned_memory(bf16) + check;
    EXPECT_EQ(planned_within(bf16, needed).point.status, PointStatus::kOk);
    const PointPlan plan = planned_within(bf16, needed - 1);
    EXPECT_EQ(plan.point.status, PointStatus::kSkippedMemory);
    EXPECT_EQ(plan.point.reason.find("against an fp32 run") != std::string::npos, check > 0)
        << plan.point.reason;
  }
}

TEST(ModelPoint, WorkIsThatOfProductsAndAttention) {
  const Point point = model_point("dilated", 2, Pass::kForward);
  const PointPlan plan = plan_point(point, {}, 1, 2);
  const auto of_rank = [&](Rank rank) {
    return account(sharded_problem(point.params), make_schedule(point.params).program(rank), rank);
  };
  const RankAccount a = of_rank(0), b = of_rank(1);
  // A token takes 4 width^2 + 2 width ffn_width multiply-adds a layer, and those of its logits.
  const double width = 64, of_layer = 4 * width * width + 2 * width * 96;
  EXPECT_EQ(a.gemm_flops + b.gemm_flops, 2 * 2 * 128 * (2 * of_layer + 61 * width));
  EXPECT_EQ(a.flops, a.gemm_flops + 4 * 16 * a.pairs);
  EXPECT_EQ(plan.account.max_rank_flops, std::max(a.flops, b.flops));
  EXPECT_EQ(plan.account.flops, a.flops + b.flops);
}

TEST(ModelPoint, WorkOfManyRanksFollowsFromAFew) {
  PointParams p = model_point("dilated", 8, Pass::kStep).params;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    p.model.recompute = recompute;
    const WorldAccount all = account(make_schedule(p));
    const WorldAccount few = account(make_schedule(p), 5, p.model.layers);
    EXPECT_DOUBLE_EQ(few.pairs, all.pairs);
    EXPECT_DOUBLE_EQ(few.flops, all.flops);
  }
  EXPECT_EQ(max_accounted(p), kMaxAccountedRanks);
  p.model.layers = 513;
  EXPECT_EQ(max_accounted(p), 5);
}

// Changes that do not fit are left out by it, without the ops of their programs.
TEST(ModelPoint, TheLeastSlotsAreMostOfThoseOfAProgramAndNoMore) {
  for (const char* algorithm : {"local", "ring", "dilated", "all_gather"})
    for (const Scope scope : {Scope::kModel, Scope::kLayer}) {
      PointParams p = model_point(algorithm, algorithm == std::string("local") ? 1 : 4).params;
      p.scope = scope;
      if (scope == Scope::kLayer) p.pass = Pass::kForwardBackward;
      const int64_t least = least_slots(p), all = predicted_slots(make_schedule(p));
      EXPECT_LE(least, all) << algorithm;
      EXPECT_GT(2 * least, all) << algorithm;
    }
  EXPECT_EQ(least_slots(small_point("ring", 2).params), 0);
}

}  // namespace
}  // namespace longnet
