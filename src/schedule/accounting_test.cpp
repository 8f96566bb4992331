// The closed forms of accounting against a count of every run of rows.
#include "schedule/accounting.h"

#include <gtest/gtest.h>

#include <set>

#include "schedule/lower_collectives.h"
#include "schedule/registry.h"
#include "schedule/row_map.h"

namespace longnet {
namespace {

struct Shape {
  AttentionProblem problem;
  DilatedPattern pattern;
};

const std::vector<Shape>& shapes() {
  using P = AttentionProblem;
  static const std::vector<Shape> kShapes{
      {P{.seq_len = 96, .num_heads = 4, .num_kv_heads = 2, .batch = 2},
       {.branches = {{16, 1}, {32, 2}, {96, 4}}}},
      {P{.seq_len = 101, .num_heads = 3, .num_kv_heads = 3},
       {.branches = {{20, 1}, {50, 3}, {101, 7}, {8, 16}}}},
      {P{.seq_len = 7, .num_heads = 2, .num_kv_heads = 1}, {.branches = {{2, 1}, {7, 2}}}},
  };
  return kShapes;
}

DilatedPattern pattern_for(const AlgorithmInfo& a, const Shape& shape) {
  if (a.pattern == PatternKind::kDilated) return shape.pattern;
  if (a.pattern == PatternKind::kSparse) return sparse_pattern(11, 3);
  return dense_pattern(shape.problem.seq_len);
}

template <class Fn>
void for_each_case(Fn fn) {
  for (const AlgorithmInfo& algorithm : algorithms())
    for (Shape shape : shapes())
      for (const int ranks : {1, 2, 3, 4, 8, 20})
        for (const bool causal : {false, true})
          for (const LayoutKind layout :
               {LayoutKind::kContiguous, LayoutKind::kZigzag, LayoutKind::kStriped}) {
            shape.problem.causal = causal;
            const ShardedProblem s{shape.problem,
                                   pattern_for(algorithm, shape),
                                   {shape.problem.seq_len, ranks, layout}};
            if (algorithm.why_no_program(s).empty()) fn(algorithm, s);
          }
}

// Keys of the op's view that some query sees, one by one.
double keys_seen(const ShardedProblem& s, const Attend& op) {
  const RowMap queries(s, TensorKind::kQuery, op.q.rows),
      keys(s, TensorKind::kKeyValue, op.kv.rows);
  const BranchRows rows(s.pattern, op.branch, s.problem);
  int64_t count = 0;
  for (int64_t h = op.heads.first; h < op.heads.end(); ++h) {
    std::set<int64_t> seen;
    for (const auto& q_piece : queries.pieces())
      queries.for_each_run(q_piece, op.branch, h, op.queries, [&](const TokenRange& q, int64_t i) {
        for (const TokenInterval& scope : rows.key_scope(i))
          for (const auto& piece : keys.pieces())
            keys.for_each_run(piece, op.branch, h, scope, [&](const TokenRange& k, int64_t) {
              for (int64_t j = 0; j < k.count; ++j)
                if (!s.problem.causal || k[j] <= q.last()) seen.insert(k[j]);
            });
      });
    count += int64_t(seen.size());
  }
  return double(count * s.problem.batch);
}

TEST(Accounting, ClosedFormsAreTheCountRunByRun) {
  int64_t attends = 0, exact = 0;
  for_each_case([&](const AlgorithmInfo& algorithm, const ShardedProblem& s) {
    const Schedule schedule = lower_collectives(algorithm.make(s), {});
    for (Rank p = 0; p < s.layout.world_size(); ++p)
      for (const Op& op : schedule.program(p).ops)
        if (const auto* attend = std::get_if<Attend>(&op.what)) {
          ++attends;
          ASSERT_EQ(attended_pairs(schedule.sharded, *attend),
                    attended_pairs_by_runs(schedule.sharded, *attend))
              << algorithm.name << " N=" << s.problem.seq_len << " P=" << s.layout.world_size()
              << " rank " << p << " branch " << attend->branch << " causal " << s.problem.causal;
          const RowMap queries(schedule.sharded, TensorKind::kQuery, attend->q.rows);
          int64_t rows = 0;
          for (const auto& piece : queries.pieces())
            for (int64_t h = attend->heads.first; h < attend->heads.first + attend->heads.count;
                 ++h)
              queries.for_each_run(piece, attend->branch, h, attend->queries,
                                   [&](const TokenRange& run, int64_t) { rows += run.count; });
          ASSERT_EQ(attended_queries(schedule.sharded, *attend), double(rows * s.problem.batch))
              << algorithm.name;
          const double keys = attended_keys(schedule.sharded, *attend),
                       seen = keys_seen(schedule.sharded, *attend);
          ASSERT_GE(keys, seen) << algorithm.name;
          // Shards that end inside a segment may have no query of some head there; causal queries
          // see no summary of their own segment.
          if (s.layout.kind() == LayoutKind::kContiguous && algorithm.name != "sparse" &&
              s.problem.seq_len % (8 * s.layout.world_size()) == 0) {
            ++exact;
            ASSERT_EQ(keys, seen) << algorithm.name << " P=" << s.layout.world_size() << " rank "
                                  << p << " branch " << attend->branch;
          }
        }
  });
  EXPECT_GT(attends, 10000);
  EXPECT_GT(exact, 300);
}

// Pairs of a mask may take long to count: what has a program's account does not make it again.
TEST(Accounting, CountsAreThoseOfTheAccountAtHand) {
  const ShardedProblem s{shapes()[0].problem, shapes()[0].pattern, {96, 2}};
  const RankProgram program =
      make_schedule(find_algorithm("dilated"), s, Pass::kForward).program(0);
  RankAccount a = account(s, program, 0);
  EXPECT_EQ(program_counts(s, program, 0, a), program_counts(s, program, 0));
  a.bytes_sent += 1;
  EXPECT_EQ(program_counts(s, program, 0, a).bytes_sent, a.bytes_sent);
}

TEST(Accounting, BytesOfAViewAreThoseOfItsMap) {
  for_each_case([&](const AlgorithmInfo& algorithm, const ShardedProblem& s) {
    const Schedule schedule = algorithm.make(s);
    const RankProgram program = schedule.program(0);
    const auto expect_equal = [&](const SlotView& view) {
      const TensorKind kind = program.slots.at(size_t(view.slot)).kind;
      ASSERT_EQ(view_bytes(schedule.sharded, kind, view),
                RowMap(schedule.sharded, kind, view.rows).num_bytes(view))
          << algorithm.name;
    };
    for (const Op& op : program.ops) {
      if (const auto* pack = std::get_if<Pack>(&op.what))
        expect_equal(pack->from), expect_equal(pack->into);
      if (const auto* send = std::get_if<Send>(&op.what)) expect_equal(send->what);
      if (const auto* gather = std::get_if<AllGather>(&op.what)) expect_equal(gather->into);
      if (const auto* merge = std::get_if<Merge>(&op.what)) expect_equal(merge->from);
    }
  });
}

}  // namespace
}  // namespace longnet
