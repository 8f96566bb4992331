// The check of gradients passes right ones and fails every fault that is planted in a program.
#include "execute/gradient_check.h"

#include <gtest/gtest.h>

#include <limits>

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
          if (!why_no_program(algorithm, sharded(c), Pass::kBackward).empty() ||
              !make_kernel(kernel)->why_unsupported({}).empty())
            continue;
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

TEST(GradientCheck, FindsAWrongRowInEveryMixture) {
  for (const MixRule mix : enum_values<MixRule>())
    for (const int ranks : {1, 3}) {
      Case c{.problem = kGradientProblem, .pattern = kGradientPattern, .ranks = ranks};
      c.pattern.mix = mix;
      c.problem.causal = ranks == 3;
      const Schedule schedule = both_passes(c);
      const auto kernel = make_kernel("cpu");
      run_on_threads(ranks, [&](Communicator& comm) {
        MemoryLedger ledger;
        ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
        executor.fill_inputs();
        executor.run();
        const GradientCheck check(executor, choose_samples(schedule.sharded, 40), comm);
        ASSERT_GE(int64_t(check.keys().keys.size()), kFewestKeys);
        // Whether dQ, dK and dV pass when the row of some key has this factor.
        const auto passes = [&](Tensor tensor, float factor) {
          const KeySample& key = check.keys().keys[7];
          std::span<float> row;
          if (has_row(executor.bound(), key.batch, key.token)) {
            const auto found =
                gradient_row(executor.bound(), tensor, key.batch, key.kv_head, key.token);
            row = {const_cast<float*>(found.data()), found.size()};
          }
          const std::vector<float> kept(row.begin(), row.end());
          for (float& x : row) x *= factor;
          const auto outcomes = check.judge_together(check.compare(), comm, 0);
          std::ranges::copy(kept, row.begin());
          return std::array{outcomes[0].pass, outcomes[1].pass, outcomes[2].pass};
        };
        EXPECT_EQ(passes(Tensor::kKey, 1), (std::array{true, true, true})) << describe(c);
        EXPECT_EQ(passes(Tensor::kKey, 0.99f), (std::array{true, false, true})) << describe(c);
        EXPECT_EQ(passes(Tensor::kValue, 0.99f), (std::array{true, true, false})) << describe(c);
      });
    }
}

KeyChoice keys_of_samples(const ShardedProblem& s) {
  return choose_keys(s, stratify(s, choose_samples(s, 40), 2048).queries);
}

void expect_every_stratum(const ShardedProblem& s, int64_t keys) {
  const AttentionProblem& p = s.problem;
  const int64_t shared_by = p.num_heads / p.num_kv_heads, ranks = s.layout.world_size();
  const KeyChoice choice = keys_of_samples(s);
  EXPECT_EQ(choice.strata, (int64_t(s.pattern.branches.size()) + ranks) * p.num_kv_heads);
  EXPECT_EQ(choice.strata_left_out, 0);
  EXPECT_EQ(int64_t(choice.keys.size()), keys);
  for (int64_t kv_head = 0; kv_head < p.num_kv_heads; ++kv_head) {
    const auto some = [&](auto is) {
      return std::ranges::any_of(choice.keys, [&](const KeySample& key) {
        return key.kv_head == kv_head && is(key.token);
      });
    };
    for (const DilatedBranch& b : s.pattern.branches)
      EXPECT_TRUE(some([&](int64_t token) {  // which the query of the next selected token sees
        const int64_t next = token + b.dilation_rate;
        bool selected = false;
        for (int64_t head = kv_head * shared_by; head < (kv_head + 1) * shared_by; ++head)
          selected |= token % b.segment_length % b.dilation_rate == head % b.dilation_rate;
        return selected && next / b.segment_length == token / b.segment_length;
      })) << "rate "
          << b.dilation_rate << " K/V head " << kv_head;
    for (Rank r = 0; r < ranks; ++r)
      EXPECT_TRUE(some([&](int64_t t) { return s.layout.shard(r).index_of(t) >= 0; })) << r;
  }
}

TEST(ChooseKeys, EveryBranchAndEveryRankHaveAKeyOfEachHead) {
  AttentionProblem p{.seq_len = 192, .num_heads = 12, .num_kv_heads = 4, .batch = 2};
  for (const bool causal : {false, true}) {
    p.causal = causal;
    expect_every_stratum({p, {.branches = {{24, 1}, {48, 3}, {192, 6}}}, {p.seq_len, 8}}, 64);
  }
  // 72 strata of one rank: 32 keys would miss most.
  p = {.seq_len = 2048, .num_heads = 12, .num_kv_heads = 12};
  expect_every_stratum(
      {p, {.branches = {{128, 1}, {256, 2}, {512, 4}, {1024, 6}, {2048, 12}}}, {p.seq_len, 1}}, 60);
}

