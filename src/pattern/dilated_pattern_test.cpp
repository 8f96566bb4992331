#include "pattern/dilated_pattern.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/check.h"

namespace longnet {
namespace {

// The definition, token by token: (t - origin) mod r == offset.
std::vector<int64_t> selected_by_definition(const DilatedPattern& p, int branch, int64_t n,
                                            int64_t offset, int64_t segment) {
  const auto [w, r, summary] = p.branches[size_t(branch)];
  EXPECT_EQ(summary, 0);
  std::vector<int64_t> out;
  int64_t origin = segment * w;
  for (int64_t t = segment * w; t < std::min((segment + 1) * w, n); ++t) {
    for (int64_t part = 0; p.phase_parts > 1 && part < p.phase_parts; ++part)
      if (part_begin(n, p.phase_parts, part) == t) origin = t;
    if ((t - origin) % r == offset) out.push_back(t);
  }
  return out;
}

void expect_definition(int64_t n, int64_t w, int64_t r, int parts) {
  SCOPED_TRACE(concat("n=", n, " w=", w, " r=", r, " parts=", parts));
  const DilatedPattern pattern{.branches = {{w, r}}, .phase_parts = parts};
  const BranchRows rows(pattern, 0, {.seq_len = n});
  for (int64_t offset = 0; offset < std::min<int64_t>(r, 7); ++offset) {
    std::vector<int64_t> expected, got;
    const int64_t length = std::min(w, n);
    for (int64_t s = 0; s * length < n; ++s)
      for (int64_t t : selected_by_definition({.branches = {{length, r}}, .phase_parts = parts}, 0,
                                              n, offset, s))
        expected.push_back(t);
    rows.for_each_run(offset, {0, n}, [&](int64_t segment, const TokenRange& run) {
      for (int64_t i = 0; i < run.count; ++i) {
        got.push_back(run[i]);
        EXPECT_EQ(rows.segment_of(run[i]), segment);
      }
    });
    EXPECT_EQ(got, expected);
    // Counting any sub-interval agrees with filtering the whole list.
    for (int64_t lo = 0; lo < n; lo += 1 + n / 7)
      for (int64_t hi = lo; hi <= n; hi += 1 + n / 5) {
        const auto inside = std::count_if(expected.begin(), expected.end(),
                                          [&](int64_t t) { return t >= lo && t < hi; });
        EXPECT_EQ(rows.count(offset, {lo, hi}), inside) << lo << ' ' << hi;
      }
  }
}

TEST(RowsOfShapes, AreTheDefinition) {
  for (const int n : {1, 2, 17, 64, 101})
    for (const int w : {1, 4, 10, 33, 200})
      for (const int r : {1, 2, 3, 6, 40})
        for (const int parts : {1, 3, 8}) expect_definition(n, w, r, parts);
}

TEST(DilatedPattern, SegmentNotAMultipleOfTheRate) {  // trap: 16384 / 6, the LM preset
  const BranchRows rows({.branches = {{16384, 6}}}, 0, {.seq_len = 32768});
  EXPECT_EQ(rows.count(0, rows.segment(0)), 2731);
  EXPECT_EQ(rows.count(4, rows.segment(0)), 2730);
  EXPECT_EQ(rows.select(4, rows.segment(1)).first, 16388);   // restarts with the segment
  EXPECT_LT(rows.select(5, rows.segment(0)).last(), 16384);  // no row leaves its segment
}

TEST(DilatedPattern, OffsetsOfHeads) {
  EXPECT_EQ(head_offset(OffsetRule::kPaper, 13, 16, 4), 1);
  EXPECT_EQ(head_offset(OffsetRule::kBlock, 13, 16, 4), 3);
  EXPECT_EQ(head_offset(OffsetRule::kBlock, 11, 12, 8), 5);  // ceil(12/8) = 2 heads per group
  EXPECT_EQ(head_offset(OffsetRule::kNone, 13, 16, 4), 0);
}

TEST(DilatedPattern, StreamsOfGroupedQueries) {
  const AttentionProblem p{.seq_len = 64, .num_heads = 6, .num_kv_heads = 2};
  const DilatedPattern pattern{.branches = {{64, 1}, {64, 2}}};
  EXPECT_EQ(kv_streams(p, pattern, 0, 0, 6).streams.size(), 2u);
  const KvStreams two = kv_streams(p, pattern, 1, 0, 6);
  EXPECT_EQ(two.streams, (std::vector<KvStream>{{0, 0}, {0, 1}, {1, 1}, {1, 0}}));
  EXPECT_EQ(two.of_head, (std::vector<int>{0, 1, 0, 2, 3, 2}));
}

TEST(DilatedPattern, CoverageIsTheShareOfRows) {
  const AttentionProblem p{.seq_len = 100, .num_heads = 3, .num_kv_heads = 3};
  EXPECT_DOUBLE_EQ(coverage(p, {.branches = {{10, 1}}}, 0), 1.0);
  EXPECT_DOUBLE_EQ(coverage(p, {.branches = {{10, 5}}}, 0), 0.2);
}

TEST(DilatedPattern, RefusesNonsense) {
  const AttentionProblem p{.seq_len = 100};
  EXPECT_THROW(check_pattern({}, p), UsageError);
  EXPECT_THROW(check_pattern({.branches = {{0, 1}}}, p), UsageError);
  EXPECT_THROW(check_pattern({.branches = {{8, 0}}}, p), UsageError);
}

TEST(PairCount, ClosedFormIsTheCount) {
  for (int64_t q0 : {0, 3, 50})
    for (int64_t qs : {1, 2, 7})
      for (int64_t qn : {0, 1, 13})
        for (int64_t k0 : {0, 1, 20, 90})
          for (int64_t ks : {1, 3, 5})
            for (int64_t kn : {0, 1, 2, 30}) {
              const TokenRange q{q0, qs, qn}, k{k0, ks, kn};
              int64_t all = 0, causal = 0;
              for (int64_t i = 0; i < qn; ++i)
                for (int64_t j = 0; j < kn; ++j) ++all, causal += k[j] <= q[i];
              EXPECT_EQ(count_pairs(q, k, false), all);
              EXPECT_EQ(count_pairs(q, k, true), causal)
                  << q0 << ' ' << qs << ' ' << qn << ' ' << k0 << ' ' << ks << ' ' << kn;
            }
}

// N (N + 1) / 2 with N = 2^30, without overflow.
TEST(PairCount, OneBillionTokensOfDenseAttention) {
  const TokenRange all{0, 1, int64_t{1} << 30};
  EXPECT_EQ(count_pairs(all, all, true), (int64_t{1} << 59) + (int64_t{1} << 29));
}

TEST(PairCount, BranchPairsSumOverSegments) {
  const AttentionProblem p{.seq_len = 101, .num_heads = 3, .num_kv_heads = 3, .causal = true};
  for (int64_t parts : {1, 4}) {
    const DilatedPattern pattern{.branches = {{20, 3}}, .phase_parts = parts};
    const BranchRows rows(pattern, 0, p);
    int64_t expected = 0;
    for (int64_t h = 0; h < 3; ++h)
      for (int64_t s = 0; s < rows.num_segments(); ++s) {
        std::vector<TokenRange> runs;
        rows.for_each_run(h, rows.segment(s),
                          [&](int64_t, const TokenRange& run) { runs.push_back(run); });
        for (const auto& q : runs)
          for (const auto& k : runs) expected += count_pairs(q, k, true);
      }
    EXPECT_EQ(branch_pairs(p, pattern, 0), expected);
  }
}

TEST(PairCount, PaperFormula) {  // 2 N w d / r^2 with N = 1024, w = 256, r = 4, d = 64
  const AttentionProblem p{.seq_len = 1024};
  EXPECT_DOUBLE_EQ(paper_macs(p, {.branches = {{256, 4}}}), 2.0 * 1024 * 256 * 64 / 16);
}

TEST(DilatedPattern, ItsTextNamesSegmentsAndRates) {
  EXPECT_EQ(branches_text({.branches = {{2048, 1}, {8192, 4}}}), "2048/1,8192/4");
  EXPECT_EQ(branches_text(sparse_pattern(128, 8)), "128/1,128/1+8");
}

}  // namespace
}  // namespace longnet
