// The check of gradients passes right ones and fails every fault that is planted in a program.
#include "execute/gradient_check.h"

#include <gtest/gtest.h>

#include "core/testing/test_support.h"
#include "execute/testing/executor_case.h"
#include "schedule/testing/planted_fault.h"

namespace longnet {
namespace {

struct Found {
  bool gradients = true;  // all three are right
  Conservation laws;
};

Schedule both_passes(const Case& c) {
  return lower_collectives(
      make_schedule(find_algorithm(c.algorithm), sharded(c), Pass::kForwardBackward),
      parse_collective(c.collective));
}

Found check_gradients(const Schedule& right, const Schedule& schedule, const std::string& kernel) {
  const auto made = make_kernel(kernel);
  Found found;
  run_on_threads(right.sharded.layout.world_size(), [&](Communicator& comm) {
    MemoryLedger ledger;
    ProgramExecutor before(right, *made, 1, comm, ledger),
        executor(schedule, *made, 1, comm, ledger);
    before.fill_inputs();
    executor.fill_inputs();
    before.run();
    comm.barrier();
    const GradientCheck check(before, choose_samples(right.sharded, 40), comm);
    executor.run();
    const Conservation laws = conservation(executor, comm);
    // The check looks at the rows of the executor that it was made for.
    for (const int slot : {kGradQuerySlot, kGradKvSlot})
      std::ranges::copy(executor.bound().memory(slot), before.bound().memory(slot).begin());
    const auto outcomes = check.judge_together(check.compare(), comm, 0);
    if (comm.rank() > 0) return;
    found.laws = laws;
    for (const CheckOutcome& outcome : outcomes) found.gradients = found.gradients && outcome.pass;
  });
  return found;
}

constexpr AttentionProblem kGradientProblem{
    .seq_len = 96, .num_heads = 4, .num_kv_heads = 2, .head_dim = 16, .batch = 2};
const DilatedPattern kGradientPattern{.branches = {{24, 1}, {96, 3}}};

TEST(GradientCheck, PassesWhatIsRight) {
  CasesRun ran;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const std::string& kernel : names_of(kernels()))
      for (const int ranks : some_of<int>({2, 3, 1}))
        for (const bool causal : {false, true}) {
          Case c{.algorithm = std::string(algorithm.name),
                 .problem = kGradientProblem,
                 .pattern = kGradientPattern,
                 .ranks = ranks,
                 .kernel = kernel};
          c.problem.causal = causal;
          c.problem.dtype = ranks == 2 ? DType::kBFloat16 : DType::kFloat32;
          if (!why_no_backward(algorithm, sharded(c)).empty()) continue;
          const Schedule schedule = both_passes(c);
          const Found found = check_gradients(schedule, schedule, kernel);
          EXPECT_TRUE(found.gradients) << describe(c);
          EXPECT_TRUE(found.laws.hold()) << describe(c) << " " << found.laws.keys << " "
                                         << found.laws.scores << " " << found.laws.values;
          ran.add(concat(algorithm.name, " ", kernel), true);
        }
  ran.expect_some_of_each();
}

TEST(GradientCheck, FindsFaults) {
  const auto expect_found = [](const char* algorithm, Rank victim, auto fault) {
    const Schedule right = both_passes({.algorithm = algorithm,
                                        .problem = kGradientProblem,
                                        .pattern = kGradientPattern,
                                        .ranks = 3});
    const Found found = check_gradients(right, with_fault(right, victim, fault), "cpu");
    EXPECT_FALSE(found.gradients) << algorithm;
    EXPECT_FALSE(found.laws.hold()) << algorithm;
  };
  // The sum of other ranks for the own keys is added to itself, and so lost.
  const auto dropped = [](RankProgram& p) {
    for (Op& op : p.ops)
      if (auto* merge = std::get_if<Merge>(&op.what); merge && merge->into.slot == kGradKvSlot) {
        merge->into = merge->from;
        return;
      }
    throw Error("no merge");
  };
  for (const char* algorithm : {"ring", "all_gather", "dilated"})
    expect_found(algorithm, 1, dropped);
  // One rank takes Q for dO in its statistics.
  expect_found("ring", 2, [](RankProgram& p) { first<Delta>(p).grad_out.slot = kQuerySlot; });
}

// Laws alone find a row that is no sample.
TEST(GradientCheck, LawsSeeEveryRow) {
  const Schedule schedule = both_passes(
      {.algorithm = "local", .problem = kGradientProblem, .pattern = kGradientPattern, .ranks = 1});
  const auto kernel = make_kernel("cpu");
  run_on_threads(1, [&](Communicator& comm) {
    MemoryLedger ledger;
    ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
    executor.fill_inputs();
    executor.run();
    const int64_t token = 57;
    const auto row = [&](Tensor tensor) {
      return gradient_row(executor.bound(), tensor, 1, 1, token);
    };
    const auto broken_without = [&](Tensor tensor) {
      auto* const at = const_cast<float*>(row(tensor).data());
      std::vector<float> kept(at, at + kGradientProblem.head_dim);
      std::fill_n(at, kGradientProblem.head_dim, 0.0f);
      const Conservation laws = conservation(executor, comm);
      std::ranges::copy(kept, at);
      return laws;
    };
    EXPECT_GT(broken_without(Tensor::kQuery).scores, kLawTolerance);
    EXPECT_GT(broken_without(Tensor::kKey).keys, kLawTolerance);
    EXPECT_GT(broken_without(Tensor::kKey).scores, kLawTolerance);
    EXPECT_GT(broken_without(Tensor::kValue).values, kLawTolerance);
    const Conservation right = conservation(executor, comm);
    EXPECT_LE(std::max({right.keys, right.scores, right.values}), kLawTolerance);
  });
}

}  // namespace
}  // namespace longnet
