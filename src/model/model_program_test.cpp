// Programs of training steps: their memory by formulas, and what the checker finds in wrong ones.
#include "model/model_program.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <map>

#include "model/testing/step_case.h"
#include "schedule/check_schedule.h"

namespace longnet {
namespace {

// Memory of one rank in a training step, with exact attention on one rank and with dilated
// attention, which adds packs, gathered rows and partial sums under other tags.
TEST(ModelProgram, MemoryByTagIsThatOfItsFormula) {
  for (const char* algorithm : {"local", "dilated"})
    for (const Recompute recompute : enum_values<Recompute>())
      for (const bool sharded : {false, true}) {
        ModelCase c{.algorithm = algorithm, .ranks = algorithm == std::string("local") ? 1 : 3};
        c.shape.layers = 3, c.shape.recompute = recompute, c.shape.shard_optimizer = sharded;
        const int64_t rows = c.problem.seq_len / c.ranks * c.problem.batch, layers = 3, ffn = 40;
        const int64_t d = 4 * 8, k = 2 * 8, vocabulary = 19, heads = 4;
        const int64_t of_layer =
            2 * d * (d + k + ffn) + (d + 2 * k + ffn + 2 * d) + 2 * (3 * d + ffn);
        const int64_t count = layers * of_layer + vocabulary * d + 2 * d, unit = 16 * c.ranks;
        const int64_t weights = (count + unit - 1) / unit * unit;
        const int64_t kept = recompute == Recompute::kNone ? layers * (4 * d + 3 * ffn) : 0;
        const int64_t attended = recompute == Recompute::kFull ? 1 : layers;
        const std::map<std::string, int64_t> values = {
            {"weights", weights},
            {"weight_gradients", weights},
            {"optimizer", 2 * weights / (sharded ? c.ranks : 1)},
            {"activations", rows * ((layers + 6) * d + 4 * ffn + kept) + 4 * c.ranks},
            {"query", attended * rows * d},
            {"key_value", attended * rows * 2 * k},
            {"output", attended * rows * (d + heads)},  // and its LSE
            {"grad_out", rows * d},
            {"statistics", rows * 2 * heads},
            {"grad_query", rows * d},
            {"grad_key_value", rows * 2 * k},
            {"tokens", 2 * rows + 2},
            {"logits", std::min<int64_t>(rows, 11) * vocabulary}};
        for (Rank rank = 0; rank < c.ranks; ++rank) {
          const auto counted = program_of(c).program(rank).memory_by_tag();
          for (const auto& [tag, count_of] : values)
            EXPECT_EQ(counted.at(tag), 4 * count_of) << describe(c) << " " << tag;
          EXPECT_EQ(counted.size() == values.size(), c.ranks == 1) << describe(c);
          if (c.ranks == 1) continue;
          // Gathered rows lie in one place for each pass, or in each layer until the second pass.
          ModelCase keeping = c;
          keeping.keep_gathered = true;
          const auto keeps = program_of(keeping).program(rank).memory_by_tag();
          EXPECT_EQ(keeps.at("gathered"), attended * counted.at("gathered") / 2)
              << describe(keeping);
        }
      }
}

TEST(ModelProgram, PlantedFaultsOfAProgramAreFound) {
  ModelCase c{.ranks = 2};
  Pass pass = Pass::kStep;
  const auto faults_with = [&](const std::function<void(RankProgram&)>& plant) {
    Schedule step = program_of(c, pass);
    step.program = [make = step.program, plant](Rank rank) {
      RankProgram program = make(rank);
      if (rank == 1) plant(program);
      return program;
    };
    return check_schedule(step);
  };
  EXPECT_THAT(faults_with([](RankProgram&) {}), testing::IsEmpty());
  const auto weight_gradient = [](const Op& op) {
    const auto* gemm = std::get_if<Gemm>(&op.what);
    return gemm && gemm->transpose_a;
  };
  // A gradient that a rank never adds, or adds twice; the sum of one layer's input.
  const std::string lacks = "do not hold every row of the batch once";
  EXPECT_THAT(faults_with([&](RankProgram& p) {
                const auto op = std::ranges::find_if(p.ops, weight_gradient);
                op->what = RowWise{{{}, {}, false}, RowFunction::kAdd};
              }),
              testing::Contains(testing::HasSubstr(lacks)));
  EXPECT_THAT(faults_with([&](RankProgram& p) {
                auto& gemm = std::get<Gemm>(std::ranges::find_if(p.ops, weight_gradient)->what);
                gemm.from.push_back(gemm.from[1]);
                gemm.into.push_back(gemm.into[0]);
              }),
              testing::Contains(testing::HasSubstr(lacks)));
  EXPECT_THAT(faults_with([&](RankProgram& p) {
                std::ranges::find_if(p.ops, weight_gradient)->after.clear();
              }),
              testing::Contains(testing::HasSubstr("races")));
  // Sums that come from the other replica and are never added.
  c.ranks = 1, c.replicas = 2;
  EXPECT_THAT(faults_with([](RankProgram&) {}), testing::IsEmpty());
  EXPECT_THAT(faults_with([](RankProgram& p) {
                const auto merge = std::ranges::find_if(p.ops, [&](const Op& op) {
                  const auto* m = std::get_if<Merge>(&op.what);
                  return m && p.slots[size_t(m->from.slot)].kind == TensorKind::kValues;
                });
                merge->what = RowWise{{{}, {}, false}, RowFunction::kAdd};
              }),
              testing::Contains(testing::HasSubstr(lacks)));
  // Rows that are not summed up over the ranks that split heads, or without the part of one.
  c.replicas = 1, c.head_groups = 2;
  EXPECT_THAT(faults_with([](RankProgram&) {}), testing::IsEmpty());
  const std::string lacks_heads = "does not hold what head group 0 adds, once";
  EXPECT_THAT(faults_with([](RankProgram& p) {
                const auto merge = std::ranges::find_if(p.ops, [&](const Op& op) {
                  const auto* m = std::get_if<Merge>(&op.what);
                  return m && p.slots[size_t(m->into.slot)].tag == SlotTag::kActivations;
                });
                merge->what = RowWise{{{}, {}, false}, RowFunction::kAdd};
              }),
              testing::Contains(testing::HasSubstr(lacks_heads)));
  EXPECT_THAT(faults_with([](RankProgram& p) {
                const auto part = std::ranges::find_if(p.ops, [&](const Op& op) {
                  const auto* gemm = std::get_if<Gemm>(&op.what);
                  return gemm && gemm->of_heads;
                });
                std::get<Gemm>(part->what).of_heads = false;
              }),
              testing::Contains(testing::HasSubstr("does not hold what head group 1 adds")));
  c.head_groups = 1, c.replicas = 2;
  // Without an update, a gradient that the own rows add to twice.
  pass = Pass::kForwardBackward;
  EXPECT_THAT(faults_with([](RankProgram&) {}), testing::IsEmpty());
  EXPECT_THAT(faults_with([&](RankProgram& p) {
                auto& gemm = std::get<Gemm>(std::ranges::find_if(p.ops, weight_gradient)->what);
                gemm.from.push_back(gemm.from[1]);
                gemm.into.push_back(gemm.into[0]);
              }),
              testing::Contains(testing::HasSubstr(lacks)));
}

}  // namespace
}  // namespace longnet
