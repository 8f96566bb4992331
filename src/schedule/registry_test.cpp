// Every algorithm x shapes x 1..9 ranks through check_schedule.
#include "schedule/registry.h"

#include <gtest/gtest.h>

#include <map>

#include "core/check.h"
#include "core/testing/test_support.h"
#include "schedule/accounting.h"
#include "schedule/check_schedule.h"
#include "schedule/lower_collectives.h"
#include "schedule/program_builder.h"

namespace longnet {
namespace {

struct Shape {
  AttentionProblem problem;
  DilatedPattern pattern;
};

std::vector<Shape> shapes() {
  using P = AttentionProblem;
  return {
      {P{.seq_len = 64, .num_heads = 4, .num_kv_heads = 4},
       {.branches = {{16, 1}, {32, 2}, {64, 4}}}},
      {P{.seq_len = 101, .num_heads = 3, .num_kv_heads = 3},
       {.branches = {{20, 1}, {50, 3}, {101, 7}}}},
      {P{.seq_len = 97, .num_heads = 6, .num_kv_heads = 2},
       {.branches = {{16, 1}, {40, 6}, {97, 5}}}},
      {P{.seq_len = 40, .num_heads = 1, .num_kv_heads = 1},
       {.branches = {{8, 16}, {40, 64}}}},  // r > w, no r = 1
      {P{.seq_len = 33, .num_heads = 5, .num_kv_heads = 1}, {.branches = {{100, 1}}}},  // w > N
      {P{.seq_len = 5, .num_heads = 2, .num_kv_heads = 2},
       {.branches = {{2, 1}, {5, 2}}}},  // P > N
      {P{.seq_len = 1, .num_heads = 2, .num_kv_heads = 1}, {.branches = {{1, 1}, {1, 3}}}},
      {P{.seq_len = 60, .num_heads = 4, .num_kv_heads = 2},
       {.branches = {{12, 2}, {60, 1}, {60, 3}}}},
      {P{.seq_len = 70, .num_heads = 4, .num_kv_heads = 4},
       {.branches = {{10, 1}, {70, 3}}, .offset = OffsetRule::kBlock, .mix = MixRule::kMean}},
  };
}

DilatedPattern pattern_for(const AlgorithmInfo& algorithm, const Shape& shape) {
  switch (algorithm.pattern) {
    case PatternKind::kDilated:
      return shape.pattern;
    case PatternKind::kSparse:
      return sparse_pattern(11, 3);
    default:
      return dense_pattern(shape.problem.seq_len);
  }
}

// False when the algorithm cannot run this.
bool expect_correct(const AlgorithmInfo& algorithm, const ShardedProblem& s,
                    const CollectiveChoice& choice) {
  if (!algorithm.why_no_program(s).empty()) return false;
  const Schedule schedule = lower_collectives(algorithm.make(s), choice);
  const auto faults = check_schedule(schedule);
  EXPECT_TRUE(faults.empty()) << algorithm.name << " N=" << s.problem.seq_len
                              << " P=" << s.layout.world_size() << " causal=" << s.problem.causal
                              << " layout=" << to_string(s.layout.kind()) << ": "
                              << (faults.empty() ? "" : faults.front());
  // The attended pairs are those of the pattern; shards beyond the causal diagonal add nothing.
  double pairs = 0;
  for (int b = 0; b < int(s.pattern.branches.size()); ++b)
    pairs += branch_pairs(s.problem, s.pattern, b);
  EXPECT_EQ(account(schedule).pairs, pairs) << algorithm.name;
  return true;
}

// Refused where results travel, where a row is merged again and again, and in backward passes.
TEST(Registry, OutputsOf16Bits) {
  std::map<std::string, std::string> why;
  const auto ask = [&](int ranks, Pass pass) {
    for (const AlgorithmInfo& algorithm : algorithms()) {
      ShardedProblem s{
          {.seq_len = 4096, .num_heads = 4, .num_kv_heads = 4}, dense_pattern(4096), {4096, ranks}};
      if (algorithm.pattern != PatternKind::kDense)
        s.pattern = {.branches = {{512, 1}, {1024, 4}, {4096, 16}}};
      const std::string before = why_no_program(algorithm, s, pass);
      s.problem.output_dtype = DType::kBFloat16;
      if (before.empty()) why[std::string(algorithm.name)] = why_no_program(algorithm, s, pass);
    }
  };
  ask(4, Pass::kForward);
  for (const char* name : {"all_gather", "ring", "dilated"}) EXPECT_EQ(why.at(name), "") << name;
  for (const char* name : {"ulysses", "usp"})
    EXPECT_EQ(why.at(name),
              std::string(name) + " moves results, in fp32: leave out model.output_dtype");
  ask(32, Pass::kForward);
  EXPECT_EQ(why.at("dilated"), "");
  EXPECT_NE(why.at("ring").find("merges 31 times into one row"), std::string::npos);
  ask(4, Pass::kForwardBackward);
  for (const auto& [name, reason] : why) EXPECT_NE(reason, "") << name;
}

TEST(Registry, EveryAlgorithmIsCorrectForEveryShape) {
  CasesRun ran;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (Shape shape : shapes())
      for (int ranks = 1; ranks <= 9; ++ranks)
        for (bool causal : {false, true})
          for (LayoutKind layout :
               {LayoutKind::kContiguous, LayoutKind::kZigzag, LayoutKind::kStriped}) {
            shape.problem.causal = causal;
            const ShardedProblem s{shape.problem,
                                   pattern_for(algorithm, shape),
                                   {shape.problem.seq_len, ranks, layout}};
            ran.add(std::string(algorithm.name), expect_correct(algorithm, s, {}));
          }
  ran.expect_some_of_each();
}

TEST(Registry, DilatedOptions) {
  CasesRun ran;
  for (Shape shape : shapes())
    for (int ranks = 1; ranks <= 9; ++ranks)
      for (GatherScope scope : {GatherScope::kSegmentGroup, GatherScope::kWholeWorld})
        for (bool shard_phase : {false, true}) {
          shape.pattern.phase_parts = shard_phase ? ranks : 1;
          const ShardedProblem s{
              shape.problem, shape.pattern, {shape.problem.seq_len, ranks}, scope};
          ran.add(shard_phase ? "shard phase" : "global phase",
                  expect_correct(find_algorithm("dilated"), s, {}));
        }
  ran.expect_some_of_each();
}

TEST(Registry, EveryCollectiveOfEveryAlgorithm) {
  CasesRun ran;
  for (const AlgorithmInfo& algorithm : algorithms()) {
    if (algorithm.one_rank_only) continue;
    for (const Shape& shape : shapes())
      for (int ranks : {2, 3, 4, 6, 8, 9})
        for (const std::string& name : collective_names()) {
          const ShardedProblem s{
              shape.problem, pattern_for(algorithm, shape), {shape.problem.seq_len, ranks}};
          ran.add(concat(algorithm.name, " ", name),
                  expect_correct(algorithm, s, parse_collective(name)));
        }
  }
  ran.expect_some_of_each();
}

TEST(Registry, EveryDegreeOfUspAndDoubleRing) {
  CasesRun ran;
  for (int ranks : {1, 2, 4, 6, 8, 12})
    for (int degree = 1; degree <= ranks; ++degree)
      for (LayoutKind layout : {LayoutKind::kContiguous, LayoutKind::kZigzag})
        for (bool causal : {false, true})
          for (int64_t n : {77, 5}) {  // 5: ranks without tokens
            const AttentionProblem p{
                .seq_len = n, .num_heads = 6, .num_kv_heads = 3, .causal = causal};
            ShardedProblem s{p, dense_pattern(n), {n, ranks, layout}};
            s.options.ulysses_degree = s.options.ring_inner = degree;
            s.options.head_slice = degree;
            for (const AlgorithmInfo& algorithm : algorithms())
              if (algorithm.pattern == PatternKind::kDense && algorithm.effective_options)
                ran.add(concat(algorithm.name, " ", to_string(layout), " ", ranks),
                        expect_correct(algorithm, s, {}));
          }
  ran.expect_some_of_each();
}

TEST(Registry, EffectiveOptionsAreTheOnesUsed) {
  const auto effective = [](const char* name, int ranks, int64_t kv_heads,
                            const AlgorithmOptions& asked) {
    const ShardedProblem s{{.seq_len = 64, .num_heads = 8, .num_kv_heads = kv_heads},
                           dense_pattern(64),
                           {64, ranks},
                           GatherScope::kSegmentGroup,
                           asked};
    return find_algorithm(name).effective_options(s);
  };
  using O = AlgorithmOptions;
  // usp: the largest divisor of P that shares the K/V heads evenly.
  EXPECT_EQ(effective("usp", 6, 8, {}), O{.ulysses_degree = 2});
  EXPECT_EQ(effective("usp", 8, 8, {}), O{.ulysses_degree = 8});
  EXPECT_EQ(effective("usp", 6, 4, {}), O{.ulysses_degree = 2});
  EXPECT_EQ(effective("usp", 6, 1, {}), O{.ulysses_degree = 1});
  EXPECT_EQ(effective("usp", 6, 1, {.ulysses_degree = 2}), O{.ulysses_degree = 2});
  EXPECT_EQ(effective("usp", 6, 1, {.ulysses_degree = 4}), O{.ulysses_degree = 4});  // skipped
  // double_ring: the divisor of P nearest to its root, from below.
  EXPECT_EQ(effective("double_ring", 12, 8, {}), O{.ring_inner = 3});
  EXPECT_EQ(effective("double_ring", 7, 8, {}), O{.ring_inner = 1});
  EXPECT_EQ(effective("double_ring", 12, 8, {.ring_inner = 4}), O{.ring_inner = 4});
  // all_gather: slices of all heads are none, and one rank gathers nothing.
  EXPECT_EQ(effective("all_gather", 2, 4, {.head_slice = 3}), O{.head_slice = 3});
  EXPECT_EQ(effective("all_gather", 2, 4, {.head_slice = 4}), O{});
  EXPECT_EQ(effective("all_gather", 2, 4, {.head_slice = 9}), O{});
  EXPECT_EQ(effective("all_gather", 1, 4, {.head_slice = 2}), O{});
  // dilated: rows are kept where some are gathered.
  EXPECT_EQ(effective("dilated", 2, 4, {.keep_gathered = true}), O{.keep_gathered = true});
  EXPECT_EQ(effective("dilated", 1, 4, {.keep_gathered = true}), O{});
}

// The effective options make the same programs as those asked for.
TEST(Registry, EffectiveOptionsChangeNoProgram) {
  int compared = 0;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const int ranks : {1, 2, 6})
      for (const int64_t kv_heads : {6, 2, 1})
        for (const int value : {0, 1, 2, 3, 6}) {
          ShardedProblem s{{.seq_len = 60, .num_heads = 6, .num_kv_heads = kv_heads},
                           dense_pattern(60),
                           {60, ranks}};
          s.options = {.ulysses_degree = value,
                       .ring_inner = value,
                       .head_slice = value,
                       .keep_gathered = value == 1};
          if (!algorithm.why_no_program(s).empty()) continue;
          ShardedProblem resolved = s;
          resolved.options = {};  // for an algorithm that reads none
          if (algorithm.effective_options) resolved.options = algorithm.effective_options(s);
          for (const Pass pass : {Pass::kForward, Pass::kBackward})
            for (Rank r = 0; r < ranks; ++r, ++compared)
              ASSERT_EQ(to_text(s, algorithm.make(s, pass).program(r), r),
                        to_text(s, algorithm.make(resolved, pass).program(r), r))
                  << algorithm.name << " P=" << ranks << " G=" << kv_heads << " value " << value;
        }
  EXPECT_GT(compared, 500);
}

TEST(Registry, NamesOfTheSuite) {
  EXPECT_NO_THROW(find_algorithm("local"));
  EXPECT_NO_THROW(find_algorithm("ring"));
  EXPECT_NO_THROW(find_algorithm("dilated"));
  try {
    find_algorithm("rinf");
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("known: local, ring, all_gather"), std::string::npos);
  }
}

