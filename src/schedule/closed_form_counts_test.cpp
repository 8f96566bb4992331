// The accounts of every algorithm, rank by rank, against closed forms (closed_form_counts.h), and
// those against numbers worked out by hand. (Executor tests compare real counts with the accounts.)
#include "schedule/closed_form_counts.h"

#include <gtest/gtest.h>

#include "core/testing/test_support.h"
#include "schedule/accounting.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

constexpr int64_t kN = 1 << 12, kH = 16, kD = 64;

ShardedProblem problem(int ranks, int64_t kv_heads, LayoutKind layout = LayoutKind::kContiguous,
                       bool causal = false) {
  return {
      {.seq_len = kN, .num_heads = kH, .num_kv_heads = kv_heads, .head_dim = kD, .causal = causal},
      dense_pattern(kN),
      {kN, ranks, layout}};
}

// False when the algorithm cannot run this.
bool expect_closed_form(const AlgorithmInfo& algorithm, const ShardedProblem& s,
                        const std::string& collective = "native", int node_size = 0) {
  if (!algorithm.why_no_program(s).empty()) return false;
  CollectiveChoice choice = parse_collective(collective);
  choice.node_size = node_size;
  const Schedule schedule = lower_collectives(algorithm.make(s), choice);
  for (Rank r = 0; r < s.layout.world_size(); ++r) {
    const auto form = closed_form_counts(algorithm.name, s, choice, r);
    EXPECT_EQ(form.has_value(), s.pattern.phase_parts == 1);
    if (!form) continue;
    const RankCounts counted = program_counts(schedule.sharded, schedule.program(r), r);
    EXPECT_EQ(to_text(*form), to_text(counted))
        << algorithm.name << " rank " << r << " of " << s.layout.world_size()
        << " N=" << s.problem.seq_len << " H=" << s.problem.num_heads
        << " G=" << s.problem.num_kv_heads << " causal=" << s.problem.causal << " "
        << to_string(s.layout.kind()) << " " << collective << " node_size=" << node_size;
  }
  return true;
}

constexpr LayoutKind kLayouts[] = {LayoutKind::kContiguous, LayoutKind::kZigzag,
                                   LayoutKind::kStriped};

TEST(Formulas, ExactAlgorithms) {
  CasesRun ran;
  for (const AlgorithmInfo& algorithm : algorithms()) {
    if (algorithm.pattern != PatternKind::kDense) continue;
    for (const int ranks : {1, 2, 4, 8, 16})
      for (const int64_t g : {16, 4, 2, 1})
        for (const bool causal : {false, true})
          for (const LayoutKind layout : kLayouts)
            ran.add(std::string(algorithm.name),
                    expect_closed_form(algorithm, problem(ranks, g, layout, causal)));
  }
  ran.expect_some_of_each();
}

// Shards, heads and chunks of unequal sizes; ranks without tokens.
TEST(Formulas, UnequalShares) {
  CasesRun ran;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const int64_t seq_len : {101, 60, 5})
      for (int ranks = 1; ranks <= 9; ++ranks)
        for (const LayoutKind layout : kLayouts)
          for (const int64_t g : {6, 2, 1})
            for (const std::string& collective : collective_names()) {
              ShardedProblem s{{.seq_len = seq_len,
                                .num_heads = 6,
                                .num_kv_heads = g,
                                .head_dim = 8,
                                .batch = 3,
                                .dtype = DType::kBFloat16},
                               dense_pattern(seq_len),
                               {seq_len, ranks, layout}};
              if (algorithm.pattern == PatternKind::kDilated)
                s.pattern = {.branches = {{16, 2}, {20, 1}, {50, 3}, {seq_len, 7}, {200, 64}}};
              if (algorithm.pattern == PatternKind::kSparse) s.pattern = sparse_pattern(11, 3);
              ran.add(std::string(algorithm.name), expect_closed_form(algorithm, s, collective));
            }
  ran.expect_some_of_each();
}

TEST(Formulas, OutputsOf16Bits) {
  ShardedProblem s = problem(4, 4);
  s.problem.output_dtype = DType::kBFloat16;
  int ran = 0;
  for (const AlgorithmInfo& algorithm : algorithms())
    if (why_no_program(algorithm, s, Pass::kForward).empty())
      ran += expect_closed_form(algorithm, s);
  EXPECT_GE(ran, 2);
}

TEST(Formulas, OptionsOfAlgorithms) {
  CasesRun ran;
  for (const int64_t g : {16, 4, 2, 1})
    for (const LayoutKind layout : kLayouts)
      for (const int option : {1, 2, 4, 8}) {
        ShardedProblem s = problem(8, g, layout);
        s.options = {.ulysses_degree = option, .ring_inner = option, .head_slice = option};
        for (const AlgorithmInfo& algorithm : algorithms())
          if (algorithm.effective_options)
            ran.add(std::string(algorithm.name), expect_closed_form(algorithm, s));
      }
  ran.expect_some_of_each();
}

