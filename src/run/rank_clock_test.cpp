#include "run/rank_clock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/threads/thread_world.h"

namespace longnet {
namespace {

std::vector<RankPlace> places_of(int ranks, bool one_clock) {
  std::vector<RankPlace> places(static_cast<size_t>(ranks), {"machine", "clock", {0}});
  if (!one_clock) places.back().clock = "another";
  return places;
}

std::vector<double> reduced(bool one_clock, const std::vector<RunSpan>& spans) {
  std::vector<double> seconds(spans.size());
  run_on_threads(int(spans.size()), [&](Communicator& comm) {
    const RankClock clock(comm, places_of(comm.size(), one_clock));
    seconds[size_t(comm.rank())] = clock.seconds(spans[size_t(comm.rank())]);
  });
  return seconds;
}

TEST(RankClock, RanksThatTakeTurnsTookAsLongAsAllOfThem) {
  const std::vector<RunSpan> turns{{100, 101}, {101, 102}, {102, 103}, {103, 104}};
  EXPECT_EQ(reduced(true, turns), std::vector<double>(4, 4.0));
}

TEST(RankClock, OnSeveralClocksTheLongestOwnDuration) {  // stamps that mean nothing to each other
  EXPECT_EQ(reduced(false, {{5000, 5001}, {7, 9}, {1e6, 1e6 + 1.5}}), std::vector<double>(3, 2.0));
}

TEST(RankClock, HasANameForRecords) {
  run_on_threads(1, [&](Communicator& comm) {
    EXPECT_EQ(RankClock(comm, places_of(2, true)).reduction(), "span");
    EXPECT_EQ(RankClock(comm, places_of(2, false)).reduction(), "max");
  });
}

// Eight ranks, one core: each waits for the core, stamps its begin, works for 2 ms and leaves.
TEST(RankClock, SamplesOfEightRanksOnOneCore) {
  constexpr int kRanks = 8;
  constexpr auto kWork = std::chrono::milliseconds(2);
  std::mutex core;
  std::vector<SampleSet> sets(kRanks);
  run_on_threads(kRanks, [&](Communicator& comm) {
    RankClock clock(comm, places_of(kRanks, true));
    SampleHooks hooks = clock.hooks([&] { std::this_thread::sleep_for(kWork); });
    hooks.prepare = [&] {
      comm.barrier();
      core.lock();
    };
    hooks.over_ranks = [&](const RunSpan& own) {
      core.unlock();
      return clock.seconds(own);
    };
    sets[size_t(comm.rank())] = sample({.warmup = 0, .min_samples = 3, .max_samples = 3}, hooks);
  });
  for (const SampleSet& set : sets) {
    EXPECT_EQ(set.samples_s, sets[0].samples_s);
    for (const double s : set.samples_s) EXPECT_GE(s, kRanks * 0.002);
  }
}

// The last rank arrives late: no other one may begin a sample before.
TEST(RankClock, NoRankBeginsASampleBeforeAllAreThere) {
  constexpr int kRanks = 3;
  std::atomic<int> arrived = 0;
  run_on_threads(kRanks, [&](Communicator& comm) {
    RankClock clock(comm, places_of(kRanks, true));
    const SampleHooks hooks = clock.hooks([] {});
    if (comm.rank() == kRanks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++arrived;
    hooks.prepare();
    EXPECT_EQ(arrived, kRanks);
  });
}

TEST(RankClock, ASampleThatBeginsBeforeItsBarrierIsAnError) {
  run_on_threads(2, [&](Communicator& comm) {
    RankClock clock(comm, places_of(2, true));
    const SampleHooks hooks = clock.hooks([] {});
    EXPECT_THROW(hooks.over_ranks({.begin_s = 1, .end_s = 2}), Error);  // never came to one
    hooks.prepare();
    const double now = steady_seconds();
    EXPECT_GE(hooks.over_ranks({.begin_s = now, .end_s = now}), 0);
    const double begin = comm.rank() == 0 ? now : now - 10;
    EXPECT_THROW(hooks.over_ranks({.begin_s = begin, .end_s = now}), Error);
  });
}

}  // namespace
}  // namespace longnet