TEST(Ring, RefusesAProgramThatNoMemoryHolds) {
  constexpr int kRanks = 1 << 24;
  const ShardedProblem s{{.seq_len = kRanks}, dense_pattern(kRanks), {kRanks, kRanks}};
  EXPECT_THROW(ring_attention(s).program(0), UsageError);
  EXPECT_LE(RankProgram::kMostOps * sizeof(Op), size_t{1} << 30);
}

TEST(RankProgram, HasAtMostHalfAGiBOfOps) {
  RankProgram program;
  program.ops.resize(RankProgram::kMostOps - 1);
  EXPECT_EQ(program.add(Reset{}, {}), OpId(RankProgram::kMostOps) - 1);
  EXPECT_THROW(program.add(Reset{}, {}), UsageError);
}

TEST(Local, RefusesSeveralRanks) {
  const ShardedProblem s{{.seq_len = 8}, dense_pattern(8), {8, 2}};
  EXPECT_NE(find_algorithm("local").why_no_program(s), "");
}

TEST(Ring, SendsToTheNextRankOnlyAndReusesTwoBuffers) {
  const ShardedProblem s{
      {.seq_len = 4096, .num_heads = 2, .num_kv_heads = 2}, dense_pattern(4096), {4096, 8}};
  const Schedule ring = ring_attention(s);
  for (Rank p = 0; p < 8; ++p) {
    const RankProgram program = ring.program(p);
    int buffers = 0;
    for (const Slot& slot : program.slots) buffers += slot.tag == SlotTag::kKvBuffer;
    EXPECT_EQ(buffers, 2);
    for (const Op& op : program.ops) {
      if (const auto* send = std::get_if<Send>(&op.what)) {
        EXPECT_EQ(send->to, (p + 1) % 8);
      }
    }
  }
}

