// Tests which queries are sampled, and that the check can fail.
#include "execute/sample_check.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <set>

#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "core/random.h"
#include "execute/program_executor.h"
#include "kernels/attention_kernel.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

TEST(ChooseShardSamples, CoverTheShardsEndsBordersAndBranches) {
  ShardedProblem s{{.seq_len = 1 << 16, .num_heads = 3, .num_kv_heads = 3, .batch = 4},
                   {.branches = {{256, 1}, {4096, 16}, {1 << 16, 256}}},
                   SequenceLayout(1 << 16, 8)};
  const QuerySample given{2, 1, 3 * 8192 + 5};
  const auto samples = choose_shard_samples(s, 3, 1, 2, {given, {0, 0, 3 * 8192}, {2, 0, 0}}, 60);
  EXPECT_EQ(samples.size(), 60u);
  const auto has = [&](const QuerySample& q) {
    return std::find(samples.begin(), samples.end(), q) != samples.end();
  };
  EXPECT_TRUE(has(given));
  EXPECT_TRUE(has({1, 0, 3 * 8192}));
  EXPECT_TRUE(has({2, 2, 4 * 8192 - 1}));
  int64_t borders = 0, selected[3] = {};
  for (const auto& [batch, head, token, spread, extra] : samples) {
    EXPECT_EQ(extra, QuerySample(batch, head, token) != given);
    EXPECT_TRUE(batch == 1 || batch == 2);
    EXPECT_TRUE(token >= 3 * 8192 && token < 4 * 8192) << token;
    borders += token % 256 == 0 || token % 256 == 255;
    for (int b = 0; b < 3; ++b)
      selected[b] += token % s.pattern.branches[size_t(b)].dilation_rate == head;
  }
  EXPECT_GE(borders, 10);
  EXPECT_GE(selected[2], 4);  // chance would give none
  EXPECT_EQ(samples, choose_shard_samples(s, 3, 1, 2, {given, {0, 0, 3 * 8192}, {2, 0, 0}}, 60));
  // Small shards give all that they have.
  ShardedProblem small{{.seq_len = 6, .num_heads = 2, .num_kv_heads = 2},
                       {.branches = {{6, 1}}},
                       SequenceLayout(6, 3)};
  EXPECT_EQ(choose_shard_samples(small, 1, 0, 1, {}, 100).size(), 4u);
}

TEST(ChooseSamples, HasTheEndsTheBordersAndSelectedRows) {
  const ShardedProblem s{{.seq_len = 100000, .num_heads = 3, .num_kv_heads = 3},
                         {.branches = {{2048, 1}, {100000, 48}}},
                         {100000, 4}};
  const auto samples = choose_samples(s, 64);
  EXPECT_EQ(samples.size(), 64u);
  std::set<int64_t> tokens, heads;
  int selected = 0;
  for (const auto& q : samples) {
    tokens.insert(q.token), heads.insert(q.head);
    selected += q.token % 48 == q.head;
  }
  for (int64_t t :
       {int64_t{0}, int64_t{99999}, int64_t{25000}, int64_t{24999}, int64_t{49152}, int64_t{49151}})
    EXPECT_TRUE(tokens.contains(t)) << t;
  EXPECT_EQ(heads.size(), 3u);
  EXPECT_GE(selected, 16);
  EXPECT_EQ(
      choose_samples(
          {{.seq_len = 22, .num_heads = 4, .num_kv_heads = 4}, dense_pattern(22), {22, 1}}, 1000)
          .size(),
      88u);  // few queries: all of them
}

TEST(ChooseSamples, TheSpreadOnesDependOnNoRanks) {
  const auto spread_of = [](int ranks, LayoutKind layout, int64_t count) {
    const ShardedProblem s{
        {.seq_len = 100000, .num_heads = 3, .num_kv_heads = 3, .batch = 2, .causal = true},
        dense_pattern(100000),
        {100000, ranks, layout}};
    std::vector<QuerySample> out;
    for (const QuerySample& q : choose_samples(s, count))
      if (q.spread) out.push_back(q);
    return out;
  };
  const auto one = spread_of(1, LayoutKind::kContiguous, 64);
  EXPECT_EQ(one.size(), 32u);
  for (const int ranks : {2, 3, 7, 8})
    for (const LayoutKind layout :
         {LayoutKind::kContiguous, LayoutKind::kZigzag, LayoutKind::kStriped})
      EXPECT_EQ(spread_of(ranks, layout, 64), one) << ranks;
  EXPECT_EQ(spread_of(1, LayoutKind::kContiguous, 32).size(), 16u);
}

