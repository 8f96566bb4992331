#include "pattern/dependency_depth.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "core/check.h"
#include "pattern/token_classes.h"

namespace longnet {
namespace {

constexpr int64_t kNever = DependencyDepth::kNever;
constexpr int64_t kK = 1024;

AttentionProblem problem_of(int64_t n, int64_t heads, bool causal = false) {
  return {.seq_len = n, .num_heads = heads, .num_kv_heads = heads, .causal = causal};
}

// Row q of the matrix: which keys q sees in one layer, by the definition, token by token.
std::vector<std::vector<bool>> sees(const AttentionProblem& p, const DilatedPattern& pattern) {
  const int64_t n = p.seq_len;
  const std::vector<bool> nothing(size_t(n), false);
  std::vector<std::vector<bool>> out(size_t(n), nothing);
  std::vector<int64_t> part_origin(size_t(n), 0);
  const int64_t parts = std::min(pattern.phase_parts, n);
  for (int64_t part = 0; part < parts; ++part)
    for (int64_t t = part_begin(n, parts, part); t < part_begin(n, parts, part + 1); ++t)
      part_origin[size_t(t)] = part_begin(n, parts, part);
  for (const DilatedBranch& b : pattern.branches) {
    const bool summary = b.summary_tokens > 0;
    const int64_t w = summary ? b.segment_length : std::min(b.segment_length, n);
    const auto selected = [&](int64_t t, int64_t offset) {
      const int64_t in_segment = t % w;
      if (summary)
        return in_segment >= w - b.summary_tokens * (offset + 1) &&
               in_segment < w - b.summary_tokens * offset;
      return (t - std::max(t - in_segment, part_origin[size_t(t)])) % b.dilation_rate == offset;
    };
    for (int64_t head = 0; head < p.num_heads; ++head) {
      const int64_t o = head_offset(pattern.offset, head, p.num_heads, num_offsets(b));
      for (int64_t q = 0; q < n; ++q)
        for (int64_t k = 0; k < (p.causal ? q + 1 : n); ++k)
          if (summary ? q / w != k / w && selected(k, o)
                      : q / w == k / w && selected(q, o) && selected(k, o))
            out[size_t(q)][size_t(k)] = true;
    }
  }
  for (int64_t t = 0; t < n; ++t) out[size_t(t)][size_t(t)] = true;  // the residual
  return out;
}

// Powers of the boolean matrix until nothing changes.
DependencyDepth by_matrix_powers(const AttentionProblem& p, const DilatedPattern& pattern) {
  const auto one = sees(p, pattern);
  const auto n = size_t(p.seq_len);
  std::vector<std::vector<bool>> knows(n, std::vector<bool>(n));
  for (size_t t = 0; t < n; ++t) knows[t][t] = true;
  DependencyDepth out{.layers = 0, .reachable_layers = 0};
  for (int64_t layer = 1;; ++layer) {
    auto next = knows;
    for (size_t q = 0; q < n; ++q)
      for (size_t k = 0; k < n; ++k)
        if (one[q][k])
          for (size_t s = 0; s < n; ++s)
            if (knows[k][s]) next[q][s] = true;
    if (next == knows) break;
    knows = next;
    out.reachable_layers = layer;
  }
  out.layers = out.reachable_layers;
  for (size_t q = 0; q < n; ++q)
    for (size_t s = 0; s < (p.causal ? q : n); ++s)
      if (!knows[q][s]) out.layers = kNever;
  return out;
}

void expect_as_by_matrix(const AttentionProblem& p, const DilatedPattern& pattern) {
  std::string name = concat("N=", p.seq_len, " H=", p.num_heads, " causal=", p.causal,
                            " offset=", to_string(pattern.offset), " parts=", pattern.phase_parts);
  for (const DilatedBranch& b : pattern.branches)
    name += concat(" {", b.segment_length, ",", b.dilation_rate, ",", b.summary_tokens, "}");
  const DependencyDepth expected = by_matrix_powers(p, pattern);
  const DependencyDepth got = dependency_depth(p, pattern);
  EXPECT_EQ(got.layers, expected.layers) << name;
  if (p.causal) return;
  const int64_t reachable = std::max<int64_t>(p.seq_len > 1, expected.reachable_layers);
  EXPECT_EQ(got.reachable_layers, reachable) << name;
}

TEST(DependencyDepth, TheExampleOfTheHeader) {
  const DilatedPattern pattern{.branches = {{4, 1}, {8, 4}}};
  EXPECT_EQ(dependency_depth(problem_of(8, 1), pattern).layers, 3);
  EXPECT_EQ(dependency_depth(problem_of(8, 1, true), pattern).layers, kNever);
  EXPECT_EQ(dependency_depth(problem_of(8, 4), pattern).layers, 2);  // every residue has a head
}

TEST(DependencyDepth, IsTheDiameterOfOddShapes) {
  const std::vector<std::vector<DilatedBranch>> shapes = {{{1, 1}},
                                                          {{7, 1}},
                                                          {{100, 1}},
                                                          {{5, 2}},
                                                          {{40, 3}},
                                                          {{4, 1}, {40, 4}},
                                                          {{4, 1}, {12, 2}},
                                                          {{5, 1}, {13, 3}, {40, 7}},
                                                          {{6, 1}, {7, 1}},
                                                          {{4, 1}, {16, 30}},
                                                          {{3, 2}, {40, 5}},
                                                          {{4, 1}, {8, 2}, {16, 4}, {40, 8}},
                                                          {{8, 2}, {12, 3}},
                                                          {{2, 1}, {3, 1}},
                                                          {{4, 1}, {10, 2}, {25, 4}}};
  for (const auto& branches : shapes)
    for (const int64_t n : {1, 2, 9, 31, 40})
      for (const int64_t heads : {1, 3, 5})
        for (const OffsetRule rule : {OffsetRule::kPaper, OffsetRule::kBlock, OffsetRule::kNone})
          for (const bool causal : {false, true})
            expect_as_by_matrix(problem_of(n, heads, causal),
                                {.branches = branches, .offset = rule});
}

TEST(DependencyDepth, IsTheDiameterOfRandomPatterns) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t lo, int64_t hi) {
    return std::uniform_int_distribution<int64_t>(lo, hi)(random);
  };
  for (int turn = 0; turn < 600; ++turn) {
    DilatedPattern pattern{.branches = {},
                           .offset = OffsetRule(pick(0, 2)),
                           .phase_parts = pick(0, 3) == 0 ? pick(2, 9) : 1};
    const bool nested = pick(0, 1) == 1;  // many interchangeable segments on several levels
    int64_t w = pick(1, 6);
    for (int64_t b = pick(1, 5); b > 0; --b) {
      pattern.branches.push_back({w, pick(0, 2) == 0 ? 1 : pick(1, 12)});
      w = nested ? w * pick(2, 3) : pick(1, 60);
    }
    expect_as_by_matrix(problem_of(pick(1, 64), pick(1, 6), pick(0, 3) == 0), pattern);
  }
}