TEST(Ring, BytesAndMemoryAreTheClosedForms) {
  // c = 512 tokens, 2 kv heads, d = 64, 4 bytes: sent (P - 1) 2 c G d e, two buffers 4 c G d e.
  const ShardedProblem s{
      {.seq_len = 4096, .num_heads = 4, .num_kv_heads = 2}, dense_pattern(4096), {4096, 8}};
  const RankAccount a = account(s, ring_attention(s).program(3), 3);
  EXPECT_EQ(a.bytes_sent, 7 * 2 * 512 * 2 * 64 * 4);
  EXPECT_EQ(a.bytes_received, a.bytes_sent);
  EXPECT_EQ(a.messages_sent, 7);
  EXPECT_EQ(a.memory_by_tag.at("kv_buffer"), 4 * 512 * 2 * 64 * 4);
  EXPECT_EQ(a.memory_by_tag.at("partial"), 512 * 4 * 65 * 4);
  const WorldAccount w8 = account(ring_attention(s));
  const ShardedProblem s4{s.problem, s.pattern, {4096, 4}};
  EXPECT_EQ(w8.memory_by_tag.at("kv_buffer") * 2,
            account(ring_attention(s4)).memory_by_tag.at("kv_buffer"));
}

TEST(Ring, CausalBalanceIsTheKnownCeiling) {  // busy (P + 1) / 2P; the last rank works 2P - 1 of
                                              // P^2 half blocks
  const int64_t n = 1 << 16;
  ShardedProblem s{{.seq_len = n, .causal = true}, dense_pattern(n), {n, 8}};
  EXPECT_NEAR(account(ring_attention(s)).balance(8), 8.0 / 15.0, 1e-3);  // P / (2P - 1) = 53.3 %
  s.problem.causal = false;
  EXPECT_DOUBLE_EQ(account(ring_attention(s)).balance(8), 1.0);
}

