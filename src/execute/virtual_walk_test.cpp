// One device in the place of many: the same inputs, the same output and the same samples as real
// ranks, for any number of them.
#include "execute/virtual_walk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>

#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "execute/program_executor.h"
#include "execute/testing/walk_case.h"
#include "execute/tolerances.h"
#include "schedule/accounting.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

bool runs(const WalkCase& c, int ranks) {
  return find_algorithm(c.algorithm).why_no_program(sharded_of(c, ranks, 1)).empty();
}

struct Total {
  OutputSummary output;
  uint64_t input_digest = 0;
  SampleErrors errors;
};

// Every sample of every rank; also what was received and held against the prediction.
Total walk(const WalkCase& c, int ranks, int64_t batches_at_once, int threads = 1) {
  MemoryLedger ledger;
  const auto walk = make_virtual_walk(
      c.problem, [&](int64_t batches) { return schedule_of(c, ranks, batches); },
      make_kernel("cpu"), threads, ledger);
  const ShardedProblem s = schedule_of(c, ranks, c.problem.batch).sharded;
  const auto samples = choose_samples(s, 1 << 20);
  Total total;
  int poisoned = 0;
  for (int64_t first = 0; first < c.problem.batch; first += batches_at_once)
    for (Rank r = 0; r < ranks; ++r) {
      const int64_t batches = std::min(batches_at_once, c.problem.batch - first);
      const UnitOutcome out = walk->run({r, first, batches}, samples);
      const Schedule schedule = schedule_of(c, ranks, batches);
      const RankAccount expected = account(schedule.sharded, schedule.program(r), r);
      EXPECT_EQ(out.received_bytes, expected.bytes_received) << c.algorithm << " rank " << r;
      EXPECT_EQ(out.slot_bytes, expected.memory_bytes()) << c.algorithm << " rank " << r;
      for (const OutputSummary& head : out.heads) total.output.add(head);
      total.input_digest += out.input_digest;
      total.errors.add(out.errors);
      if (!out.poisoned) continue;
      ++poisoned;
      EXPECT_FALSE(judge(*out.poisoned, 0, s).pass) << c.algorithm;
    }
  EXPECT_EQ(poisoned, 1);
  const AttentionProblem& p = c.problem;
  EXPECT_EQ(total.errors.queries, p.seq_len * p.num_heads * p.batch) << c.algorithm;
  EXPECT_EQ(total.output.rows, p.seq_len * p.num_heads * p.batch) << c.algorithm;
  return total;
}

void expect_right(const WalkCase& c, int ranks, int64_t batches_at_once) {
  const Total t = walk(c, ranks, batches_at_once);
  const auto outcome = judge(t.errors, t.output.nan_values, schedule_of(c, ranks, 1).sharded);
  EXPECT_TRUE(outcome.pass) << c.algorithm << " on " << ranks << ": rel_l2 " << outcome.rel_l2_error
                            << ", worst row " << outcome.max_rel_error << ", LSE "
                            << outcome.max_lse_error << ", NaN " << outcome.nan_values;
}

// Why the algorithm cannot be walked on 4 ranks; empty: it can, or it runs on one rank alone.
std::string why_not_walked(const AlgorithmInfo& info, Pass pass = Pass::kForward) {
  const WalkCase c{.algorithm = std::string(info.name)};
  return runs(c, 4) ? why_not_virtual(backward_schedule(c, 4, 1, pass).program(1)) : "";
}

TEST(VirtualWalk, EveryRowOfEveryAlgorithm) {
  for (const AlgorithmInfo& info : algorithms())
    for (const int ranks : {1, 2, 5, 16}) {
      const WalkCase c{.algorithm = std::string(info.name)};
      if (why_not_walked(info).empty() && runs(c, ranks))
        expect_right(c, ranks, info.name == "dilated" ? 2 : 3);
    }
  for (const char* collective : {"ring", "recursive_doubling", "bruck"})
    expect_right({.collective = collective}, 4, 1);
  expect_right({.algorithm = "ring", .layout = LayoutKind::kZigzag}, 5, 3);
  expect_right({.algorithm = "ring", .layout = LayoutKind::kStriped}, 5, 3);
  expect_right({.algorithm = "all_gather", .options = {.head_slice = 1}}, 3, 3);
  WalkCase causal;
  causal.problem.causal = true;
  causal.problem.dtype = DType::kBFloat16;
  expect_right(causal, 6, 1);
}

