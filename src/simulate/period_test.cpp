// The periods that algorithms declare, compared with the programs of all ranks.
#include <gtest/gtest.h>

#include "schedule/registry.h"
#include "simulate/closed_form_times.h"
#include "simulate/cluster.h"
#include "simulate/compact_program.h"

namespace longnet {
namespace {

// Everything that the simulator reads of a rank's program; of groups only the parts that a shift
// keeps. `all`: one program for each rank; other ranks are named as `twins` do.
std::string fingerprint(const ProgramSet& all, Rank rank, const Twins& twins) {
  const CompactProgram& p = all.of(rank);
  const int ranks = all.ranks;
  std::string text;
  const auto put = [&](auto value) { text.append(reinterpret_cast<char*>(&value), sizeof value); };
  for (const auto& lane : p.lanes) {
    put(lane.size());
    for (const CompactOp& op : lane) {
      put(op.kind), put(op.num_next), put(op.needs), put(op.first_next), put(op.amount);
      const bool is_send = op.kind == OpKind::kSend;
      if (is_send || op.kind == OpKind::kRecv)
        put(twins.offset_of(
            rank, all.at(rank, (is_send ? p.out_offsets : p.in_offsets)[size_t(op.peer)])));
      else
        put(op.peer);
    }
  }
  for (const uint32_t n : p.next) put(n);
  for (const CompactCollective& c : p.collectives) {
    put(c.group.count), put(c.group.stride), put(c.seconds);
    put(c.group.count == ranks ? 0 : (c.group.first - rank + ranks) % ranks);
  }
  put(p.bytes_sent), put(p.messages_sent), put(p.memory_bytes()), put(p.pairs);
  return text;
}

struct Case {
  AttentionProblem problem;
  DilatedPattern pattern;
};

std::vector<Case> cases() {
  using P = AttentionProblem;
  return {
      {P{.seq_len = 64, .num_heads = 4, .num_kv_heads = 4, .dtype = DType::kBFloat16},
       {.branches = {{4, 1}, {8, 2}, {64, 16}}}},
      {P{.seq_len = 64, .num_heads = 12, .num_kv_heads = 12, .dtype = DType::kBFloat16},
       {.branches = {{8, 1}, {24, 2}, {64, 8}}}},
      {P{.seq_len = 96, .num_heads = 8, .num_kv_heads = 2, .dtype = DType::kBFloat16},
       {.branches = {{12, 1}, {96, 6}, {96, 8}}}},
      // On 16 ranks groups of two, of which every second one begins at an odd rank.
      {P{.seq_len = 96, .num_heads = 8, .num_kv_heads = 2, .dtype = DType::kBFloat16},
       {.branches = {{8, 1}, {96, 6}}}},
      {P{.seq_len = 60, .num_heads = 6, .num_kv_heads = 3, .dtype = DType::kBFloat16},
       {.branches = {{10, 1}, {60, 7}}}},
  };
}

std::vector<std::pair<Pass, const char*>> passes_and_collectives() {
  std::vector<std::pair<Pass, const char*>> out;
  for (const char* name :
       {"ring", "bruck", "hierarchical", "recursive_doubling", "nccl_ring", "linear"})
    out.emplace_back(Pass::kForward, name);
  out.emplace_back(Pass::kBackward, "ring");
  out.emplace_back(Pass::kBackward, "recursive_doubling");
  return out;
}

TEST(Period, RanksAPeriodApartDoTheSame) {
  const ClusterSpec cluster = plain_cluster({.nodes = 8, .gpus_per_node = 4});
  std::map<std::string, int> shorter_by_algorithm, mirrored_by_algorithm;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (Case c : cases())
      for (const int ranks : {1, 2, 3, 4, 6, 8, 12, 16, 32})
        for (const bool causal : {false, true})
          for (const LayoutKind layout :
               {LayoutKind::kContiguous, LayoutKind::kZigzag, LayoutKind::kStriped})
            for (const auto& [pass, collective] : passes_and_collectives()) {
              c.problem.causal = causal;
              const DilatedPattern pattern = algorithm.pattern == PatternKind::kDilated ? c.pattern
                                             : algorithm.pattern == PatternKind::kSparse
                                                 ? sparse_pattern(8, 2)
                                                 : dense_pattern(c.problem.seq_len);
              ShardedProblem s{c.problem, pattern, {c.problem.seq_len, ranks, layout}};
              s.options.keep_gathered = ranks % 3 == 0;
              if (!algorithm.why_no_program(s).empty()) continue;
              const CollectivePlan plan = plan_collectives(cluster, collective, ranks);
              const Schedule schedule = make_schedule(algorithm, s, pass);
              const Twins twins = lowered_twins(schedule, algorithm.period(s), plan, cluster);
              const int period = twins.period;
              ASSERT_EQ(ranks % period, 0);
              if (period == ranks) continue;
              ++shorter_by_algorithm[std::string(algorithm.name)];
              mirrored_by_algorithm[std::string(algorithm.name)] += twins.exclusive_or;
              const ProgramSet all = compile(schedule, {ranks, ranks}, cluster, plan);
              for (Rank p = period; p < ranks; ++p)
                ASSERT_EQ(fingerprint(all, p, twins), fingerprint(all, p % period, twins))
                    << algorithm.name << " " << to_string(pass) << " N=" << s.problem.seq_len
                    << " P=" << ranks << " causal=" << causal << " " << to_string(layout) << " "
                    << collective << " period " << period << " rank " << p;
            }
  // Every algorithm on several ranks has cases with twins, else nothing was tested.
  for (const AlgorithmInfo& a : algorithms())
    if (a.name != "local" && a.name != "sparse") {
      EXPECT_GT(shorter_by_algorithm[std::string(a.name)], 3) << a.name;
      if (a.collectives == CollectiveUse::kAllGather) {
        EXPECT_GT(mirrored_by_algorithm[std::string(a.name)], 3) << a.name;
      }
    }
}

// Returns the period and the kind of twins of 8 ranks, whose gathers of all ranks double, and which
// do `more` beside each of them.
std::pair<int, bool> twins_with(int period, Action (*more)(AllGather all, Rank p)) {
  const ClusterSpec cluster = plain_cluster({.nodes = 8});
  const ShardedProblem s{{.seq_len = 64}, dense_pattern(64), {64, 8}};
  Schedule schedule = all_gather_attention(s);
  schedule.program = [make = schedule.program, more](Rank p) {
    RankProgram program = make(p);
    for (const Op& op : std::vector(program.ops))
      if (const auto* all = std::get_if<AllGather>(&op.what))
        program.ops.push_back({more(*all, p)});
    return program;
  };
  const Twins twins =
      lowered_twins(schedule, period, plan_collectives(cluster, "recursive_doubling", 8), cluster);
  return {twins.period, twins.exclusive_or};
}

Action with_group(AllGather gather, const RankGroup& group) {
  gather.group = group;
  return gather;
}

TEST(Period, AnExclusiveOrMovesGathersOfAllAndGroupsInABlockOfThePeriod) {
  const std::pair by_exclusive_or(2, true), none(8, false);
  EXPECT_EQ(twins_with(2, [](AllGather all, Rank) -> Action { return all; }), by_exclusive_or);
  EXPECT_EQ(twins_with(2,
                       [](AllGather a, Rank p) {
                         return with_group(a, {p / 2 * 2, 1, 2});
                       }),
            by_exclusive_or);
  // Each rank and the next one: a shift moves them, but the pair 1 2 ^ 2 is 3 0.
  EXPECT_EQ(twins_with(2, [](AllGather a, Rank p) { return with_group(a, {p, 1, 2}); }), none);
  // A message to a neighbour moves with its rank; one that goes as far as a partner needs a block
  // beyond it, and there is none where it goes half around.
  EXPECT_EQ(twins_with(2,
                       [](AllGather a, Rank p) -> Action {
                         return Send{p + 1, a.into};
                       }),
            by_exclusive_or);
  EXPECT_EQ(twins_with(1,
                       [](AllGather a, Rank p) -> Action {
                         return Send{p + 1, a.into};
                       }),
            by_exclusive_or);
  EXPECT_EQ(twins_with(2,
                       [](AllGather a, Rank p) -> Action {
                         return Send{p + 6, a.into};
                       }),
            std::pair(4, true));
  EXPECT_EQ(twins_with(2, [](AllGather a, Rank p) -> Action { return Send{p + 4, a.into}; }), none);
  // In the order 1 2 3 4 5 6 7 0 the partners are 1 and 2, 3 and 4.
  EXPECT_EQ(
      twins_with(2, [](AllGather a, Rank) { return with_group(a, {.count = 8, .rotation = 1}); }),
      none);
}

}  // namespace
}  // namespace longnet