TEST(DependencyDepth, OverlappingWholeSegmentsReachForwardOneByOne) {
  // Segments of 4 and of 6 tokens: never cut at the same place but at multiples of 12.
  expect_as_by_matrix(problem_of(12, 2, true), {.branches = {{4, 1}, {6, 1}}});
  expect_as_by_matrix(problem_of(24, 2, true), {.branches = {{4, 1}, {6, 1}}});
  expect_as_by_matrix(problem_of(60, 2, true), {.branches = {{7, 1}, {9, 1}}});
  expect_as_by_matrix(problem_of(60, 3, true), {.branches = {{7, 1}, {9, 1}, {60, 5}}});
  expect_as_by_matrix(problem_of(60, 2, true), {.branches = {{7, 1}, {9, 1}, {25, 3}, {41, 4}}});
  expect_as_by_matrix(problem_of(12, 2, true), {.branches = {{12, 5}}, .phase_parts = 12});
}

// Breadth-first from every token over (branch, segment, offset) groups, one source at a time.
int64_t by_searching_from_every_token(const AttentionProblem& p, const DilatedPattern& pattern) {
  std::map<std::array<int64_t, 3>, std::vector<int64_t>> members;
  for (size_t b = 0; b < pattern.branches.size(); ++b) {
    const auto [w, r, c] = pattern.branches[b];
    for (int64_t t = 0; t < p.seq_len; ++t)
      if (t % w % r < std::min(p.num_heads, r))
        members[{int64_t(b), t / w, t % w % r}].push_back(t);
  }
  std::vector<std::vector<const std::vector<int64_t>*>> groups_of(size_t(p.seq_len));
  for (const auto& [key, tokens] : members)
    for (const int64_t t : tokens) groups_of[size_t(t)].push_back(&tokens);
  int64_t depth = 0;
  for (int64_t source = 0; source < p.seq_len; ++source) {
    std::vector<int64_t> layer(size_t(p.seq_len), -1), queue{source};
    std::set<const std::vector<int64_t>*> passed;
    layer[size_t(source)] = 0;
    for (size_t i = 0; i < queue.size(); ++i)
      for (const auto* group : groups_of[size_t(queue[i])])
        if (passed.insert(group).second)
          for (const int64_t t : *group)
            if (layer[size_t(t)] < 0) {
              layer[size_t(t)] = layer[size_t(queue[i])] + 1;
              queue.push_back(t);
            }
    if (int64_t(queue.size()) < p.seq_len) return kNever;
    depth = std::max(depth, layer[size_t(queue.back())]);
  }
  return depth;
}

