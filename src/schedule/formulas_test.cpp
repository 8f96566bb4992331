// The accounts of every algorithm against its published closed form. c = N / P tokens per rank, H
// query and G K/V heads of d lanes, e = 4 bytes; P, Pu, Pr, Pi, Po as in the algorithm's file.
// (Executor tests hold real counts against these accounts.)
#include <gtest/gtest.h>

#include "schedule/accounting.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

constexpr int64_t kN = 1 << 14, kH = 16, kD = 64, kE = 4;

ShardedProblem problem(int ranks, int64_t kv_heads, LayoutKind layout = LayoutKind::kContiguous,
                       bool causal = false) {
  return {
      {.seq_len = kN, .num_heads = kH, .num_kv_heads = kv_heads, .head_dim = kD, .causal = causal},
      dense_pattern(kN),
      {kN, ranks, layout}};
}

RankAccount of(const Schedule& schedule, Rank rank = 1) {
  const Schedule lowered = lower_collectives(schedule, {});
  return account(lowered.sharded, lowered.program(rank), rank);
}

TEST(Formulas, Ring) {  // sent (P - 1) 2 c G d e, two buffers 4 c G d e
  for (const int64_t g : {16, 4, 1}) {
    const int64_t c = kN / 8;
    const RankAccount a = of(ring_attention(problem(8, g)));
    EXPECT_EQ(a.bytes_sent, 7 * 2 * c * g * kD * kE);
    EXPECT_EQ(a.messages_sent, 7);
    EXPECT_EQ(a.memory_by_tag.at("kv_buffer"), 4 * c * g * kD * kE);
  }
}

TEST(Formulas,
     AllGather) {  // sent (P - 1) 2 c G d e, holds 2 N G d e, or 2 x 2 N s d e when sliced
  for (const int64_t g : {16, 4}) {
    ShardedProblem s = problem(8, g);
    const RankAccount a = of(all_gather_attention(s));
    EXPECT_EQ(a.bytes_sent, 7 * 2 * (kN / 8) * g * kD * kE);
    EXPECT_EQ(a.memory_by_tag.at("gathered"), 2 * kN * g * kD * kE);
    s.options.head_slice = 2;
    const RankAccount sliced = of(all_gather_attention(s));
    EXPECT_EQ(sliced.bytes_sent, a.bytes_sent);
    EXPECT_EQ(sliced.memory_by_tag.at("gathered"), 2 * 2 * kN * 2 * kD * kE);
  }
}

int64_t ulysses_bytes(int64_t c, int64_t degree,
                      int64_t g) {  // (P - 1) / P c (2 H + 2 G') d e, G' = max(G, P)
  const int64_t g1 = std::max(g, degree);
  return (degree - 1) * c * (2 * kH + 2 * g1) * kD * kE / degree;
}

TEST(Formulas, Ulysses) {
  for (const int ranks : {2, 4, 8, 16})
    for (const int64_t g : {16, 4, 2})
      EXPECT_EQ(of(ulysses_attention(problem(ranks, g))).bytes_sent,
                ulysses_bytes(kN / ranks, ranks, g))
          << ranks << ' ' << g;
}

TEST(Formulas,
     Usp) {  // the all-to-alls inside Pu, and a ring of (Pr - 1) 2 c G'' d e, G'' = max(G, Pu)
  for (const int degree : {1, 2, 4, 8})
    for (const int64_t g : {16, 4, 2}) {
      ShardedProblem s = problem(8, g);
      s.options.ulysses_degree = degree;
      const int64_t c = kN / 8,
                    ring = (8 / degree - 1) * 2 * c * std::max<int64_t>(g, degree) * kD * kE;
      EXPECT_EQ(of(usp_attention(s)).bytes_sent, ulysses_bytes(c, degree, g) + ring)
          << degree << ' ' << g;
    }
}

TEST(Formulas, DoubleRing) {  // as ring, of which (Po - 1) 2 c G d e leave the node
  for (const int inner : {1, 2, 4, 8}) {
    ShardedProblem s = problem(8, 4);
    s.options.ring_inner = inner;
    const Schedule schedule = double_ring_attention(s);
    const int64_t shard = 2 * (kN / 8) * 4 * kD * kE;
    EXPECT_EQ(of(schedule).bytes_sent, 7 * shard);
    int64_t leaving = 0;
    for (const Op& op : schedule.program(1).ops)
      if (const auto* send = std::get_if<Send>(&op.what); send && send->to / inner != 1 / inner)
        leaving += shard;
    EXPECT_EQ(leaving, (8 / inner - 1) * shard);
  }
}

