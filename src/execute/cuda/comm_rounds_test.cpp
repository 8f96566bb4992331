// Rounds in order must never deadlock, as NCCL runs them: a rank's round ends when all its
// transfers have met theirs in the peers' current rounds, and only then does its next one begin.
#include "execute/cuda/comm_rounds.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "schedule/lower_collectives.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

// One side of a message: the n-th from rank `from` to rank `to`, or of a gather of a group.
struct Side {
  Rank from, to;
  int64_t number;
  bool sends;
};
using RankRounds = std::vector<std::vector<Side>>;

RankRounds sides_of(const RankProgram& program, Rank me, bool together) {
  RankRounds all;
  std::map<std::pair<Rank, Rank>, int64_t> numbers;
  std::vector<CommRound> rounds = comm_rounds(program);
  if (!together) {  // what would happen without rounds
    std::vector<CommRound> single;
    for (const CommRound& round : rounds)
      for (const OpId op : round.ops) single.push_back({{op}});
    rounds = single;
  }
  for (const CommRound& round : rounds) {
    std::vector<Side> sides;
    const auto send = [&](Rank to) { sides.push_back({me, to, numbers[{me, to}]++, true}); };
    const auto recv = [&](Rank from) { sides.push_back({from, me, numbers[{from, me}]++, false}); };
    const auto exchange = [&](const RankGroup& group) {
      for (int i = 0; i < group.count; ++i)
        if (group[i] != me) send(group[i]), recv(group[i]);
    };
    for (const OpId id : round.ops)
      std::visit(Overload{[&](const Send& o) { send(o.to); }, [&](const Recv& o) { recv(o.from); },
                          [&](const AllGather& o) { exchange(o.group); },
                          [&](const AllToAll& o) { exchange(o.group); }, [](const auto&) {}},
                 program.ops[size_t(id)].what);
    all.push_back(sides);
  }
  return all;
}

// Number of ranks that never finish.
int stuck_ranks(const Schedule& schedule, bool together = true) {
  const int ranks = schedule.sharded.layout.world_size();
  std::vector<RankRounds> todo;
  for (Rank r = 0; r < ranks; ++r) todo.push_back(sides_of(schedule.program(r), r, together));
  std::vector<size_t> current(size_t(ranks), 0);
  using Name = std::tuple<Rank, Rank, int64_t>;
  std::map<Name, int> running;  // sides of current rounds, 2: both are there
  const auto enter = [&](Rank r) {
    if (current[size_t(r)] < todo[size_t(r)].size())
      for (const Side& s : todo[size_t(r)][current[size_t(r)]]) ++running[{s.from, s.to, s.number}];
  };
  for (Rank r = 0; r < ranks; ++r) enter(r);
  for (bool progress = true; progress;) {
    progress = false;
    for (Rank r = 0; r < ranks; ++r) {
      if (current[size_t(r)] == todo[size_t(r)].size()) continue;
      const auto& sides = todo[size_t(r)][current[size_t(r)]];
      if (!std::all_of(sides.begin(), sides.end(), [&](const Side& s) {
            return running[{s.from, s.to, s.number}] == 2;
          }))
        continue;
      ++current[size_t(r)];
      enter(r);
      progress = true;
    }
  }
  int stuck = 0;
  for (Rank r = 0; r < ranks; ++r) stuck += current[size_t(r)] < todo[size_t(r)].size();
  return stuck;
}

ShardedProblem problem_for(const AlgorithmInfo& algorithm, int ranks, LayoutKind layout) {
  const AttentionProblem p{.seq_len = 96, .num_heads = 8, .num_kv_heads = 4, .head_dim = 8};
  DilatedPattern pattern = dense_pattern(p.seq_len);
  if (algorithm.pattern == PatternKind::kDilated)
    pattern = {.branches = {{16, 1}, {40, 3}, {96, 7}}};
  if (algorithm.pattern == PatternKind::kSparse) pattern = sparse_pattern(11, 3);
  return {p, pattern, SequenceLayout(p.seq_len, ranks, layout)};
}

TEST(CommRoundsTest, NoAlgorithmDeadlocks) {
  int schedules = 0;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const LayoutKind layout :
         {LayoutKind::kContiguous, LayoutKind::kZigzag, LayoutKind::kStriped})
      for (const char* collective : {"native", "ring", "recursive_doubling", "bruck", "pairwise"})
        for (int ranks = 1; ranks <= 9; ++ranks) {
          const ShardedProblem s = problem_for(algorithm, ranks, layout);
          if (!algorithm.why_unsupported(s).empty()) continue;
          const Schedule schedule =
              lower_collectives(algorithm.make(s), parse_collective(collective));
          EXPECT_EQ(stuck_ranks(schedule), 0) << algorithm.name << " " << collective << " on "
                                              << ranks << ", layout " << to_string(layout);
          ++schedules;
        }
  EXPECT_GT(schedules, 500);
}

TEST(CommRoundsTest, OneByOneARingWouldDeadlock) {  // the test can tell
  const AlgorithmInfo& ring = find_algorithm("ring");
  const Schedule schedule = ring.make(problem_for(ring, 4, LayoutKind::kContiguous));
  EXPECT_EQ(stuck_ranks(schedule, /*together=*/false), 4);
}

}  // namespace
}  // namespace longnet