// Marks the queries that see keys of a branch (1), and of other tokens than their own (2), by the
// reference of one branch alone.
class Seen {
 public:
  using Strata = std::map<std::array<int64_t, 3>, int>;  // {0, branch, head}, {1, rank, head}, ...
  explicit Seen(const ShardedProblem& s) : s_(s) {
    std::vector<QuerySample> all;
    for (int64_t h = 0; h < s.problem.num_heads; ++h)
      for (int64_t t = 0; t < s.problem.seq_len; ++t) all.push_back({0, h, t});
    const auto own = defined_rows(s.problem, {.branches = {{1, 1}}}, all);
    for (const DilatedBranch& b : s.pattern.branches) {
      DilatedPattern alone = s.pattern;
      alone.branches = {b};
      const auto rows = defined_rows(s.problem, alone, all);
      seen_.emplace_back();
      for (size_t i = 0; i < all.size(); ++i)
        seen_.back().push_back(rows[i].lse == -INFINITY ? 0 : rows[i].lse == own[i].lse ? 1 : 2);
    }
  }
  // Returns what `queries` see in each stratum; null: the queries of all tokens.
  Strata strata(const std::vector<QuerySample>* queries) const {
    Strata out;
    const int64_t n = s_.problem.seq_len;
    for (int64_t h = 0; h < s_.problem.num_heads; ++h)
      for (int64_t t = 0; t < n; ++t) {
        if (queries && std::ranges::none_of(*queries, [&](const QuerySample& q) {
              return q.head == h && q.token == t;
            }))
          continue;
        Rank rank = 0;
        while (s_.layout.shard(rank).index_of(t) < 0) ++rank;
        out[{1, rank, h}] = 2;
        for (size_t b = 0; b < seen_.size(); ++b)
          if (const int seen = seen_[b][size_t(h * n + t)]; seen > 0)
            for (int* of : {&out[{0, int64_t(b), h}], &out[{2, rank, int64_t(b)}]})
              *of = std::max(*of, seen);
      }
    return out;
  }

 private:
  ShardedProblem s_;
  std::vector<std::vector<int>> seen_;
};

TEST(Stratify, EveryStratumThatExistsIsCovered) {
  const auto expect_covered = [](const ShardedProblem& s) {
    const Seen seen(s);
    const SampleChoice all = stratify(s, choose_samples(s, 8), 1 << 20);
    SCOPED_TRACE(testing::Message()
                 << s.problem.num_heads << " heads, " << s.layout.world_size() << " ranks, "
                 << to_string(s.layout.kind()) << ", causal " << s.problem.causal << ", branch of "
                 << s.pattern.branches[0].segment_length << ", parts " << s.pattern.phase_parts);
    const Seen::Strata exist = seen.strata(nullptr);
    EXPECT_EQ(seen.strata(&all.queries), exist);
    EXPECT_EQ(all.strata, int64_t(exist.size()));
    EXPECT_EQ(all.strata_left_out, 0);
    const SampleChoice some = stratify(s, choose_samples(s, 8), 11);
    EXPECT_LE(some.queries.size(), 11u);
    EXPECT_EQ(some.strata, all.strata);
    const Seen::Strata covered = seen.strata(&some.queries);
    EXPECT_EQ(
        some.strata - some.strata_left_out, std::ranges::count_if(exist, [&](const auto& stratum) {
          return covered.contains(stratum.first) && covered.at(stratum.first) == stratum.second;
        }));
  };
  const std::vector<std::vector<DilatedBranch>> dilated = {
      {{16, 1}, {48, 5}, {157, 7}},
      {{157, 64}, {40, 3}},        // shards without a row of a head
      {{8, 16}, {80, 64}, {5, 2}}  // heads without a row
  };
  for (const int64_t heads : {1, 3, 12})
    for (const int ranks : {1, 2, 5, 8, 13})
      for (const bool causal : {false, true}) {
        const AttentionProblem p{
            .seq_len = 157, .num_heads = heads, .num_kv_heads = 1, .head_dim = 8, .causal = causal};
        for (const auto& branches : dilated)
          for (const OffsetRule offset : {OffsetRule::kPaper, OffsetRule::kBlock})
            for (const int parts : {1, ranks})
              expect_covered({p,
                              {.branches = branches, .offset = offset, .phase_parts = parts},
                              {p.seq_len, ranks}});
        for (const LayoutKind layout :
             {LayoutKind::kContiguous, LayoutKind::kZigzag, LayoutKind::kStriped}) {
          expect_covered({p, dense_pattern(p.seq_len), {p.seq_len, ranks, layout}});
          expect_covered({p, sparse_pattern(24, 5), {p.seq_len, ranks, layout}});
          expect_covered({p, {.branches = {{48, 5}}}, {p.seq_len, ranks, layout}});
        }
      }
}