TEST(Formulas, QueryGather) {  // (P - 1) c H d e of queries, (P - 1) c H (d + 1) 4 of partials
  const int64_t c = kN / 8;
  EXPECT_EQ(of(find_algorithm("query_gather").make(problem(8, 4))).bytes_sent,
            7 * c * kH * (kD * kE + (kD + 1) * 4));
}

TEST(Formulas,
     Sparse) {  // summary rows of all ranks: N / w blocks of k tokens, and the local blocks stay
  ShardedProblem s = problem(8, kH);
  s.pattern = sparse_pattern(128, 8);
  const int64_t own = 2 * (kN / 8 / 128 * 8) * kH * kD * kE;
  EXPECT_EQ(of(dilated_attention(s)).bytes_sent, 7 * own);
}

TEST(Formulas, LoweredGathersSendWhatTheNativeOneCounts) {
  for (const std::string name : {"ring", "recursive_doubling", "bruck", "hierarchical"}) {
    const Schedule lowered =
        lower_collectives(all_gather_attention(problem(8, 4)), parse_collective(name));
    int64_t total = 0;
    for (Rank r = 0; r < 8; ++r)
      total += account(lowered.sharded, lowered.program(r), r).bytes_sent;
    EXPECT_EQ(total, 8 * 7 * 2 * (kN / 8) * 4 * kD * kE) << name;
  }
  // Steps: P - 1 for the ring, log2 P for the others, log2 nodes + (node size - 1) for the
  // hierarchy of 4 x 2.
  const auto steps = [](const char* name) {
    const Schedule s =
        lower_collectives(all_gather_attention(problem(8, 4)), parse_collective(name));
    return account(s.sharded, s.program(0), 0).messages_sent;
  };
  EXPECT_EQ(steps("ring"), 7);
  EXPECT_EQ(steps("recursive_doubling"), 3);
  EXPECT_EQ(steps("bruck"), 3);
  EXPECT_EQ(steps("hierarchical"), 2 + 1);
}

TEST(Formulas, EveryExactAlgorithmSendsHalfAsMuchInBf16) {
  for (const char* name : {"ring", "all_gather", "ulysses", "usp", "double_ring"}) {
    ShardedProblem s = problem(8, 4);
    const int64_t fp32 = of(find_algorithm(name).make(s)).bytes_sent;
    s.problem.dtype = DType::kBFloat16;
    EXPECT_EQ(2 * of(find_algorithm(name).make(s)).bytes_sent, fp32) << name;
  }
}

TEST(Formulas, BidirectionalRing) {  // the ring's bytes in twice as many messages
  const RankAccount a = of(find_algorithm("bidirectional_ring").make(problem(8, 4)));
  EXPECT_EQ(a.bytes_sent, 7 * 2 * (kN / 8) * 4 * kD * kE);
  EXPECT_EQ(a.messages_sent, 2 * 7);
}

TEST(Formulas, CausalBalance) {
  const auto balance = [](Schedule (*make)(const ShardedProblem&), int ranks, LayoutKind layout) {
    return account(lower_collectives(make(problem(ranks, kH, layout, true)), {})).balance(ranks);
  };
  for (const int p : {2, 4, 8}) {
    EXPECT_NEAR(balance(ring_attention, p, LayoutKind::kContiguous), double(p) / (2 * p - 1), 2e-3);
    EXPECT_GE(balance(ring_attention, p, LayoutKind::kZigzag), 0.98);
    EXPECT_GE(balance(ring_attention, p, LayoutKind::kStriped), 0.98);
    EXPECT_GE(balance(all_gather_attention, p, LayoutKind::kZigzag), 0.98);
    EXPECT_GE(balance(double_ring_attention, p, LayoutKind::kZigzag), 0.98);
    EXPECT_GE(balance(ulysses_attention, p, LayoutKind::kContiguous), 0.98);
    EXPECT_GE(balance(usp_attention, p, LayoutKind::kZigzag), 0.98);
  }
}

}  // namespace
}  // namespace longnet
