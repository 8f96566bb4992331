// The accounts of every algorithm against its published closed form. c = N / P tokens per rank, H
// query and G K/V heads of d lanes, e = 4 bytes; P, Pu, Pr, Pi, Po as in the algorithm's file.
// (Executor tests compare real counts with these accounts.)
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

// Every rank of `algorithm` sends and receives so much, with and without a causal mask.
void expect_sent(const char* algorithm, ShardedProblem s, int64_t bytes, int64_t messages) {
  for (const bool causal : {false, true}) {
    s.problem.causal = causal;
    const Schedule lowered = lower_collectives(find_algorithm(algorithm).make(s), {});
    for (Rank r = 0; r < s.layout.world_size(); ++r) {
      SCOPED_TRACE(testing::Message()
                   << algorithm << " P=" << s.layout.world_size() << " rank " << r
                   << " G=" << s.problem.num_kv_heads << " causal " << causal);
      const RankAccount a = account(lowered.sharded, lowered.program(r), r);
      EXPECT_EQ(a.bytes_sent, bytes);
      EXPECT_EQ(a.bytes_received, bytes);
      EXPECT_EQ(a.messages_sent, messages);
    }
  }
}

int64_t kv_bytes(int64_t tokens, int64_t heads) { return 2 * tokens * heads * kD * kE; }

TEST(Formulas, Ring) {  // sent (P - 1) 2 c G d e, two buffers 4 c G d e
  for (const int p : {2, 4, 8, 16})
    for (const int64_t g : {16, 4, 1}) {
      for (const LayoutKind layout :
           {LayoutKind::kContiguous, LayoutKind::kZigzag, LayoutKind::kStriped})
        expect_sent("ring", problem(p, g, layout), (p - 1) * kv_bytes(kN / p, g), p - 1);
      EXPECT_EQ(of(ring_attention(problem(p, g))).memory_by_tag.at("kv_buffer"),
                std::min(2, p - 1) * kv_bytes(kN / p, g));
    }
}

// Sent (P - 1) 2 c G d e, memory 2 N G d e, or 2 x 2 N s d e when sliced.
TEST(Formulas, AllGather) {
  for (const int p : {2, 4, 8, 16})
    for (const int64_t g : {16, 4, 1}) {
      for (const LayoutKind layout : {LayoutKind::kContiguous, LayoutKind::kZigzag}) {
        ShardedProblem s = problem(p, g, layout);
        expect_sent("all_gather", s, (p - 1) * kv_bytes(kN / p, g), p - 1);
        if (g < 4) continue;
        s.options.head_slice = 2;  // the same bytes, one gather per slice
        expect_sent("all_gather", s, (p - 1) * kv_bytes(kN / p, g), g / 2 * (p - 1));
      }
      ShardedProblem s = problem(p, g);
      EXPECT_EQ(of(all_gather_attention(s)).memory_by_tag.at("gathered"), kv_bytes(kN, g));
      if (g < 4) continue;
      s.options.head_slice = 2;
      EXPECT_EQ(of(all_gather_attention(s)).memory_by_tag.at("gathered"), 2 * kv_bytes(kN, 2));
    }
}

// (P - 1) / P c (2 H + 2 G') d e, G' = max(G, P).
int64_t ulysses_bytes(int64_t c, int64_t degree, int64_t g) {
  const int64_t g1 = std::max(g, degree);
  return (degree - 1) * c * (2 * kH + 2 * g1) * kD * kE / degree;
}

TEST(Formulas, Ulysses) {  // three all-to-alls: Q, K with V, O
  for (const int ranks : {2, 4, 8, 16})
    for (const int64_t g : {16, 4, 2, 1})
      expect_sent("ulysses", problem(ranks, g), ulysses_bytes(kN / ranks, ranks, g),
                  3 * (ranks - 1));
}

// The all-to-alls inside Pu, and a ring of (Pr - 1) 2 c G'' d e, G'' = max(G, Pu).
TEST(Formulas, Usp) {
  for (const int degree : {1, 2, 4, 8})
    for (const int64_t g : {16, 4, 2, 1}) {
      ShardedProblem s = problem(8, g);
      s.options.ulysses_degree = degree;
      const int64_t c = kN / 8, steps = 8 / degree - 1;
      expect_sent("usp", s,
                  ulysses_bytes(c, degree, g) + steps * kv_bytes(c, std::max<int64_t>(g, degree)),
                  3 * (degree - 1) + steps);
    }
}

// A segment over m ranks at rate r: each gives the others its c / r rows, for min(r, H / G) offsets
// of each K/V head. Segments inside a rank send nothing, whatever N is.
TEST(Formulas, Dilated) {
  for (const int64_t g : {16, 4, 2, 1})
    for (const int64_t m : {2, 4, 8})
      for (const int64_t r : {2, 8, 64}) {
        ShardedProblem s = problem(8, g);
        const int64_t c = kN / 8, own = kv_bytes(c / r, g * std::min(r, kH / g));
        s.pattern = {.branches = {{c / 2, 1}, {m * c, r}}};
        expect_sent("dilated", s, (m - 1) * own, m - 1);
        const int64_t wide = kv_bytes(c / 16, g * std::min<int64_t>(16, kH / g));
        s.pattern = {.branches = {{c, 1}, {m * c, r}, {8 * c, 16}}};
        expect_sent("dilated", s, (m - 1) * own + 7 * wide, m - 1 + 7);
      }
}

TEST(Formulas, DoubleRing) {  // bytes of the ring; (Po - 1) 2 c G d e leave the node
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

// Summary rows of all ranks: N / w blocks of k tokens; the local blocks stay.
TEST(Formulas, Sparse) {
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