TEST(Stratify, RanksThatDoNotRunHaveNoStrata) {
  const ShardedProblem s{{.seq_len = 4096, .num_heads = 3, .num_kv_heads = 3},
                         {.branches = {{256, 1}, {4096, 16}}},
                         {4096, 8}};
  const SampleChoice choice = stratify(s, choose_samples(s, 64), 1 << 20, {2, 5});
  EXPECT_EQ(choice.strata, 2 * 3 + 2 * 3 + 2 * 2);
  for (const QuerySample& q : choice.queries)
    EXPECT_TRUE(q.token / 512 == 2 || q.token / 512 == 5) << q.token;
}

TEST(Stratify, ATokenThatNoRankHasIsRefused) {
  const ShardedProblem s{{.seq_len = 64, .num_heads = 2, .num_kv_heads = 2},
                         {.branches = {{16, 1}}},
                         SequenceLayout(60, 4)};
  EXPECT_THROW(stratify(s, choose_samples(s, 8), 1 << 20), Error);
}

// The keys of one (branch, head) pair are missing everywhere: with 64 queries chosen without regard
// to strata, some such pairs passed.
TEST(Stratify, APairWithoutKeysIsFound) {
  const auto expect_found = [](const DilatedPattern& pattern, bool causal, int ranks) {
    const AttentionProblem p{
        .seq_len = 2048, .num_heads = 12, .num_kv_heads = 12, .head_dim = 8, .causal = causal};
    const ShardedProblem s{p, pattern, {p.seq_len, ranks}};
    const auto right = expected_rows(p, pattern, stratify(s, choose_samples(s, 64), 2048).queries,
                                     /*rounded=*/false);
    for (size_t b = 0; b < pattern.branches.size(); ++b) {
      DilatedPattern without = pattern;
      without.branches.erase(without.branches.begin() + int64_t(b));
      const auto wrong = defined_rows(p, without, right.samples);
      for (int64_t h = 0; h < p.num_heads; ++h) {
        std::vector<std::vector<float>> rows;
        for (size_t i = 0; i < wrong.size(); ++i) {
          const auto& o = right.samples[i].head == h ? wrong[i].o : right.rows[i].o;
          rows.emplace_back(o.begin(), o.end());
        }
        const auto errors = compare_rows(right, [&](size_t i) { return OutputRow{rows[i], {}}; });
        EXPECT_FALSE(judge(errors, 0, s).pass) << "branch " << b << ", head " << h;
      }
    }
  };
  // lm-32k, a sixteenth as long; figure 5's segments on 8 ranks
  expect_found({.branches = {{128, 1}, {256, 2}, {512, 4}, {1024, 6}, {2048, 12}}}, true, 2);
  expect_found({.branches = {{128, 1}, {256, 2}, {2048, 16}}}, false, 8);
}