// Rows that the first walk of a unit leaves behind would be right for the second one, too.
TEST(VirtualWalk, RowsOfAnEarlierWalkDoNotPass) {
  const WalkCase c{.algorithm = "ring"};
  const ShardedProblem s = sharded_of(c, 2, c.problem.batch);
  const auto kernel = std::make_shared<WatchedKernel>();
  MemoryLedger ledger;
  const auto walk = make_virtual_walk(
      c.problem, [&](int64_t batches) { return schedule_of(c, 2, batches); }, kernel, 1, ledger);
  for (const bool stopped : {false, true}) {
    kernel->stopped = stopped;
    const UnitOutcome out = walk->run({0, 0, 3}, choose_samples(s, 100));
    int64_t nan_values = 0;
    for (const OutputSummary& head : out.heads) nan_values += head.nan_values;
    EXPECT_EQ(nan_values > 0, stopped);
    EXPECT_EQ(judge(out.errors, nan_values, s).pass, !stopped);
  }
}

TEST(VirtualWalk, RefusesWhatCannotBeMadeAgain) {
  std::vector<std::string_view> refused;
  for (const AlgorithmInfo& info : algorithms())
    if (const std::string why = why_not_walked(info); !why.empty()) {
      refused.push_back(info.name);
      EXPECT_THAT(why, testing::HasSubstr("exchange results")) << info.name;
      EXPECT_THAT(why, testing::HasSubstr("in a backward pass, gradients of these")) << info.name;
    }
  EXPECT_THAT(refused, testing::UnorderedElementsAre("query_gather", "ulysses", "usp"));
}

// Order of summation differs where a branch's keys lie in other pieces, so bits of the output may
// differ between partitions; its sums agree to fp32 rounding. Those of the input do not differ.
void expect_same(const Total& a, const Total& b, const std::string& what) {
  EXPECT_EQ(a.input_digest, b.input_digest) << what;
  EXPECT_EQ(a.output.absent_rows, b.output.absent_rows) << what;
  const double scale = std::sqrt(a.output.sum_squares * double(a.output.rows));
  EXPECT_NEAR(a.output.sum, b.output.sum, 1e-6 * scale) << what;
  EXPECT_NEAR(a.output.sum_squares, b.output.sum_squares, 1e-6 * a.output.sum_squares) << what;
  EXPECT_NEAR(a.output.min, b.output.min, 1e-5) << what;
  EXPECT_NEAR(a.output.max, b.output.max, 1e-5) << what;
  EXPECT_NEAR(a.output.lse_sum, b.output.lse_sum, 1e-6 * std::abs(a.output.lse_sum)) << what;
}

// Calls use(executor), one rank at a time, after each of the real ranks has run.
template <class F>
void on_real_ranks(const Schedule& schedule, int ranks, F use) {
  const auto kernel = make_kernel("cpu");
  std::mutex lock;
  run_on_threads(ranks, [&](Communicator& comm) {
    MemoryLedger ledger;
    ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
    executor.fill_inputs();
    executor.run();
    const std::lock_guard hold(lock);
    use(executor);
  });
}

Total real_ranks(const WalkCase& c, int ranks) {
  const Schedule schedule = schedule_of(c, ranks, c.problem.batch);
  const auto worker = make_cpu_row_worker();
  const auto samples = choose_samples(schedule.sharded, 1 << 20);
  Total total;
  on_real_ranks(schedule, ranks, [&](ProgramExecutor& executor) {
    total.input_digest += digest_inputs(executor.bound(), *worker);
    for (const OutputSummary& head : summarize_output(executor.bound(), *worker))
      total.output.add(head);
    total.errors.add(executor.compare(expected_rows(executor.bound(), c.problem, samples)));
  });
  return total;
}

TEST(VirtualWalk, AnyNumberOfRanksGivesTheSame) {
  WalkCase c{.problem = {.seq_len = 2048,
                         .num_heads = 2,
                         .num_kv_heads = 2,
                         .head_dim = 64,
                         .batch = 1,
                         .dtype = DType::kBFloat16},
             .pattern = {.branches = {{128, 1}, {512, 4}, {2048, 16}}}};
  const Total one = walk(c, 1, 1);
  EXPECT_EQ(walk(c, 1, 1, 2).output, one.output);  // every bit, on more threads
  for (const int ranks : {2, 64, 128}) expect_same(one, walk(c, ranks, 1), concat("P=", ranks));
  expect_same(one, real_ranks(c, 2), "two real ranks");
  c.problem.seed = 2;
  EXPECT_NE(walk(c, 1, 1).input_digest, one.input_digest);
}

// ---- backward ----

// The gradients of a walk, and of the same program on ranks as threads.
struct WalkedGradients {
  std::array<uint64_t, 3> digests{};
  std::array<CheckOutcome, 3> outcomes{};
  LawTerms laws;
  Conservation conserved;
};