TEST(Formulas, Collectives) {
  for (const int ranks : {2, 3, 4, 6, 8, 12, 16})
    for (const int node_size : {0, 2, 4})
      for (const std::string& collective : collective_names())
        for (const AlgorithmInfo& algorithm : algorithms())
          if (algorithm.pattern == PatternKind::kDense &&
              algorithm.collectives != CollectiveUse::kNone) {
            EXPECT_TRUE(expect_closed_form(algorithm, problem(ranks, 4), collective, node_size));
          }
}

// Segments inside and across shards, whatever divides what; every rule of offsets.
TEST(Formulas, Dilated) {
  for (const int64_t g : {16, 4, 2, 1})
    for (const OffsetRule rule : {OffsetRule::kPaper, OffsetRule::kBlock, OffsetRule::kNone})
      for (const GatherScope scope : {GatherScope::kSegmentGroup, GatherScope::kWholeWorld})
        for (const char* collective : {"native", "ring", "recursive_doubling", "hierarchical"})
          for (const int64_t m : {1, 2, 3, 4, 8})
            for (const int64_t r : {2, 5, 8, 64}) {
              ShardedProblem s = problem(8, g);
              const int64_t c = kN / 8;
              s.gather_scope = scope;
              s.pattern = {.branches = {{c / 2, 1}, {m * c, r}, {kN, 16}}, .offset = rule};
              EXPECT_TRUE(expect_closed_form(find_algorithm("dilated"), s, collective));
            }
}

TEST(Formulas, DilationThatRestartsHasNone) {
  ShardedProblem s = problem(4, 4);
  s.pattern = {.branches = {{kN / 4, 1}, {kN, 8}}, .phase_parts = 4};
  EXPECT_TRUE(expect_closed_form(find_algorithm("dilated"), s));
  EXPECT_FALSE(closed_form_counts("unheard of", problem(4, 4), {}, 0));
}

// By hand, P = 8, c = 512 tokens a rank, H = 16, G = 4, d = 64, fp32: a token has 4096 bytes of Q,
// 2048 of K and V, 4160 of a partial.
TEST(Formulas, WorkedOutByHand) {
  const auto form = [](const char* algorithm, const ShardedProblem& s = problem(8, 4)) {
    return *closed_form_counts(algorithm, s, {}, 1);
  };
  constexpr int64_t c = 512, q = 4096, kv = 2048, o = 4160, own = c * (q + kv + o);
  const RankCounts ring{7 * c * kv, 7, 7 * c * kv, 7, own + 2 * c * kv + c * o};
  EXPECT_EQ(form("ring"), ring);
  EXPECT_EQ(form("all_gather"), (RankCounts{7 * c * kv, 7, 7 * c * kv, 7, own + 8 * c * kv}));
  EXPECT_EQ(form("bidirectional_ring"),
            (RankCounts{7 * c * kv, 14, 7 * c * kv, 14, own + 4 * (c * kv / 2) + c * o}));
  // Pi = 2: each inner ring of two has a buffer, the outer of four has two.
  EXPECT_EQ(form("double_ring"),
            (RankCounts{7 * c * kv, 7, 7 * c * kv, 7, own + 3 * c * kv + c * o}));
  // Each of 8 ranks has 2 heads, and the K/V head of those: 8 of them travel instead of 4.
  EXPECT_EQ(form("ulysses"),
            (RankCounts{7 * c * (2 * q + 2 * kv) / 8, 21, 7 * c * (2 * q + 2 * kv) / 8, 21,
                        own + 4 * c * q + 2 * 2 * c * kv + c * o}));
  EXPECT_EQ(form("query_gather").bytes_sent, 7 * c * (q + o));
  ShardedProblem s = problem(8, 4);  // rows 0, 8, 16, ... of 4 offsets: half of the shard's bytes
  s.pattern = {.branches = {{c / 2, 1}, {4 * c, 8}}};
  EXPECT_EQ(form("dilated", s),
            (RankCounts{3 * c * kv / 2, 3, 3 * c * kv / 2, 3, own + 4 * c * kv / 2 + c * o / 8}));
  s.pattern = sparse_pattern(128, 8);  // four heads that share a K/V head look at 4 x 8 of 128
  EXPECT_EQ(form("sparse", s).bytes_sent, 7 * c * kv / 4);
}

TEST(Formulas, DoubleRing) {  // (Po - 1) 2 c G d e of its bytes leave the node
  for (const int inner : {1, 2, 4, 8}) {
    ShardedProblem s = problem(8, 4);
    s.options.ring_inner = inner;
    const int64_t shard = 2 * (kN / 8) * 4 * kD * 4;  // as many bytes of gradients
    for (const bool backward : {false, true}) {
      const Schedule schedule =
          double_ring_attention(s, backward ? Pass::kBackward : Pass::kForward);
      int64_t leaving = 0;
      for (const Op& op : schedule.program(1).ops)
        if (const auto* send = std::get_if<Send>(&op.what); send && send->to / inner != 1 / inner)
          leaving += shard;
      EXPECT_EQ(leaving, (8 / inner - 1) * shard * (backward ? 2 : 1));
    }
  }
}

TEST(Formulas, CausalBalance) {
  const auto balance = [](Schedule (*make)(const ShardedProblem&, Pass), int ranks,
                          LayoutKind layout) {
    return account(lower_collectives(make(problem(ranks, kH, layout, true), Pass::kForward), {}))
        .balance(ranks);
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
