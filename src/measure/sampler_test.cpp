#include "measure/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <new>
#include <thread>

#include "core/check.h"

namespace longnet {
namespace {

thread_local bool count_allocations = false;
thread_local int allocations = 0;

}  // namespace
}  // namespace longnet

// Counts allocations while a sample is taken. Not inlined: the compiler would see free() after new
// and warn.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (longnet::count_allocations) ++longnet::allocations;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  if (longnet::count_allocations) ++longnet::allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace longnet {
namespace {

// A clock that moves only when the work does.
struct FakeRank {
  double time = 100;
  int runs = 0, prepared = 0;
  std::function<double(int)> duration = [](int) { return 1.0; };

  SampleHooks hooks() {
    return {.prepare = [this] { ++prepared; },
            .run = [this] { time += duration(runs++); },
            .over_ranks = [](const RunSpan& own) { return own.seconds(); },
            .broadcast_from_root = [](bool mine) { return mine; },
            .now = [this] { return time; }};
  }
};

TEST(Sampler, SteadyRunsStopAtTheMinimum) {
  FakeRank rank;
  const SampleSet set = sample({}, rank.hooks());
  EXPECT_EQ(set.samples_s.size(), 10u);
  EXPECT_EQ(set.warmup, 3);
  EXPECT_EQ(rank.runs, 13);
  EXPECT_EQ(rank.prepared, 13);
  EXPECT_DOUBLE_EQ(set.interval.median, 1.0);
}

TEST(Sampler, NoisyRunsStopAtTheMaximum) {
  FakeRank rank;
  rank.duration = [](int i) { return i % 2 == 0 ? 1.0 : 2.0; };
  const SampleSet set = sample({.max_samples = 20}, rank.hooks());
  EXPECT_EQ(set.samples_s.size(), 20u);
}

TEST(Sampler, SamplesUntilTheIntervalIsNarrowEnough) {
  FakeRank rank;  // one run in five is slow: the interval closes once the slow ones are outvoted
  rank.duration = [](int i) { return i % 5 == 0 ? 1.5 : 1.0; };
  const SampleSet set = sample({.warmup = 0, .min_samples = 5}, rank.hooks());
  EXPECT_GT(set.samples_s.size(), 5u);
  EXPECT_LT(set.samples_s.size(), 50u);
  EXPECT_LE(set.interval.relative_half_width(), 0.025);
}

TEST(Sampler, BudgetEndsWarmupWithoutSamples) {
  FakeRank rank;
  rank.duration = [](int) { return 50.0; };
  const SampleSet set = sample({.time_budget_s = 60}, rank.hooks());
  EXPECT_TRUE(set.samples_s.empty());
  EXPECT_EQ(set.warmup, 2);
}

TEST(Sampler, StartsNoSampleThatWouldPassTheBudget) {
  FakeRank rank;
  rank.duration = [](int) { return 10.0; };
  const SampleSet set = sample({.warmup = 1, .time_budget_s = 45}, rank.hooks());
  EXPECT_EQ(set.samples_s.size(), 3u);  // 10 + 3 x 10 = 40 s; a fourth would end at 50 s
}

TEST(Sampler, NothingAllocatesBetweenStartAndStop) {
  FakeRank rank;
  SampleHooks hooks = rank.hooks();
  hooks.prepare = [] { count_allocations = true; };
  hooks.over_ranks = [](const RunSpan& own) {
    count_allocations = false;
    return own.seconds();
  };
  allocations = 0;
  sample({.warmup = 0, .min_samples = 50}, hooks);
  count_allocations = false;
  EXPECT_EQ(allocations, 0);
}

TEST(Sampler, WhatPreparesARunIsNotTimed) {
  FakeRank rank;
  SampleHooks hooks = rank.hooks();
  hooks.prepare = [&] { rank.time += 5; };
  for (const double seconds : sample({}, hooks).samples_s) EXPECT_EQ(seconds, 1.0);
}

TEST(Sampler, RefusesNonsense) {
  FakeRank rank;
  EXPECT_THROW(sample({.warmup = -1}, rank.hooks()), Error);
  EXPECT_THROW(sample({.min_samples = 0}, rank.hooks()), Error);
  EXPECT_THROW(sample({.min_samples = 10, .max_samples = 5}, rank.hooks()), Error);
  EXPECT_THROW(sample({.time_budget_s = 0}, rank.hooks()), Error);
  rank.duration = [](int) { return -1.0; };
  EXPECT_THROW(sample({}, rank.hooks()), Error);
}

TEST(Sampler, ASingleRankRuns) {
  int runs = 0;
  const SampleSet set = sample({.min_samples = 3, .max_samples = 3},
                               {.prepare = [] {},
                                .run = [&] { ++runs; },
                                .over_ranks = [](const RunSpan& own) { return own.seconds(); },
                                .broadcast_from_root = [](bool mine) { return mine; },
                                .now = steady_seconds});
  EXPECT_EQ(runs, 6);
  EXPECT_EQ(set.samples_s.size(), 3u);
}

// Four ranks as threads, each with a clock and a speed of its own. Their local wishes to go on
// differ; were each to follow its own, a rank would wait for ever at the barrier.
struct Team {
  explicit Team(int n) : ranks(n), barrier(n), value(size_t(n)) {}
  int ranks;
  std::barrier<> barrier;
  std::vector<double> value;
  bool root_says = false;