TEST(CompareRows, ABadRunStaysTheWorst) {
  SampleErrors worst{.queries = 2, .difference = 1, .worst_row = 0.5};
  worst.keep_worst({.queries = 2, .difference = NAN, .worst_row = INFINITY});
  worst.keep_worst({.queries = 1, .difference = 3, .norm = 4, .worst_lse = 2});
  EXPECT_EQ(worst.queries, 1);  // the smaller of both runs
  EXPECT_TRUE(std::isnan(worst.difference));
  EXPECT_EQ(worst.worst_row, INFINITY);
  EXPECT_EQ(worst.worst_lse, 2);
}

TEST(CompareRows, TheSpreadErrorIsThatOfSpreadRows) {
  const AttentionProblem problem{.seq_len = 8, .num_heads = 1, .num_kv_heads = 1, .head_dim = 8};
  const ShardedProblem s{problem, dense_pattern(8), {8, 1}};
  const std::vector<QuerySample> samples = {{0, 0, 1, true}, {0, 0, 5, false}};
  std::vector<std::vector<float>> rows;
  for (const QuerySample& q : samples) {
    const auto exact = defined_rows(problem, s.pattern, {q}).front().o;
    rows.emplace_back(exact.begin(), exact.end());
  }
  const auto outcome = [&] {
    return judge(compare_rows(expected_rows(problem, s.pattern, samples, false),
                              [&](size_t i) {
                                return OutputRow{rows[i], {}};
                              }),
                 0, s);
  };
  EXPECT_LT(outcome().spread_rel_l2_error, 1e-7);
  rows[1][0] += 1;  // wrong, but not spread
  EXPECT_LT(outcome().spread_rel_l2_error, 1e-7);
  EXPECT_GT(outcome().rel_l2_error, 0.1);
  rows[0][0] += 1;
  EXPECT_GT(outcome().spread_rel_l2_error, 0.1);
}

TEST(CheckSamples, EachLimitFailsAlone) {
  const ShardedProblem s{{.seq_len = 64}, dense_pattern(64), {64, 1}};
  const SampleErrors right{.queries = 64, .difference = 1e-14, .norm = 64, .worst_row = 1e-6};
  const auto passes = [&](auto change, int64_t nan_values = 0) {
    SampleErrors e = right;
    change(e);
    return judge(e, nan_values, s).pass;
  };
  EXPECT_TRUE(passes([](SampleErrors&) {}));
  EXPECT_FALSE(passes([](SampleErrors&) {}, 1));
  EXPECT_FALSE(passes([](SampleErrors& e) { e.difference = 1e-9; }));
  EXPECT_FALSE(passes([](SampleErrors& e) { e.worst_row = 2e-5; }));
  EXPECT_FALSE(passes([](SampleErrors& e) { e.worst_lse = 2e-5; }));
}

TEST(CheckSamples, FailsOnAWrongOutput) {
  const ShardedProblem s{{.seq_len = 64, .num_heads = 2, .num_kv_heads = 2, .head_dim = 16},
                         dense_pattern(64),
                         {64, 1}};
  const Schedule schedule = ring_attention(s);
  const auto kernel = make_kernel("cpu");
  run_on_threads(1, [&](Communicator& comm) {
    MemoryLedger ledger;
    ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
    executor.fill_inputs();
    const auto samples = choose_samples(s, 16);
    const CheckOutcome unwritten = check_samples(executor, samples, comm);
    EXPECT_FALSE(unwritten.pass);
    EXPECT_EQ(unwritten.nan_values, 64 * 2 * 17);
    executor.run();
    EXPECT_TRUE(check_samples(executor, samples, comm).pass);
    EXPECT_FALSE(check_samples(executor, samples, comm, 1e-12).pass);  // fp32 is not double
    auto* const row = const_cast<float*>(output_row(executor.bound(), 0, 0, 0).data());
    row[3] += 1e-4f;
    const CheckOutcome changed = check_samples(executor, samples, comm);
    EXPECT_FALSE(changed.pass);
    EXPECT_GT(changed.max_rel_error, 1e-5);
  });
}

}  // namespace
}  // namespace longnet