TEST(DependencyDepth, IrregularSegmentsAndLongChains) {
  const std::vector<std::vector<DilatedBranch>> shapes = {{{7, 1}, {9, 1}},
                                                          {{7, 1}, {9, 1}, {101, 5}},
                                                          {{16, 1}, {101, 7}, {1500, 13}},
                                                          {{10, 1}, {37, 2}, {333, 3}},
                                                          {{5, 1}, {77, 3}, {770, 9}},
                                                          {{13, 1}, {200, 11}, {1501, 3}}};
  for (const auto& branches : shapes)
    for (const int64_t heads : {1, 3}) {
      const AttentionProblem p = problem_of(1501, heads);
      const DilatedPattern pattern{.branches = branches};
      double reported = 0;
      const auto listen = [&](double done) {
        EXPECT_GE(done, reported);
        reported = done;
      };
      EXPECT_EQ(dependency_depth(p, pattern, {.progress = listen}).layers,
                by_searching_from_every_token(p, pattern))
          << branches[0].segment_length << ' ' << branches[1].segment_length << ' ' << heads;
      EXPECT_EQ(reported, 1);
    }
}

TEST(DependencyDepth, AMillionTokensInShortOverlappingSegments) {
  // Every 63 tokens both cut: never. Four lengths that cut together only beyond: a long chain.
  EXPECT_EQ(dependency_depth(problem_of(kK * kK, 1), {.branches = {{7, 1}, {9, 1}}}).layers,
            kNever);
  const DilatedPattern chain{.branches = {{31, 1}, {37, 1}, {41, 1}, {43, 1}}};
  const DependencyDepth depth = dependency_depth(problem_of(kK * kK, 1), chain);
  EXPECT_GE(depth.layers, kK * kK / 43);
  EXPECT_EQ(depth.layers, depth.reachable_layers);
}

TEST(DependencyDepth, SparsePatternTakesTwoLayers) {
  for (const int64_t n : {1, 5, 8, 20, 21, 24, 31})
    for (const int64_t c : {1, 2, 3, 8})
      for (const int64_t heads : {1, 2, 9})
        for (const bool causal : {false, true})
          expect_as_by_matrix(problem_of(n, heads, causal), sparse_pattern(8, c));
  EXPECT_EQ(dependency_depth(problem_of(kK, 4, true), sparse_pattern(64, 8)).layers, 2);
}

TEST(TokenClasses, OffsetsAreThoseOfTheHeads) {
  for (const OffsetRule rule : {OffsetRule::kPaper, OffsetRule::kBlock, OffsetRule::kNone})
    for (int64_t heads = 1; heads < 20; ++heads)
      for (int64_t rate = 1; rate < 25; ++rate) {
        std::vector<bool> taken(size_t(rate), false);
        for (int64_t head = 0; head < heads; ++head)
          taken[size_t(head_offset(rule, head, heads, rate))] = true;
        for (int64_t o = 0; o < rate; ++o)
          EXPECT_EQ(taken[size_t(o)], o < count_offsets(rule, heads, rate));
      }
}

// The classes by definition, token by token.
std::vector<TokenClass> classes_by_token(const std::vector<Dilation>& branches,
                                         const std::vector<int64_t>& phases, int64_t length) {
  std::map<std::vector<int32_t>, TokenInterval> found;  // first and last token by offsets
  for (int64_t x = 0; x < length; ++x) {
    std::vector<int32_t> offsets;
    for (size_t b = 0; b < branches.size(); ++b) {
      const int64_t residue = (phases[b] + x) % branches[b].rate;
      const bool selected = phases[b] != kNoSelection && residue < branches[b].num_offsets;
      offsets.push_back(selected ? int32_t(residue) : kNoOffset);
    }
    found.try_emplace(offsets, TokenInterval{x, x}).first->second.end = x;
  }
  std::vector<TokenClass> out;
  for (const auto& [offsets, ends] : found) out.push_back({offsets, ends.begin, ends.end});
  return out;
}

TEST(TokenClasses, ResidueClassesAreTheTokens) {
  std::mt19937 random(3);
  const auto pick = [&](int64_t lo, int64_t hi) {
    return std::uniform_int_distribution<int64_t>(lo, hi)(random);
  };
  for (int turn = 0; turn < 3000; ++turn) {
    std::vector<Dilation> branches;
    std::vector<int64_t> phases;
    for (int64_t b = pick(1, 5); b > 0; --b) {
      const int64_t rate = pick(0, 4) == 0 ? pick(1, 1000) : pick(1, 12);
      branches.push_back({rate, pick(1, std::min<int64_t>(rate, 12))});
      phases.push_back(pick(0, 9) == 0 ? kNoSelection : pick(0, rate - 1));
    }
    const int64_t length = pick(1, 700);
    EXPECT_EQ(token_classes(branches, phases, length), classes_by_token(branches, phases, length));
  }
}

