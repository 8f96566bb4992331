// The simulation against equations: each test carries its own.
#include "simulate/engine.h"

#include <gmock/gmock.h>

#include "core/testing/test_support.h"
#include "schedule/registry.h"
#include "simulate/closed_form_times.h"

namespace longnet {
namespace {

constexpr double kExact = 1e-12;  // relative

double makespan(const std::vector<LooseProgram>& programs, const ClusterSpec& cluster,
                const SimulateOptions& options = {}) {
  const ProgramSet set = pack_all(programs, cluster.execution);
  return simulate(set, Topology(cluster, set.ranks), cluster, options).makespan_s;
}

void expect_near(double actual, double expected) {
  EXPECT_NEAR(actual / expected, 1, kExact) << actual << " for " << expected;
}

// One message of `bytes` from each of `pairs`' first to its second rank.
std::vector<LooseProgram> messages(int ranks, std::vector<std::pair<int, int>> pairs,
                                   double bytes) {
  std::vector<LooseProgram> programs{size_t(ranks)};
  for (const auto& [from, to] : pairs) {
    programs[size_t(from)].add(OpKind::kSend, to, bytes);
    programs[size_t(to)].add(OpKind::kRecv, from, bytes);
  }
  return programs;
}

TEST(Engine, OneMessageTakesItsLatencyAndItsBytes) {  // alpha + m / beta
  const ClusterSpec c = plain_cluster();
  expect_near(makespan(messages(16, {{0, 1}}, 4e6), c), 1e-6 + 4e6 / 4e11);
  expect_near(makespan(messages(16, {{0, 4}}, 4e6), c), 2e-6 + 4e6 / 5e10);
}

TEST(Engine,
     AnOpWaitsUntilTheHostHasIssuedIt) {  // max(0.5 + 1, 3) + 0.1, also where events time it
  std::vector<LooseProgram> p{size_t{1}};
  for (const double seconds : {1.0, 0.1}) p[0].add(OpKind::kAttend, 0, seconds);
  p[0].ops[0].issued_s = 0.5;
  p[0].ops[1].issued_s = 3;
  ClusterSpec c = plain_cluster();
  expect_near(makespan(p, c), 3.1);
  c.overlap_efficiency = {0.5, "test"};
  expect_near(makespan(p, c), 3.1);
}

TEST(Engine, TwoFlowsShareALinkAndTheShorterLeavesFirst) {
  // 0 sends m to 1 and 3 m to 2: m each at half speed until 2 m / beta, then 2 m more.
  const ClusterSpec c = plain_cluster();
  std::vector<LooseProgram> p{size_t{4}};
  const double m = 4e8, beta = 4e11;
  p[0].add(OpKind::kSend, 1, m);
  p[0].add(OpKind::kSend, 2, 3 * m);
  p[1].add(OpKind::kRecv, 0, m);
  p[2].add(OpKind::kRecv, 0, 3 * m);
  expect_near(makespan(p, c), 1e-6 + 4 * m / beta);
}

TEST(Engine, BandwidthThatAFlowCannotUseGoesToOthers) {
  // 0 -> 4 over its card (50 GB/s) and 0's switch port is free: 0 -> 1 at full NVLink speed. Into
  // rank 1 also 2 -> 1: both 200 GB/s.
  const ClusterSpec c = plain_cluster();
  const double m = 2e8;
  expect_near(makespan(messages(16, {{0, 4}, {0, 1}, {2, 1}}, m), c), 2e-6 + m / 5e10);
  expect_near(makespan(messages(16, {{0, 1}, {2, 1}}, m), c), 1e-6 + m / 2e11);
}

TEST(Engine, FlowsWhoseRateStaysEndInTheirTurn) {
  // Six pairs share a card of 50 GB/s, at most 10 GB/s each; pair k has k m bytes. All run at a
  // sixth of the card until the first is over, then at their limit: 6 m / 5e10 + 5 m / 1e10.
  ClusterSpec c = plain_cluster({.inter_alpha = 0, .cards = 1});
  c.inter.channel_bytes_per_s = {5e9, "test"};
  std::vector<LooseProgram> p{size_t{16}};
  const double m = 1e7;
  int k = 0;
  for (const auto& [from, to] :
       std::vector<std::pair<int, int>>{{0, 4}, {0, 5}, {1, 6}, {1, 7}, {2, 8}, {3, 9}}) {
    p[size_t(from)].add(OpKind::kSend, to, ++k * m);
    p[size_t(to)].add(OpKind::kRecv, from, k * m);
  }
  expect_near(makespan(p, c), 6 * m / 5e10 + 5 * m / 1e10);
}

TEST(Engine, MessagesOverOneRouteStartApartAndTheShortOneEndsFirst) {
  // Three pairs of two nodes share a card of C bytes/s: 3 C s bytes from 0 on, 3 C s from 1 s on,
  // C / 2 s from 2 s on. At 2 s 3/2 and 5/2 C s are left; thirds until the last has its 1/2, 1.5 s
  // later, then halves for the 1 left to the first, 2 s, then 1 s for the second.
  const ClusterSpec c = plain_cluster({.inter_alpha = 0, .cards = 1});
  std::vector<LooseProgram> p{size_t{8}};
  const double second = 5e10, bytes[] = {3 * second, 3 * second, second / 2};
  for (const Rank r : {0, 1, 2}) {
    const int later = p[size_t(r)].add(OpKind::kAttend, -1, r);
    p[size_t(r)].add(OpKind::kSend, r + 4, bytes[r], {later});
    p[size_t(r) + 4].add(OpKind::kRecv, r, bytes[r]);
  }
  const ProgramSet set = pack_all(p, c.execution);
  const SimulatedRun run = simulate(set, Topology(c, set.ranks), c);
  expect_near(run.ranks[4].finish_s, 5.5);
  expect_near(run.ranks[5].finish_s, 6.5);
  expect_near(run.ranks[6].finish_s, 3.5);
}

TEST(Engine, MessagesOfAPairFollowEachOther) {
  // Both posted at 0: the second one's latency hides behind the first: alpha + 2 m / beta.
  const ClusterSpec c = plain_cluster();
  expect_near(makespan(messages(2, {{0, 1}, {0, 1}}, 4e6), c), 1e-6 + 2 * 4e6 / 4e11);
}

TEST(Engine, ARendezvousWaitsForTheLaterSide) {
  const ClusterSpec c = plain_cluster();
  std::vector<LooseProgram> p{size_t{2}};
  p[0].add(OpKind::kSend, 1, 4e6);
  const int busy = p[1].add(OpKind::kAttend, -1, 3e-3);
  p[1].add(OpKind::kRecv, 0, 4e6, {busy});
  expect_near(makespan(p, c), 3e-3 + 1e-6 + 4e6 / 4e11);
}

TEST(Engine, TaperedTree) {
  // Leaves of 2 nodes, taper 4: 8 cards of B below, 2 B up. All 8 ranks of leaf 0 send to leaf 1:
  // each has B / 4.
  const ClusterSpec c = plain_cluster(
      {.topology = {
           .kind = TopologyKind::kFatTree, .nodes_per_leaf = {2, "test"}, .taper = {4, "test"}}});
  std::vector<std::pair<int, int>> pairs;
  for (int g = 0; g < 8; ++g) pairs.push_back({g, g + 8});
  expect_near(makespan(messages(16, pairs, 1e8), c), 2e-6 + 1e8 / (5e10 / 4));
}

TEST(Engine, ComputeSlowsUnderCommunication) {
  // At efficiency 1/2: while 1 ms of bytes travels, 0.5 ms of 2 ms compute is done; 1.5 remain.
  const ClusterSpec c = plain_cluster({.intra_alpha = 0, .overlap_efficiency = 0.5});
  std::vector<LooseProgram> p = messages(2, {{0, 1}}, 4e8);
  for (LooseProgram& rank : p) rank.add(OpKind::kAttend, -1, 2e-3);
  expect_near(makespan(p, c), 1e-3 + 1.5e-3);
}

TEST(Engine, ComputeSlowsUnderACollectiveByFormula) {
  // A gather of 1 ms beside 2 ms of compute at efficiency 1/2: 1 + 1.5 ms, as under messages.
  std::vector<LooseProgram> p{size_t{2}};
  for (LooseProgram& rank : p) {
    rank.add(OpKind::kCollective, 0, 0);
    rank.add(OpKind::kAttend, -1, 2e-3);
    rank.collectives.push_back({{.first = 0, .count = 2}, {1e-3, 1e-3, 1e-3}});
  }
  expect_near(makespan(p, plain_cluster()), 2e-3);
  expect_near(makespan(p, plain_cluster({.overlap_efficiency = 0.5})), 2.5e-3);
}

TEST(Engine, WithoutAsyncProgressMessagesWaitForTheCompute) {
  // In order: post, compute 2 ms, then 1 ms of bytes moves. With progress both overlap.
  PlainCluster shape{.intra_alpha = 0, .execution = ExecutionKind::kInOrder};
  std::vector<LooseProgram> p = messages(2, {{0, 1}}, 4e8);
  for (LooseProgram& rank : p) rank.add(OpKind::kAttend, -1, 2e-3);
  expect_near(makespan(p, plain_cluster(shape)), 2e-3);
  shape.async_progress = false;
  expect_near(makespan(p, plain_cluster(shape)), 3e-3);
}

TEST(Engine, MessagesThatEndTogetherDoNotWaitForEachOthersCompute) {
  // Both ranks post, compute a, wait for what comes and compute a again: 2 a + m / beta. The first
  // message's receiver computes at once, but the other message is over too.
  PlainCluster shape{.intra_alpha = 1e-7, .execution = ExecutionKind::kInOrder};
  shape.async_progress = false;
  const double a = 1.1e-3, m = 3e8;
  std::vector<LooseProgram> p{size_t{2}};
  for (const Rank rank : {0, 1}) {
    p[size_t(rank)].add(OpKind::kSend, 1 - rank, m);
    const int got = p[size_t(rank)].add(OpKind::kRecv, 1 - rank, m);
    p[size_t(rank)].add(OpKind::kAttend, -1, a);
    p[size_t(rank)].add(OpKind::kAttend, -1, a, {got});
  }
  // The latency of messages that were posted before passes while ranks compute.
  expect_near(makespan(p, plain_cluster(shape)), 2 * a + m / 4e11);
}

TEST(Engine, MessagesOfARankThatComputesShareItsSlowRate) {
  // 4e8 bytes each way between ranks that compute 2 ms: both share 1e11 B/s meanwhile, so
  // 1e8 bytes are over, and 3e8 follow at 4e11 B/s.
  PlainCluster shape{.intra_alpha = 0, .execution = ExecutionKind::kInOrder};
  shape.async_progress = false;
  ClusterSpec c = plain_cluster(shape);
  c.async_bytes_per_s = {1e11, "test"};
  std::vector<LooseProgram> p = messages(2, {{0, 1}, {1, 0}}, 4e8);
  for (LooseProgram& rank : p) rank.add(OpKind::kAttend, -1, 2e-3);
  expect_near(makespan(p, c), 2e-3 + 3e8 / 4e11);
  // Links that are slower still decide by themselves.
  c.intra.bandwidth_bytes_per_s.value = 4e10;
  expect_near(makespan(p, c), 4e8 / 4e10);
}

TEST(Engine, PostingCostsTheRankItsOverhead) {
  // One thread: two sends of overhead o posted one after the other, then compute: 2 o + 1 ms.
  const ClusterSpec c =
      plain_cluster({.intra_alpha = 0, .execution = ExecutionKind::kInOrder, .overhead_s = 1e-4});
  std::vector<LooseProgram> p = messages(3, {{0, 1}, {0, 2}}, 8);
  p[0].add(OpKind::kAttend, -1, 1e-3);
  expect_near(makespan(p, c), 1.2e-3);
  // Messages that are on their way slow compute (half of 0.9 ms, and of what 8 bytes take), but not
  // what posting the next one costs.
  const ClusterSpec slowed = plain_cluster({.intra_alpha = 0,
                                            .execution = ExecutionKind::kInOrder,
                                            .overlap_efficiency = 0.5,
                                            .overhead_s = 1e-4});
  p = messages(3, {{0, 1}, {0, 2}}, 8);
  p[0].ops[0].amount = p[1].ops[0].amount = 4e8;  // 1 ms
  p[0].add(OpKind::kAttend, -1, 1e-3);
  expect_near(makespan(p, slowed), 1.65e-3 + 4 / 4e11);
}

TEST(Engine, ADeadlockNamesARank) {
  std::vector<LooseProgram> p{size_t{2}};
  const int got = p[0].add(OpKind::kRecv, 1, 8);
  p[0].add(OpKind::kSend, 1, 8, {got});
  const int other = p[1].add(OpKind::kRecv, 0, 8);
  p[1].add(OpKind::kSend, 0, 8, {other});
  EXPECT_THAT([&] { makespan(p, plain_cluster()); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("deadlock: rank 0")));
}

TEST(Engine, SidesOfAMessageMustAgree) {
  std::vector<LooseProgram> p = messages(2, {{0, 1}}, 8);
  p[1].ops[0].amount = 16;
  EXPECT_THAT([&] { makespan(p, plain_cluster()); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("8 bytes on one side")));
}

// ---- whole algorithms ----

struct Simulated {
  ProgramSet programs;
  SimulatedRun run;
};

Simulated simulate_algorithm(const char* name, const ShardedProblem& s, const ClusterSpec& cluster,
                             const char* collective, const SimulateOptions& options = {},
                             Pass pass = Pass::kForward) {
  const AlgorithmInfo& info = find_algorithm(name);
  const int ranks = s.layout.world_size();
  const CollectivePlan plan = plan_collectives(cluster, collective, ranks);
  const Schedule schedule = make_schedule(info, s, pass);
  const Twins twins = lowered_twins(schedule, info.period(s), plan, cluster);
  Simulated out{compile(schedule, twins, cluster, plan), {}};
  out.run = simulate(out.programs, Topology(cluster, ranks), cluster, options);
  return out;
}

ShardedProblem dense(int64_t n, int ranks) {
  return {{.seq_len = n, .num_heads = 8, .num_kv_heads = 8, .dtype = DType::kBFloat16},
          dense_pattern(n),
          {n, ranks}};
}

TEST(Engine, RingAttention) {
  // t_block + (P - 1) max(t_block + t_merge, alpha + S / beta) in one node, where compute decides
  // or the link does: the first block has nothing to wait for.
  for (const double bandwidth : {4e11, 1e9}) {
    const ClusterSpec c = plain_cluster({.gpus_per_node = 8, .intra_bandwidth = bandwidth});
    const int64_t n = 8192;
    const double block = 4.0 * 64 * 1024 * 1024 * 8 / 1e14, shard = 2.0 * 1024 * 8 * 64 * 2;
    const double merge = 1024.0 * 8 * 65 * 4 / (1e12 / 3), hop = 1e-6 + shard / bandwidth;
    const Simulated s = simulate_algorithm("ring", dense(n, 8), c, "ring");
    expect_near(s.run.makespan_s,
                hop < block ? block + 7 * (block + merge) : 7 * hop + block + merge);
    EXPECT_EQ(s.programs.period, 1);
  }
}

// A rank's sum of gradients reads 255 received pieces and its own, and writes its own; then this is
// added to dK and dV.
TEST(Engine, PiecesOfAllRanksAreOneSum) {
  ShardedProblem s = dense(1 << 14, 256);
  s.pattern = {.branches = {{1 << 14, 4}}};
  const ClusterSpec c = plain_cluster({.nodes = 64});
  const Simulated linear = simulate_algorithm("dilated", s, c, "ring", {}, Pass::kBackward);
  const double piece = (1 << 14) / 256 / 4 * 8 * 2 * 64 * 4;
  expect_near(linear.run.ranks[0].merge_s, (257 + 3) * piece / 1e12);
  EXPECT_EQ(linear.run.ranks.size(), 4);  // one of each node's
}

TEST(Engine, CollapsedIsTheSameAsFull) {
  const TopologySpec tree{
      .kind = TopologyKind::kFatTree, .nodes_per_leaf = {2, "test"}, .taper = {3, "test"}};
  const TopologySpec torus{
      .kind = TopologyKind::kTorus, .dimensions = {2, 4}, .link_bytes_per_s = {3e10, "test"}};
  int collapsed = 0;
  for (const TopologySpec& topology : {TopologySpec{}, tree, torus})
    for (const AlgorithmInfo& algorithm : algorithms()) {
      if (algorithm.name == "local") continue;
      for (const char* collective :
           {"ring", "bruck", "hierarchical", "recursive_doubling", "nccl_ring", "linear"}) {
        const ClusterSpec c =
            plain_cluster({.nodes = 8, .gpus_per_node = 4, .cards = 2, .topology = topology});
        const int64_t n = 1 << 13;
        ShardedProblem s = dense(n, 32);
        s.problem.num_heads = s.problem.num_kv_heads = 32;
        if (algorithm.pattern != PatternKind::kDense)
          s.pattern = {.branches = {{128, 1}, {2048, 4}, {n, 512}}};
        const Simulated few = simulate_algorithm(algorithm.name.data(), s, c, collective);
        const Simulated all =
            simulate_algorithm(algorithm.name.data(), s, c, collective, {.collapse = false});
        EXPECT_NEAR(few.run.makespan_s / all.run.makespan_s, 1, 1e-9)
            << algorithm.name << " " << collective << " " << to_string(topology.kind);
        EXPECT_EQ(all.run.ranks.size(), 32u);
        collapsed += few.run.ranks.size() < 32;
        if (few.programs.exclusive_or && topology.kind == TopologyKind::kTorus) {
          EXPECT_EQ(few.run.ranks.size(), 32u);
        }
        for (size_t p = 0; p < 32; ++p)
          EXPECT_NEAR(all.run.ranks[p].finish_s, few.run.ranks[p % few.run.ranks.size()].finish_s,
                      1e-12);
      }
    }
  EXPECT_GT(collapsed, 60);
}

TEST(Engine, EqualInputsGiveEqualBits) {
  const ClusterSpec c = plain_cluster({.nodes = 8, .cards = 2});
  const auto once = [&] {
    return simulate_algorithm("usp", dense(1 << 13, 32), c, "linear", {.timeline = true}).run;
  };
  const SimulatedRun a = once(), b = once();
  EXPECT_EQ(a.makespan_s, b.makespan_s);
  ASSERT_EQ(a.timeline.size(), b.timeline.size());
  for (size_t i = 0; i < a.timeline.size(); ++i) {
    EXPECT_EQ(a.timeline[i].begin_s, b.timeline[i].begin_s);
    EXPECT_EQ(a.timeline[i].end_s, b.timeline[i].end_s);
  }
}

TEST(Engine, ARingWaitsForAStraggler) {  // a ring waits for its slowest member in every step
  const ClusterSpec c = plain_cluster({.gpus_per_node = 8});
  const double plain = simulate_algorithm("ring", dense(8192, 8), c, "ring").run.makespan_s;
  const double slow =
      simulate_algorithm("ring", dense(8192, 8), c, "ring", {.straggler = {.slower = 0.5}})
          .run.makespan_s;
  expect_near(slow, 1.5 * plain);
  // The position of the slow rank makes no difference to a ring.
  const Straggler fifth{.slower = 0.5, .rank = 5};
  expect_near(
      simulate_algorithm("ring", dense(8192, 8), c, "ring", {.straggler = fifth}).run.makespan_s,
      1.5 * plain);
}

TEST(Engine, OnlyTheNamedRankIsSlow) {
  std::vector<LooseProgram> p{size_t{4}};
  for (LooseProgram& rank : p) rank.add(OpKind::kAttend, -1, 1e-3);
  const ClusterSpec c = plain_cluster();
  const ProgramSet set = pack_all(p, c.execution);
  const SimulatedRun run =
      simulate(set, Topology(c, 4), c, {.straggler = {.slower = 0.25, .rank = 2}});
  for (const size_t r : {0, 1, 2, 3})
    EXPECT_DOUBLE_EQ(run.ranks[r].finish_s, r == 2 ? 1.25e-3 : 1e-3) << r;
}

// Slow ranks that are spread evenly leave twins where their number divides the ranks.
TEST(Engine, CollapsedIsTheSameAsFullWithStragglers) {
  const ClusterSpec c = plain_cluster({.nodes = 8, .gpus_per_node = 4, .cards = 2});
  for (const char* name : {"ring", "dilated", "double_ring"})
    for (const auto& [count, simulated] : {std::pair{1, 32}, {2, 16}, {8, 4}, {5, 32}, {32, 4}}) {
      ShardedProblem s = dense(1 << 13, 32);
      if (name == std::string("dilated")) s.pattern = {.branches = {{128, 1}, {1 << 13, 32}}};
      const Straggler slow{.slower = 0.5, .rank = count == 1 ? 17 : 0, .count = count};
      const auto run = [&](const SimulateOptions& options) {
        return simulate_algorithm(name, s, c, "bruck", options).run;
      };
      const SimulatedRun few = run({.straggler = slow});
      const SimulatedRun all = run({.collapse = false, .straggler = slow});
      EXPECT_EQ(few.ranks.size() % size_t(simulated), 0u) << name << " x" << count;
      if (name == std::string("dilated")) {
        EXPECT_EQ(few.ranks.size(), size_t(simulated)) << "x" << count;
      }
      for (size_t p = 0; p < 32; ++p)
        EXPECT_NEAR(all.ranks[p].finish_s, few.ranks[p % few.ranks.size()].finish_s, 1e-12)
            << name << " x" << count << " rank " << p;
      const size_t one = size_t(slow.rank);
      expect_near(all.ranks[one].attend_s, 1.5 * run({.collapse = false}).ranks[one].attend_s);
    }
}

}  // namespace
}  // namespace longnet
