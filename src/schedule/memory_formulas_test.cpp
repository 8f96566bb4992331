// Memory of every rank against closed forms. c = N / P tokens per rank, H query and G K/V heads of
// d lanes, e bytes per element; an O and LSE in fp32 take 4 (d + 1) bytes per row. Every program
// holds its shard of Q, K, V and the output: c (H + 2 G) d e + 4 c H (d + 1). The tests state the
// rest, which depends neither on the rank nor on the mask.
#include <gtest/gtest.h>

#include "schedule/accounting.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

constexpr int64_t kN = 1 << 12, kH = 16, kD = 64, kE = 4;

ShardedProblem problem(int ranks, int64_t kv_heads, bool causal, AlgorithmOptions options = {}) {
  return {
      {.seq_len = kN, .num_heads = kH, .num_kv_heads = kv_heads, .head_dim = kD, .causal = causal},
      dense_pattern(kN),
      {kN, ranks},
      GatherScope::kSegmentGroup,
      options};
}

int64_t kv_bytes(int64_t tokens, int64_t kv_heads) { return 2 * tokens * kv_heads * kD * kE; }
int64_t query_bytes(int64_t tokens) { return tokens * kH * kD * kE; }
int64_t partial_bytes(int64_t tokens) { return 4 * tokens * kH * (kD + 1); }

// All ranks of `algorithm` hold their shards and `extra` bytes.
void expect_memory(const char* algorithm, const ShardedProblem& s, int64_t extra,
                   const char* collective = "native") {
  const int64_t c = kN / s.layout.world_size();
  const int64_t expected =
      query_bytes(c) + kv_bytes(c, s.problem.num_kv_heads) + partial_bytes(c) + extra;
  const Schedule schedule =
      lower_collectives(find_algorithm(algorithm).make(s), parse_collective(collective));
  for (Rank r = 0; r < s.layout.world_size(); ++r)
    EXPECT_EQ(account(schedule.sharded, schedule.program(r), r).memory_bytes(), expected)
        << algorithm << " P=" << s.layout.world_size() << " rank " << r
        << " G=" << s.problem.num_kv_heads << " causal=" << s.problem.causal << " " << collective;
}

template <class Fn>
void for_masks_and_kv_heads(Fn fn) {
  for (const bool causal : {false, true})
    for (const int64_t g : {16, 4, 2, 1}) fn(causal, g);
}

// Q, K and V packed and exchanged, the result packed and exchanged: 4 c H d e + 4 c G' d e; the
// accumulator of the exchanged heads. G' = max(G, Pu): ranks that share a K/V head each hold it.
int64_t exchange_bytes(int64_t c, int64_t degree, int64_t g) {
  return 4 * query_bytes(c) + 2 * kv_bytes(c, std::max(g, degree)) + partial_bytes(c);
}

TEST(MemoryFormulas, Ulysses) {
  for_masks_and_kv_heads([](bool causal, int64_t g) {
    for (const int ranks : {2, 4, 8, 16})
      expect_memory("ulysses", problem(ranks, g, causal), exchange_bytes(kN / ranks, ranks, g));
  });
}

TEST(MemoryFormulas, Usp) {  // Ulysses in groups; a ring adds two buffers of 2 c G' d e, a partial
  for_masks_and_kv_heads([](bool causal, int64_t g) {
    for (const int degree : {1, 2, 4, 8}) {
      const int64_t c = kN / 8, rings = 8 / degree;
      const int64_t ring =
          rings == 1 ? 0
                     : std::min<int64_t>(2, rings - 1) * kv_bytes(c, std::max<int64_t>(g, degree)) +
                           partial_bytes(c);
      expect_memory("usp", problem(8, g, causal, {.ulysses_degree = degree}),
                    ring + (degree == 1 ? 0 : exchange_bytes(c, degree, g)));
    }
  });
}