struct Preset {
  const char* name;
  int64_t heads;
  std::vector<DilatedBranch> branches;
};
DilatedPattern pattern_of(const Preset& preset) { return {.branches = preset.branches}; }

std::vector<Preset> presets() {
  return {{"figure 5", 12, {{2 * kK, 1}, {128 * kK, 64}, {kK * kK, 512}}},
          {"ranks = 7", 12, {{2 * kK, 1}, {149797, 73}, {kK * kK, 512}}},
          {"language model", 12, {{2048, 1}, {4096, 2}, {8192, 4}, {16384, 6}, {32768, 12}}},
          {"LongViT", 16, {{1024, 1}, {4096, 2}, {32768, 4}, {262144, 8}, {1048576, 16}}},
          {"GigaPath", 16, {{1024, 1}, {5792, 2}, {32768, 4}, {185363, 8}, {1048576, 16}}}};
}

TEST(DependencyDepth, TheDefaultEffortSufficesForThePresets) {
  for (const Preset& preset : presets())
    for (const int64_t n : {32 * kK, 100000 * int64_t{1}, kK * kK})
      EXPECT_NE(dependency_depth(problem_of(n, preset.heads), pattern_of(preset)).layers,
                DependencyDepth::kUnknown)
          << preset.name << ' ' << n;
}

TEST(DependencyDepth, OneBillionTokens) {
  const int64_t n = kK * kK * kK;
  const auto layers = [](int64_t seq_len, int64_t heads, std::vector<DilatedBranch> branches) {
    return dependency_depth(problem_of(seq_len, heads), {.branches = std::move(branches)}).layers;
  };
  // Constant w / r = 2048: past r = 2048 some segments of 2048 tokens hold no row of a long branch.
  EXPECT_EQ(layers(n, 12, {{2 * kK, 1}, {n / 8, 64 * kK}, {n, 512 * kK}}), kNever);
  // r = H: every token is in some group of the whole sequence, and shares its own segment with each
  // other residue.
  EXPECT_EQ(layers(n, 12, {{2 * kK, 1}, {n / 8, 12}, {n, 12}}), 2);
  // 500 ranks that cut segments anywhere: own segment, own rank, a segment with a row of the last
  // branch, everywhere, and back.
  EXPECT_EQ(layers(n / 16, 12, {{2 * kK, 1}, {134218, 66}, {n / 16, 32 * kK}}), 7);
  // The segments of the language model, repeated: nothing leaves 32K tokens.
  EXPECT_EQ(layers(n, 12, pattern_of(presets()[2]).branches), kNever);
}

TEST(DependencyDepth, CausalDilationStopsAtTheFirstBorder) {
  // Tokens 2047 and 2048 are neighbours: r = 1 ends between them, every r > 1 parts them.
  for (const Preset& preset : presets()) {
    const AttentionProblem p = problem_of(kK * kK, preset.heads, true);
    EXPECT_EQ(dependency_depth(p, pattern_of(preset)).layers, kNever) << preset.name;
  }
  EXPECT_EQ(dependency_depth(problem_of(2048, 12, true), pattern_of(presets()[2])).layers, 1);
}

TEST(DependencyDepth, ALimitOfEffortIsNotAnAnswer) {
  const DilatedPattern pattern{.branches = {{16, 1}, {24, 1}, {kK, 8}}};
  const AttentionProblem p = problem_of(kK, 1);
  EXPECT_EQ(dependency_depth(p, pattern).layers, 3);
  EXPECT_EQ(dependency_depth(p, pattern, {.max_intervals = 4}).layers, DependencyDepth::kUnknown);
  EXPECT_EQ(dependency_depth(p, pattern, {.max_steps = 4}).layers, DependencyDepth::kUnknown);
  EXPECT_THROW(dependency_depth(p, {}), UsageError);
}

TEST(DependencyDepth, PaperBound) {
  // log_2(32768 (2 - 1) / 2048) = 4
  EXPECT_DOUBLE_EQ(paper_depth_bound(pattern_of(presets()[2]), 32 * kK), 4);
  // a = sqrt(1M / 2K) = 22.6: 2 + log_a(a - 1) = 2.986
  EXPECT_NEAR(
      paper_depth_bound({.branches = {{2 * kK, 1}, {64 * kK, 32}, {kK * kK, 512}}}, kK * kK), 2.986,
      1e-3);
  EXPECT_DOUBLE_EQ(paper_depth_bound({.branches = {{8, 1}, {9, 2}}}, 9), 1);  // less than a layer
  EXPECT_TRUE(std::isnan(paper_depth_bound(dense_pattern(64), 64)));
  EXPECT_TRUE(std::isnan(paper_depth_bound({.branches = {{64, 1}, {128, 2}}}, 64)));
}

}  // namespace
}  // namespace longnet