TEST(ChooseKeys, APairWithoutKeysIsNoStratum) {  // heads 4 to 7 select nothing of four tokens
  const AttentionProblem p{.seq_len = 96, .num_heads = 8, .num_kv_heads = 8};
  const KeyChoice choice = keys_of_samples({p, {.branches = {{96, 1}, {4, 8}}}, {p.seq_len, 2}});
  EXPECT_EQ(choice.strata, 8 + 4 + 2 * 8);
  EXPECT_EQ(choice.strata_left_out, 0);
}

TEST(ChooseKeys, WhatIsBeyondTheBudgetIsCounted) {
  const AttentionProblem p{.seq_len = 1024, .num_heads = 12, .num_kv_heads = 12};
  ShardedProblem s{p, {.branches = {{128, 1}, {1024, 8}}}, {p.seq_len, 32}};
  const KeyChoice choice = keys_of_samples(s);
  EXPECT_EQ(int64_t(choice.keys.size()), kMostKeys);
  EXPECT_EQ(choice.strata, 2 * 12 + 32 * 12);
  EXPECT_GE(choice.strata_left_out, 32 * 12 - kMostKeys);
  EXPECT_LT(choice.strata_left_out, 32 * 12);
  EXPECT_TRUE(choice.is_full);
}

// O and L of a branch take as many pairs as it has keys of a segment, squared.
TEST(ChooseKeys, OfOtherMixturesAsManyAsCanBeComputed) {
  const AttentionProblem p{.seq_len = 16384, .num_heads = 4, .num_kv_heads = 4};
  for (const MixRule mix : {MixRule::kMean, MixRule::kSum, MixRule::kLseDetached}) {
    ShardedProblem s{p, {.branches = {{4096, 1}, {8192, 2}}, .mix = mix}, {p.seq_len, 2}};
    KeyChoice choice = keys_of_samples(s);  // 2^25 of each
    EXPECT_EQ(choice.keys.size(), 2u);
    EXPECT_TRUE(choice.is_full);
    EXPECT_EQ(choice.strata, 4 * 2 + 2 * 4);
    EXPECT_GT(choice.strata_left_out, 0);
    s.pattern.branches = {{256, 1}, {8192, 16}};
    choice = keys_of_samples(s);
    EXPECT_EQ(int64_t(choice.keys.size()), kFewestKeys);
    EXPECT_FALSE(choice.is_full);
    EXPECT_EQ(choice.strata_left_out, 0);
    s.pattern.branches = {{16384, 1}};
    choice = keys_of_samples(s);
    EXPECT_TRUE(choice.keys.empty());
    EXPECT_TRUE(choice.is_full);
    s.pattern.mix = MixRule::kLse;
    EXPECT_EQ(int64_t(keys_of_samples(s).keys.size()), kFewestKeys);
  }
}

TEST(Conservation, EachLawFailsAlone) {
  for (double Conservation::*const law :
       {&Conservation::keys, &Conservation::scores, &Conservation::values})
    for (const double wrong : {2e-6, std::numeric_limits<double>::quiet_NaN()}) {
      Conservation laws, worst;
      EXPECT_TRUE(laws.hold());
      laws.*law = wrong;
      EXPECT_FALSE(laws.hold());
      worst.keep_worst(laws);
      EXPECT_FALSE(worst.hold());
      worst.keep_worst({});
      EXPECT_FALSE(worst.hold());
    }
  const ShardedProblem s{kGradientProblem, kGradientPattern, {kGradientProblem.seq_len, 1}};
  const auto laws_of = [&](const LawTerms& terms) { return conservation(terms, s, true); };
  LawTerms right;
  right.keys.resize(2 * 2 * 2 * 16);  // two sequences of two K/V heads
  EXPECT_TRUE(laws_of(right).hold());
  for (const size_t at : {size_t(0), right.keys.size() - 32}) {
    LawTerms wrong = right;
    wrong.keys[at] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_FALSE(laws_of(wrong).hold());
  }
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
    const auto broken_by = [&](Tensor tensor, float factor) {
      auto* const at = const_cast<float*>(row(tensor).data());
      std::vector<float> kept(at, at + kGradientProblem.head_dim);
      std::ranges::transform(kept, at, [&](float x) { return factor * x; });
      const Conservation laws = conservation(executor, comm);
      std::ranges::copy(kept, at);
      return laws;
    };
    for (const float factor : {0.0f, 0.99f}) {
      EXPECT_GT(broken_by(Tensor::kQuery, factor).scores, kLawTolerance);
      EXPECT_GT(broken_by(Tensor::kKey, factor).keys, kLawTolerance);
      EXPECT_GT(broken_by(Tensor::kKey, factor).scores, kLawTolerance);
      EXPECT_GT(broken_by(Tensor::kValue, factor).values, kLawTolerance);
    }
    const Conservation right = conservation(executor, comm);
    EXPECT_LE(std::max({right.keys, right.scores, right.values}), kLawTolerance);
  });
}

}  // namespace
}  // namespace longnet