TEST(MemoryFormulas, Ring) {  // two K/V buffers that take turns and a partial, whatever P is
  for_masks_and_kv_heads([](bool causal, int64_t g) {
    for (const int ranks : {2, 4, 8, 16})
      for (const LayoutKind layout :
           {LayoutKind::kContiguous, LayoutKind::kZigzag, LayoutKind::kStriped}) {
        ShardedProblem s = problem(ranks, g, causal);
        s.layout = SequenceLayout(kN, ranks, layout);
        const int64_t c = kN / ranks;
        expect_memory("ring", s, std::min(2, ranks - 1) * kv_bytes(c, g) + partial_bytes(c));
      }
  });
}

TEST(MemoryFormulas, AllGather) {  // 2 N G d e; by slices of s heads two buffers of 2 N s d e
  for_masks_and_kv_heads([](bool causal, int64_t g) {
    for (const int ranks : {2, 4, 8, 16})
      for (const LayoutKind layout : {LayoutKind::kContiguous, LayoutKind::kZigzag}) {
        ShardedProblem s = problem(ranks, g, causal);
        s.layout = SequenceLayout(kN, ranks, layout);
        expect_memory("all_gather", s, kv_bytes(kN, g));
        for (const int64_t slice : {1, 2}) {
          if (slice >= g) continue;
          s.options.head_slice = int(slice);
          expect_memory("all_gather", s, 2 * kv_bytes(kN, slice));
        }
      }
  });
}

TEST(MemoryFormulas, DoubleRing) {  // up to two buffers in each ring, one partial
  for_masks_and_kv_heads([](bool causal, int64_t g) {
    for (const int inner : {1, 2, 4, 8}) {
      const int64_t c = kN / 8;
      const int buffers = std::min(2, inner - 1) + std::min(2, 8 / inner - 1);
      expect_memory("double_ring", problem(8, g, causal, {.ring_inner = inner}),
                    buffers * kv_bytes(c, g) + partial_bytes(c));
    }
  });
}

TEST(MemoryFormulas, BidirectionalRing) {  // two buffers each way, of half the heads: 4 c G d e
  for_masks_and_kv_heads([](bool causal, int64_t g) {
    if (g == 1) return;  // one head cannot be split
    for (const int ranks : {2, 4, 8})
      expect_memory("bidirectional_ring", problem(ranks, g, causal),
                    2 * kv_bytes(kN / ranks, g) + partial_bytes(kN / ranks));
  });
}

// All queries and all partials, O(N); a scratch of one piece when reduced around a ring, of P / 2
// pieces by recursive halving.
TEST(MemoryFormulas, QueryGather) {
  for_masks_and_kv_heads([](bool causal, int64_t g) {
    for (const int ranks : {2, 4, 8}) {
      const int64_t gathered = query_bytes(kN) + partial_bytes(kN), c = kN / ranks;
      expect_memory("query_gather", problem(ranks, g, causal), gathered + partial_bytes(c));
      expect_memory("query_gather", problem(ranks, g, causal),
                    gathered + partial_bytes(c * ranks / 2), "recursive_doubling");
    }
  });
}

// Segments over m of P ranks, rate r: w / r rows for each of min(r, H / G) offsets of a K/V head,
// and a partial of c / r query rows. The local branch of rate 1 writes the output in place. Each of
// two branches keeps its gathered rows; both use one partial, as large as the larger one needs.
TEST(MemoryFormulas, DilatedExchangesInsideSegments) {
  for_masks_and_kv_heads([](bool causal, int64_t g) {
    const int64_t c = kN / 8;
    const auto gathered = [&](int64_t w, int64_t r) {
      return kv_bytes(w / r, g * std::min(r, kH / g));
    };
    ShardedProblem s = problem(8, g, causal);
    for (const int64_t m : {2, 4, 8})
      for (const int64_t r : {2, 8}) {
        s.pattern = {.branches = {{c / 2, 1}, {m * c, r}}};
        expect_memory("dilated", s, gathered(m * c, r) + partial_bytes(c / r));
      }
    s.pattern = {.branches = {{c, 1}, {2 * c, 4}, {8 * c, 16}}};
    expect_memory("dilated", s, gathered(2 * c, 4) + gathered(8 * c, 16) + partial_bytes(c / 4));
    s.pattern = {.branches = {{c, 1}, {c, 4}}};  // no segment crosses: nothing is gathered
    expect_memory("dilated", s, partial_bytes(c / 4));
  });
}

}  // namespace
}  // namespace longnet