  double max(int rank, double own) {
    value[size_t(rank)] = own;
    barrier.arrive_and_wait();
    const double m = *std::max_element(value.begin(), value.end());
    barrier.arrive_and_wait();
    return m;
  }
  bool broadcast(int rank, bool mine) {
    if (rank == 0) root_says = mine;
    barrier.arrive_and_wait();
    const bool answer = root_says;
    barrier.arrive_and_wait();
    return answer;
  }
};

TEST(Sampler, DisagreeingRanksFollowRankZero) {
  const int ranks = 4;
  Team team(ranks);
  std::vector<SampleSet> sets(ranks);
  std::atomic<int> disagreements{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      double time = 0;
      int runs = 0;
      const SampleHooks hooks{
          .prepare = [&] { team.barrier.arrive_and_wait(); },
          .run = [&] { time += (rank + 1) * (1.0 + 0.3 * (runs++ % 3)); },
          .over_ranks = [&](const RunSpan& own) { return team.max(rank, own.seconds()); },
          .broadcast_from_root =
              [&](bool mine) {
                const bool answer = team.broadcast(rank, mine);
                disagreements += answer != mine;
                return answer;
              },
          .now = [&] { return time; }};
      // Rank 3's clock passes the budget long before rank 0's does.
      sets[size_t(rank)] =
          sample({.warmup = 1, .min_samples = 3, .max_samples = 40, .time_budget_s = 30}, hooks);
    });
  for (auto& t : threads) t.join();
  EXPECT_GT(disagreements, 0);
  for (int rank = 0; rank < ranks; ++rank) {
    const SampleSet& set = sets[size_t(rank)];
    EXPECT_EQ(set.samples_s, sets[0].samples_s) << rank;
    ASSERT_EQ(set.own_s.size(), set.samples_s.size());
    for (size_t i = 0; i < set.own_s.size(); ++i) {
      EXPECT_NEAR(set.own_s[i] * 4 / (rank + 1), set.samples_s[i], 1e-9);
    }
  }
}

TEST(Rounds, EachRoundRunsEachModeOnceInARotatedOrder) {
  std::vector<int> order;
  const auto seconds = take_rounds(3, 4, [&](int mode) {
    order.push_back(mode);
    return 10.0 * mode + double(order.size());
  });
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2}));
  ASSERT_EQ(seconds.size(), 3u);
  EXPECT_EQ(seconds[1], (std::vector<double>{12, 14, 19, 21}));  // runs 2, 4, 9 and 11
}

// Every run is 0.01 s slower than the one before; the modes really differ by 0.25 s. Runs 0, 9, 13,
// 17, 21 are mode 0's and 2, 6, 10, 19, 23 mode 2's: medians see three runs of drift at most. One
// mode after another would put twenty of them between modes 0 and 4.
TEST(Rounds, DriftStaysOutOfDifferences) {
  int runs = 0;
  const auto seconds = take_rounds(5, 5, [&](int mode) { return 1 + 0.25 * mode + 0.01 * runs++; });
  for (int mode = 1; mode < 5; ++mode)
    EXPECT_NEAR(median(seconds[size_t(mode)]) - median(seconds[0]), 0.25 * mode, 0.031) << mode;
  runs = 0;
  std::vector<std::vector<double>> blocks(5);
  for (int mode = 0; mode < 5; ++mode)
    for (int i = 0; i < 5; ++i) blocks[size_t(mode)].push_back(1 + 0.25 * mode + 0.01 * runs++);
  EXPECT_GT(median(blocks[4]) - median(blocks[0]), 4 * 0.25 + 0.15);
}

TEST(Rounds, LongRunsGetFewer) {
  EXPECT_EQ(worthwhile_rounds(0.01), 5);
  EXPECT_EQ(worthwhile_rounds(0.3), 3);
  EXPECT_EQ(worthwhile_rounds(2.9), 3);
  EXPECT_EQ(worthwhile_rounds(3), 2);
}

TEST(Rounds, RefusesNoModesOrRounds) {
  EXPECT_THROW(take_rounds(0, 1, [](int) { return 1.0; }), Error);
  EXPECT_THROW(take_rounds(1, 0, [](int) { return 1.0; }), Error);
}

}  // namespace
}  // namespace longnet
