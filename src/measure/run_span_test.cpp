#include "measure/run_span.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "measure/sampler.h"

namespace longnet {
namespace {

// Maxima over ranks that are threads.
class Team {
 public:
  explicit Team(int ranks) : values_(size_t(ranks)), barrier_(ranks) {}

  void wait() { barrier_.arrive_and_wait(); }
  void all_max(int rank, std::span<double> values) {
    values_[size_t(rank)].assign(values.begin(), values.end());
    wait();
    for (const auto& others : values_)
      for (size_t i = 0; i < values.size(); ++i) values[i] = std::max(values[i], others[i]);
    wait();
  }
  bool broadcast(int rank, bool flag) {
    double value = rank == 0 && flag ? 1 : 0;
    all_max(rank, {&value, 1});
    return value > 0;
  }

 private:
  std::vector<std::vector<double>> values_;
  std::barrier<> barrier_;
};

std::vector<double> reduced(bool one_clock, const std::vector<RunSpan>& spans) {
  Team team(int(spans.size()));
  std::vector<double> seconds(spans.size());
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < int(spans.size()); ++rank)
    threads.emplace_back([&, rank] {
      const RunReducer reducer(one_clock,
                               [&](std::span<double> values) { team.all_max(rank, values); });
      seconds[size_t(rank)] = reducer.seconds(spans[size_t(rank)]);
    });
  threads.clear();
  return seconds;
}

TEST(RunReducer, RanksThatTakeTurnsTookAsLongAsAllOfThem) {
  const std::vector<RunSpan> turns{{100, 101}, {101, 102}, {102, 103}, {103, 104}};
  EXPECT_EQ(reduced(true, turns), std::vector<double>(4, 4.0));
}

TEST(RunReducer, OnSeveralClocksTheLongestOwnDuration) {  // stamps that mean nothing to each other
  EXPECT_EQ(reduced(false, {{5000, 5001}, {7, 9}, {1e6, 1e6 + 1.5}}), std::vector<double>(3, 2.0));
}

TEST(RunReducer, HasANameForRecords) {
  const auto nothing = [](std::span<double>) {};
  EXPECT_EQ(RunReducer(true, nothing).name(), "span");
  EXPECT_EQ(RunReducer(false, nothing).name(), "max");
}

// Eight ranks, one core: each waits for the core, stamps its begin, works for 2 ms and leaves.
TEST(RunReducer, SamplesOfEightRanksOnOneCore) {
  constexpr int kRanks = 8;
  constexpr auto kWork = std::chrono::milliseconds(2);
  Team team(kRanks);
  std::mutex core;
  std::vector<SampleSet> sets(kRanks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      const RunReducer reducer(true, [&](std::span<double> values) { team.all_max(rank, values); });
      const SampleHooks hooks{
          .prepare =
              [&] {
                team.wait();
                core.lock();
              },
          .run = [&] { std::this_thread::sleep_for(kWork); },
          .over_ranks =
              [&](const RunSpan& own) {
                core.unlock();
                return reducer.seconds(own);
              },
          .broadcast_from_root = [&](bool mine) { return team.broadcast(rank, mine); },
          .now = steady_seconds};
      sets[size_t(rank)] = sample({.warmup = 0, .min_samples = 3, .max_samples = 3}, hooks);
    });
  threads.clear();
  for (const SampleSet& set : sets) {
    EXPECT_EQ(set.samples_s, sets[0].samples_s);
    for (const double s : set.samples_s) EXPECT_GE(s, kRanks * 0.002);
  }
}

}  // namespace
}  // namespace longnet
