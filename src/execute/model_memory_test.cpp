// Training steps against the definition in double, and the same numbers for any number of ranks,
// algorithm and option.
#include "execute/model_memory.h"

#include <gmock/gmock.h>

#include <cmath>
#include <mutex>
#include <set>

#include "comm/threads/thread_world.h"
#include "core/random.h"
#include "execute/program_executor.h"
#include "execute/testing/allocation_counter.h"
#include "kernels/testing/reference_model_kernel.h"
#include "model/testing/model_definition.h"
#include "model/testing/step_case.h"
#include "schedule/check_schedule.h"

namespace longnet {
namespace {

// Tokens of which few are frequent, as in a text. With equally frequent tokens the gradients of
// biases, sums over all rows, nearly cancel, and some are 1 to 1.4 * 10^-6 of their norm off.
std::vector<int32_t> tokens_of(const ModelCase& c) {
  const auto vocabulary = uint32_t(c.shape.vocabulary);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < c.problem.batch * (c.problem.seq_len + 1); ++i) {
    const PhiloxBlock block = row_words({7, Tensor::kKey, i, 0}, 0);
    tokens.push_back(
        int32_t(block.word[0] % vocabulary * (block.word[1] % vocabulary) / vocabulary));
  }
  return tokens;
}

struct Trained {
  std::vector<double> losses = {};
  double norm = 0;                                  // the gradients', by which the first step clips
  std::vector<float> gradients = {}, weights = {};  // after the first step, and after the last
};

Trained train(const ModelCase& c, int steps, bool check_program = false) {
  const Schedule step = program_of(c), losses = program_of(c, Pass::kForward);
  const auto kernel = make_kernel(c.kernel);
  const auto model_kernel =
      c.kernel == "reference" ? make_reference_model_kernel() : make_cpu_model_kernel();
  if (check_program) require_correct(step);
  const Parameters whole(c.shape, c.problem);
  Trained out;
  std::mutex writes;
  // Puts some of a rank's values in their places among all.
  const auto collect = [&](const Parameters& own, std::span<const float> from, TokenInterval some,
                           std::vector<float>& into) {
    into.resize(size_t(whole.count()), NAN);
    for (const Parameter& p : own.all()) {
      const int64_t first = whole.find(p.name).first + p.from;
      for (int64_t i = std::max<int64_t>(0, some.begin - p.first);
           i < std::min(p.count(), some.end - p.first); ++i)
        into[size_t(first + i / p.cols * p.all_cols + i % p.cols)] = from[size_t(p.first + i)];
    }
  };
  run_on_threads(c.ranks * c.replicas * c.head_groups, [&](Communicator& comm) {
    MemoryLedger ledger;
    ProgramExecutor executor(step, *kernel, c.threads, comm, ledger, model_kernel.get());
    Trainer trainer(c.shape, executor, losses);
    trainer.initialise(3);
    Trained own{.losses = {trainer.evaluate(tokens_of(c))}};
    for (int i = 1; i <= steps; ++i) {
      const StepResult result = trainer.step(tokens_of(c), i, 1e-2);
      own.losses.push_back(result.loss);
      const std::scoped_lock lock(writes);
      if (i == 1) out.norm = result.gradient_norm;
      if (i == 1)
        collect(trainer.parameters(), trainer.values(kWeightGradientSlot), trainer.updated(),
                out.gradients);
    }
    const std::scoped_lock lock(writes);
    collect(trainer.parameters(), trainer.values(kWeightSlot), {0, trainer.parameters().count()},
            out.weights);
    if (comm.rank() == 0) out.losses = own.losses;
  });
  return out;
}

double norm(std::span<const float> values) {
  double squares = 0;
  for (const float v : values) squares += double(v) * double(v);
  return std::sqrt(squares);
}

double distance(std::span<const float> a, std::span<const float> b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += std::pow(double(a[i]) - double(b[i]), 2);
  return std::sqrt(squares);
}

TEST(Model, GradientsAreThoseOfTheDefinition) {
  for (const auto& [algorithm, positions] :
       {std::pair("dilated", Positions::kNone), std::pair("dilated", Positions::kRotary),
        std::pair("dilated", Positions::kXpos), std::pair("sparse", Positions::kXpos)}) {
    ModelCase c{.algorithm = algorithm, .ranks = 2};
    c.shape.positions = positions;
    const Trained trained = train(c, 1);
    const Parameters parameters(c.shape, c.problem);
    std::vector<float> initial(size_t(parameters.count()));
    parameters.initialise(initial, 3);
    std::vector<double> weights(initial.begin(), initial.end());
    const auto loss = [&] {
      return defined_loss(c.shape, c.problem, pattern_of(c), weights, tokens_of(c));
    };
    EXPECT_NEAR(trained.losses[0], loss(), 1e-6);
    EXPECT_NEAR(trained.losses[1], loss(), 1e-6);
    for (const Parameter& p : parameters.all())
      for (int64_t k = 0; k < std::min<int64_t>(p.count(), 3); ++k) {
        const auto at = size_t(p.first + k * (p.count() / 3));
        const double step = 1e-4, before = weights[at];
        weights[at] = before + step;
        const double above = loss();
        weights[at] = before - step;
        const double below = loss();
        weights[at] = before;
        EXPECT_NEAR(trained.gradients[at], (above - below) / (2 * step), 2e-6)
            << algorithm << ", " << p.name << " " << at - size_t(p.first) << ", positions "
            << to_string(positions);
      }
  }
}

// The gradients of a step, the losses of four and the weights after them are those of one rank. Of
// key.bias, which adds nearly the same to all scores of a query, little but rounding is left.
// `later`: difference of losses after steps, in which AdamW makes rounding of gradients that are 0,
// as those of the bias of keys, a step of the learning rate.
void expect_same(const Trained& one, const ModelCase& c, double later = 1e-6) {
  const Trained other = train(c, 4, /*check_program=*/true);
  for (size_t i = 0; i < one.losses.size(); ++i)
    EXPECT_NEAR(other.losses[i] / one.losses[i], 1, i < 2 ? 1e-6 : later)
        << describe(c) << " step " << i;
  EXPECT_NEAR(other.norm / one.norm, 1, 1e-6) << describe(c);
  const Parameters parameters(c.shape, c.problem);
  for (const Parameter& p : parameters.all()) {
    const auto of = [&](const Trained& t) {
      return std::span(t.gradients).subspan(size_t(p.first), size_t(p.count()));
    };
    const double most = p.name.ends_with("key.bias") ? one.norm : norm(of(one));
    EXPECT_LT(distance(of(other), of(one)), 1e-6 * most) << describe(c) << " " << p.name;
  }
  EXPECT_LT(distance(other.gradients, one.gradients), 1e-6 * one.norm) << describe(c);
  EXPECT_LT(distance(other.weights, one.weights), 1e-4 * norm(one.weights)) << describe(c);
}

TEST(Model, TheSameOnAnyNumberOfRanks) {
  for (const char* algorithm : {"dilated", "sparse"})
    for (const char* kernel : {"reference", "cpu"}) {
      ModelCase c{.algorithm = algorithm, .kernel = kernel};
      const Trained one = train(c, 4);
      EXPECT_LT(one.losses.back(), one.losses.front());
      for (c.ranks = 1; c.ranks <= 4; ++c.ranks)
        for (const bool sharded : {false, true}) {
          c.shape.shard_optimizer = sharded;
          expect_same(one, c);
        }
    }
}

TEST(Model, TheSameInReplicas) {
  ModelCase c{.kernel = "cpu"};
  c.problem.batch = 6;
  for (const char* algorithm : {"dilated", "ring", "ulysses"}) {
    c.algorithm = algorithm;
    c.ranks = c.replicas = 1, c.shape.shard_optimizer = false;
    const Trained one = train(c, 4);
    for (c.replicas = 2; c.replicas <= 3; ++c.replicas)
      for (c.ranks = 1; c.ranks <= 2; ++c.ranks) {
        c.shape.shard_optimizer = c.ranks == 2;
        expect_same(one, c);
      }
  }
}

TEST(Model, TheSameWhereRanksSplitHeads) {
  ModelCase c{.shape = {.layers = 2, .ffn_width = 48, .vocabulary = 19}, .kernel = "cpu"};
  c.problem.num_heads = 12, c.problem.num_kv_heads = 6;
  for (const char* algorithm : {"dilated", "ring", "ulysses", "query_ring", "all_gather"}) {
    c.algorithm = find_algorithm(algorithm).pattern == PatternKind::kDense ? "local" : algorithm;
    c.ranks = c.replicas = c.head_groups = 1, c.shape.shard_optimizer = false;
    const Trained one = train(c, 4);
    c.algorithm = algorithm;
    for (const Recompute recompute : enum_values<Recompute>())
      for (c.head_groups = 2; c.head_groups <= 3; ++c.head_groups)
        for (c.ranks = 1; c.ranks <= 2; ++c.ranks)
          for (c.replicas = 1; c.replicas <= 2; ++c.replicas) {
            c.shape.recompute = recompute;
            c.shape.shard_optimizer = c.ranks == 2 && c.replicas == 2;
            expect_same(one, c, /*later=*/2e-5);
          }
  }
}

TEST(Model, TheSameByEveryExactAlgorithm) {
  ModelCase c{.algorithm = "local", .kernel = "cpu"};
  const Trained one = train(c, 4);
  std::set<std::string> exact, ran;
  for (const AlgorithmInfo& algorithm : algorithms()) {
    if (algorithm.pattern != PatternKind::kDense || algorithm.one_rank_only) continue;
    exact.emplace(algorithm.name);
    for (const LayoutKind layout :
         {LayoutKind::kContiguous, LayoutKind::kZigzag, LayoutKind::kStriped})
      for (c.ranks = 2; c.ranks <= 4; ++c.ranks) {
        c.algorithm = algorithm.name, c.layout = layout;
        const ShardedProblem s{c.problem, pattern_of(c), {c.problem.seq_len, c.ranks, layout}};
        if (!why_no_program(algorithm, s, Pass::kForwardBackward).empty()) continue;
        expect_same(one, c);
        ran.insert(c.algorithm);
      }
  }
  EXPECT_EQ(ran, exact);
  EXPECT_GE(exact.size(), 8u);
}

TEST(Model, TheSameWhateverIsComputedAgainAndOnAnyThreads) {
  ModelCase c{.ranks = 2, .kernel = "cpu"};
  const Trained one = train(c, 3);
  for (const Recompute recompute : enum_values<Recompute>())
    for (const bool keep : {false, true})
      for (const int threads : {1, 3}) {
        c.shape.recompute = recompute, c.keep_gathered = keep, c.threads = threads;
        EXPECT_EQ(train(c, 3, /*check_program=*/keep).weights, one.weights)
            << describe(c) << " threads " << threads;
      }
}

TEST(Model, AStepAllocatesNothingOnceWarm) {
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const Recompute recompute : {Recompute::kKeepAttention, Recompute::kFull})
      for (const bool sharded : {false, true})
        for (const int threads : {1, 2}) {
          ModelCase c{.algorithm = std::string(algorithm.name), .kernel = "cpu"};
          c.ranks = algorithm.one_rank_only ? 1 : 2, c.head_groups = threads;
          c.problem.num_kv_heads = 4;
          c.shape.recompute = recompute, c.shape.shard_optimizer = sharded;
          const Schedule step = program_of(c);
          const auto kernel = make_kernel(c.kernel);
          const auto model_kernel = make_cpu_model_kernel();
          run_on_threads(c.ranks * c.head_groups, [&](Communicator& comm) {
            MemoryLedger ledger;
            ProgramExecutor executor(step, *kernel, threads, comm, ledger, model_kernel.get());
            ModelMemory model(c.shape, executor);
            EXPECT_EQ(allocations_once_warm(model, comm), 0)
                << describe(c) << " threads " << threads;
          });
        }
}

}  // namespace
}  // namespace longnet
