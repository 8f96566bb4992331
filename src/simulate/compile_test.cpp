// Tests of the times that a compiled program charges for packs and collectives.
#include <gmock/gmock.h>

#include "schedule/registry.h"
#include "simulate/closed_form_times.h"
#include "simulate/collective_times.h"
#include "simulate/compact_program.h"

namespace longnet {
namespace {

constexpr int64_t kTokens = 8192, kHeads = 8, kDim = 64;  // plain_problem's

ProgramSet compiled(const char* algorithm, Pass pass, int ranks, const ClusterSpec& cluster,
                    std::string_view collective = "native") {
  return compile(make_schedule(find_algorithm(algorithm), plain_problem(ranks), pass),
                 {ranks, ranks}, cluster, plan_collectives(cluster, collective, ranks));
}

int count(const CompactProgram& program, OpKind kind) {
  int out = 0;
  for (const auto& lane : program.lanes)
    out += int(std::ranges::count(lane, kind, &CompactOp::kind));
  return out;
}

// Ulysses on 4 ranks packs a part of Q, of K and V, and of O for each of them, copies its own of
// each exchange, and puts the parts of O that come into place: 7 launches. The parts of Q together
// are b bytes, as are those of O in its 16 bits: b + b/4, 2 (b + b/4), and 2 b + b/4.
TEST(Compile, APackCostsThePieceThatItMovesAndAnExchangeALaunch) {
  ClusterSpec c = plain_cluster({.gpus_per_node = 4});
  c.device.launch_s = {1e-3, "test"};
  const auto pack_s = [&](ExecutionKind execution) {
    c.execution = execution;
    double sum = 0;
    const ProgramSet programs = compiled("ulysses", Pass::kForward, 4, c);
    for (const auto& lane : programs.of(1).lanes)
      for (const CompactOp& op : lane)
        if (op.kind == OpKind::kPack) sum += op.amount;
    return sum;
  };
  const double b = double(kTokens / 4 * kHeads * kDim * 2);
  EXPECT_NEAR(pack_s(ExecutionKind::kStreams), 7e-3 + 2 * 6 * b / 1e12, 1e-12);
  // Threads loop over the pieces: 4 of Q, of K and V and of O, one of each exchange, 4 that come.
  EXPECT_NEAR(pack_s(ExecutionKind::kInOrder), 19e-3 + 2 * 6 * b / 1e12, 1e-12);
}

// Two nodes of four. dK and dV of all rows in fp32 are summed in one call where the library has
// one, else on their way around a ring, in seven steps.
TEST(Compile, ALibrarySumsGradientsInOneCall) {
  ClusterSpec c = plain_cluster({.nodes = 2, .gpus_per_node = 4});
  c.collectives.all_gather = c.collectives.reduce_scatter = "nccl_ring";
  const CompactProgram program = compiled("all_gather", Pass::kBackward, 8, c).of(3);
  EXPECT_EQ(count(program, OpKind::kRecv), 0);
  ASSERT_EQ(program.collectives.size(), 2u);
  const double values = 2 * double(kTokens * kHeads * kDim);  // in K and V
  EXPECT_EQ(program.collectives[0].seconds, collective_seconds(c, "nccl_ring", {8, 2, 2 * values}));
  EXPECT_EQ(program.collectives[1].seconds, collective_seconds(c, "nccl_ring", {8, 2, 4 * values}));
  const CompactProgram ring = compiled("all_gather", Pass::kBackward, 8, c, "ring").of(3);
  EXPECT_EQ(ring.collectives.size(), 0u);
  EXPECT_EQ(count(ring, OpKind::kRecv), 2 * 7);
  EXPECT_EQ(program.bytes_sent, ring.bytes_sent);
  // A formula that is asked for sums too, a lowering of gathers alone leaves sums as they are.
  EXPECT_EQ(
      compiled("all_gather", Pass::kBackward, 8, c, "multi_channel_ring").of(3).collectives.size(),
      2u);
  EXPECT_EQ(compiled("all_gather", Pass::kBackward, 8, c, "bruck").of(3).collectives.size(), 1u);
}

// No library merges partials by their LSE, nor takes pieces of a branch, which are unequal.
TEST(Compile, WhatALibraryCannotSumIsLowered) {
  ClusterSpec c = plain_cluster({.nodes = 2, .gpus_per_node = 4});
  c.collectives.all_gather = c.collectives.reduce_scatter = "nccl_ring";
  const CompactProgram partials = compiled("query_gather", Pass::kForward, 8, c).of(0);
  EXPECT_EQ(partials.collectives.size(), 1u);
  EXPECT_EQ(count(partials, OpKind::kRecv), 7);
  ShardedProblem s = plain_problem(8);
  s.pattern = {.branches = {{kTokens, 4}}};
  const CompactProgram branch =
      compile(dilated_attention(s, Pass::kBackward), {8, 8}, c, plan_collectives(c, "native", 8))
          .of(0);
  EXPECT_EQ(branch.collectives.size(), 1u);
  EXPECT_EQ(count(branch, OpKind::kRecv), 7);
}

// A ring of 4: dQ of each attend is added to one sum, but by a fused kernel; one attend has no sum.
TEST(Compile, DqOfSeveralAttendsIsAddedToASum) {
  ClusterSpec c = plain_cluster({.gpus_per_node = 4});
  const auto attend_s = [&](const char* algorithm) {
    double sum = 0;
    const ProgramSet programs = compiled(algorithm, Pass::kBackward, 4, c);
    for (const CompactOp& op : programs.of(1).lanes[0])
      if (op.kind == OpKind::kAttendBackward) sum += op.amount;
    return sum;
  };
  const double attends = 10.0 * kDim * kTokens / 4 * kTokens * kHeads / 1e14;
  const double values = double(kTokens / 4 * kHeads * kDim);
  EXPECT_NEAR(attend_s("ring"), attends + 4 * 10 * values / 1e12, 1e-12);
  EXPECT_NEAR(attend_s("all_gather"), attends, 1e-12);
  c.merge = MergeKind::kFused;
  EXPECT_NEAR(attend_s("ring"), attends, 1e-12);
}

// On 4 ranks Ulysses exchanges Q, K, V and O, each by one operator that sends and receives, or by
// nine eager ones with its packs; a ring passes on K and V in each of three steps, by four. The
// first operator is issued before.
TEST(Compile, AFrameworkIssuesOneOperatorForAnExchange) {
  ClusterSpec c = plain_cluster({.gpus_per_node = 4});
  c.host_s = {1, "test"};
  const auto last_issued = [&](const char* algorithm) {
    const ProgramSet programs = compiled(algorithm, Pass::kForward, 4, c);
    const CompactProgram& program = programs.of(1);
    double last = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      EXPECT_EQ(program.issued_s[lane].size(), program.lanes[lane].size());  // also those at once
      for (const double s : program.issued_s[lane]) last = std::max(last, s);
    }
    return last;
  };
  EXPECT_EQ(last_issued("ring"), 3 * 4 + 4 + 3 - 1);         // attends, merges
  EXPECT_EQ(last_issued("ulysses"), 1 + 2 + 1 + 1 + 7 - 1);  // an attend, launches of packs
  c.merge = MergeKind::kEager;
  EXPECT_EQ(last_issued("ring"), 3 * 4 + 4 + 3 * 11 - 1);
  EXPECT_EQ(last_issued("ulysses"), 9 * 4 + 1 - 1);
}

}  // namespace
}  // namespace longnet