TEST(Dilated, GatheredBytesDoNotGrowWithTokens) {
  // Geometric rates: each rank packs l / r = 2048 / P rows of the branch w = N, whatever N is.
  for (int64_t n : {int64_t{1} << 16, int64_t{1} << 20, int64_t{1} << 24}) {
    const ShardedProblem s{{.seq_len = n}, {.branches = {{2048, 1}, {n, n / 2048}}}, {n, 4}};
    const RankAccount a = account(s, dilated_attention(s).program(1), 1);
    EXPECT_EQ(a.bytes_sent, 3 * 512 * 2 * 64 * 4) << n;  // (m - 1) x own rows
    EXPECT_EQ(a.messages_sent, 3);
    EXPECT_EQ(a.memory_by_tag.at("gathered"), 2048 * 2 * 64 * 4);
  }
}

TEST(Dilated, OneRankCommunicatesNothingAndCopiesNoKeys) {
  const ShardedProblem s{{.seq_len = 4096}, {.branches = {{512, 1}, {4096, 8}}}, {4096, 1}};
  const RankProgram program = dilated_attention(s).program(0);
  const RankAccount a = account(s, program, 0);
  EXPECT_EQ(a.bytes_sent, 0);
  EXPECT_FALSE(std::ranges::any_of(
      program.ops, [](const Op& op) { return std::holds_alternative<Pack>(op.what); }));
  EXPECT_EQ(a.memory_by_tag.count("gathered"), 0u);
}

TEST(Dilated, SegmentOverANonIntegerNumberOfRanks) {
  // N = 24, P = 4 (6 tokens a rank), w = 9: rank 1 (6..12) shares segment 0 with rank 0 and 1
  // with 2.
  const ShardedProblem s{{.seq_len = 24}, {.branches = {{9, 1}}}, {24, 4}};
  const RankProgram program = dilated_attention(s).program(1);
  std::vector<RankGroup> groups;
  for (const Op& op : program.ops)
    if (const auto* gather = std::get_if<AllGather>(&op.what)) groups.push_back(gather->group);
  EXPECT_EQ(groups, (std::vector<RankGroup>{{0, 1, 2}, {1, 1, 2}}));
}

}  // namespace
}  // namespace longnet