std::vector<Rank> all_of(int ranks) {
  std::vector<Rank> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Walks some of `ranks`. `cut`: after each unit another walk goes on, with the sums that this one
// leaves.
WalkedGradients walk_gradients(const WalkCase& c, int ranks, const std::vector<Rank>& walked,
                               Pass pass, int64_t batches_at_once = 1, int threads = 1,
                               bool cut = false) {
  const AttentionProblem& p = c.problem;
  const auto make = [&](int64_t batches) { return backward_schedule(c, ranks, batches, pass); };
  MemoryLedger ledger;
  const ShardedProblem whole = backward_problem(c, ranks, p.batch);
  const auto samples = stratify(whole, choose_samples(whole, 60), 120, walked).queries;
  const KeyChoice keys = choose_keys(whole, samples, {walked.begin(), walked.end()});
  const auto begin = [&] {
    auto walk = make_virtual_walk(p, make, make_kernel("cpu"), threads, ledger);
    walk->compare_keys(keys.keys);
    walk->end_with(walked.back());
    return walk;
  };
  auto walk = begin();
  WalkedGradients found;
  GradientErrors errors;
  for (int64_t first = 0; first < p.batch; first += batches_at_once)
    for (const Rank r : walked) {
      const WalkUnit unit{r, first, std::min(batches_at_once, p.batch - first)};
      const UnitOutcome out = walk->run(unit, samples);
      const Schedule schedule = make(unit.batches);
      const RankAccount expected = account(schedule.sharded, schedule.program(r), r);
      EXPECT_EQ(out.received_bytes, expected.bytes_received) << c.algorithm << " rank " << r;
      EXPECT_EQ(out.slot_bytes, expected.memory_bytes()) << c.algorithm << " rank " << r;
      const GradientOutcome& g = out.gradients.value();
      for (size_t i = 0; i < errors.size(); ++i) {
        found.digests[i] += g.digests[i];
        errors[i].add(g.errors[i]);
      }
      found.laws.add(g.laws, size_t(2 * first * p.num_kv_heads * p.head_dim));
      if (!cut) continue;
      const auto left = walk->sums_after(unit);
      const std::vector<std::byte> sums(left.begin(), left.end());
      walk = begin();
      std::ranges::copy(sums, walk->sums_after(unit).begin());
    }
  if (!cut && batches_at_once == p.batch) {
    auto predicted = walk_memory(make(p.batch), walked);
    predicted[kWorkspaceTag] = make_kernel("cpu")->workspace_bytes({.head_dim = p.head_dim},
                                                                   threads, Pass::kForwardBackward);
    EXPECT_EQ(ledger.peak_by_tag(), predicted) << c.algorithm;
  }
  for (const size_t tensor : {1, 2})  // each key once, whichever unit completes it
    EXPECT_EQ(errors[tensor].chosen, int64_t(keys.keys.size())) << c.algorithm;
  found.outcomes =
      judge_gradients(errors, whole, gradient_tolerance(/*rounds_probabilities=*/false, whole, 0));
  found.conserved = conservation(found.laws, whole, true);
  return found;
}

// Returns the laws' terms of real ranks: those of a walk equal them up to fp32 rounding.
LawTerms terms_of_real_ranks(const WalkCase& c, int ranks) {
  LawTerms terms;
  on_real_ranks(backward_schedule(c, ranks, c.problem.batch, Pass::kForwardBackward), ranks,
                [&](const ProgramExecutor& executor) {
                  LawSums sums(c.problem, 0);
                  sums.add(executor.bound());
                  terms.add(sums.terms(), 0);
                });
  return terms;
}

void expect_same_terms(const LawTerms& a, const LawTerms& b, const std::string& what) {
  for (size_t i = 0; i < a.products.size(); ++i)
    EXPECT_NEAR(a.products[i], b.products[i], 2e-6 * a.products[4 + i % 4]) << what << " " << i;
}

void expect_gradients_right(const WalkCase& c, int ranks, Pass pass, int64_t batches_at_once) {
  const std::string what = concat(c.algorithm, " on ", ranks, " ", to_string(pass));
  const WalkedGradients walked = walk_gradients(c, ranks, all_of(ranks), pass, batches_at_once);
  for (const CheckOutcome& one : walked.outcomes) {
    EXPECT_TRUE(one.pass) << what << ": rel_l2 " << one.rel_l2_error << ", worst row "
                          << one.max_rel_error << ", tolerance " << one.tolerance;
    EXPECT_TRUE(one.queries > 0 || c.pattern.mix != MixRule::kLse) << what;
  }
  EXPECT_TRUE(walked.conserved.hold()) << what << ": " << walked.conserved.keys << " "
                                       << walked.conserved.scores << " " << walked.conserved.values;
  expect_same_terms(terms_of_real_ranks(c, ranks), walked.laws, what);
}

TEST(VirtualWalk, GradientsOfAnyNumberOfRanks) {
  WalkCase c;
  c.problem.batch = 2;
  for (const int ranks : {1, 2, 5, 9}) {
    c.problem.causal = ranks == 5;
    expect_gradients_right(c, ranks, Pass::kForwardBackward, ranks == 9 ? 1 : 2);
    expect_gradients_right(c, ranks, Pass::kBackward, 2);
  }
  c.problem.dtype = DType::kBFloat16;
  c.problem.causal = false;
  for (const MixRule mix : {MixRule::kMean, MixRule::kSum, MixRule::kLseDetached}) {
    c.pattern.mix = mix;
    expect_gradients_right(c, 4, Pass::kBackward, 2);
  }
  c.pattern.mix = MixRule::kLse;
  c.collective = "recursive_doubling";
  expect_gradients_right(c, 8, Pass::kBackward, 2);
  for (const AlgorithmInfo& info : algorithms())
    if (!info.one_rank_only && why_not_walked(info, Pass::kBackward).empty())
      expect_gradients_right({.algorithm = std::string(info.name), .problem = c.problem}, 4,
                             Pass::kBackward, 2);
  for (const Pass pass : {Pass::kBackward, Pass::kForwardBackward})
    for (const char* algorithm : {"dilated", "sparse"})
      for (const char* collective : {"native", "bruck"})
        expect_gradients_right({.algorithm = algorithm,
                                .problem = c.problem,
                                .collective = collective,
                                .options = {.keep_gathered = true}},
                               5, pass, 2);
}

TEST(VirtualWalk, GradientsAreTheSameBitsAfterACutAndOnMoreThreads) {
  const WalkCase c;
  const std::vector<Rank> all = all_of(5);
  const WalkedGradients whole = walk_gradients(c, 5, all, Pass::kForwardBackward);
  EXPECT_EQ(walk_gradients(c, 5, all, Pass::kForwardBackward, 1, 1, /*cut=*/true).digests,
            whole.digests);
  EXPECT_EQ(walk_gradients(c, 5, all, Pass::kBackward, 1, 2).digests, whole.digests);
  EXPECT_EQ(walk_gradients(c, 5, all, Pass::kBackward, 3).digests, whole.digests);
}

// A walk of some ranks obeys the laws, since each query does. The expected gradient of a key is the
// sum of what the queries of these ranks contribute.
TEST(VirtualWalk, GradientsOfSomeRanks) {
  WalkCase c;
  c.problem.batch = 2;
  for (const char* algorithm : {"dilated", "ring"})
    for (const Pass pass : {Pass::kBackward, Pass::kForwardBackward})
      for (const std::vector<Rank>& walked : {std::vector<Rank>{0}, {1, 3}, {2, 4}}) {
        c.algorithm = algorithm;
        const WalkedGradients some = walk_gradients(c, 5, walked, pass);
        const std::string what = concat(algorithm, ", ranks to ", walked.back());
        for (const CheckOutcome& one : some.outcomes) {
          EXPECT_TRUE(one.pass) << what << ": " << one.rel_l2_error;
          EXPECT_GT(one.queries, 0) << what;
        }
        EXPECT_TRUE(some.conserved.hold()) << what << ": " << some.conserved.keys;
        EXPECT_GT(some.laws.products[4], 0) << what;
        EXPECT_EQ(walk_gradients(c, 5, walked, pass, 1, 1, /*cut=*/true).digests, some.digests);
      }
}

TEST(VirtualWalk, HoldsOneRankAtATime) {
  const WalkCase c;
  const auto kernel = make_kernel("cpu");
  MemoryLedger ledger;
  const auto walk = make_virtual_walk(
      c.problem, [&](int64_t batches) { return schedule_of(c, 7, batches); }, make_kernel("cpu"), 1,
      ledger);
  for (Rank r = 0; r < 7; ++r) walk->run({r, 0, 3}, {});
  auto predicted = walk_memory(schedule_of(c, 7, 3), {0, 1, 2, 3, 4, 5, 6});
  predicted[kWorkspaceTag] = kernel->workspace_bytes({.head_dim = 24}, 1);
  EXPECT_EQ(ledger.peak_by_tag(), predicted);
}

}  // namespace
}  // namespace longnet
