// The checker finds planted faults: one test each.
#include "schedule/check_schedule.h"

#include <gtest/gtest.h>

#include "core/check.h"
#include "schedule/registry.h"
#include "schedule/row_map.h"
#include "schedule/testing/planted_fault.h"

namespace longnet {
namespace {

ShardedProblem ring_problem(int ranks = 4) {
  return {{.seq_len = 64, .num_heads = 2, .num_kv_heads = 2}, dense_pattern(64), {64, ranks}};
}
ShardedProblem dilated_problem() {
  return {{.seq_len = 64, .num_heads = 2, .num_kv_heads = 2},
          {.branches = {{16, 1}, {64, 2}}},
          {64, 4}};
}

void expect_fault(const Schedule& schedule, const std::string& text) {
  const auto faults = check_schedule(schedule);
  for (const std::string& line : faults)
    if (line.find(text) != std::string::npos) return;
  FAIL() << "expected '" << text << "', got " << faults.size()
         << " faults: " << (faults.empty() ? "" : faults[0]);
}

TEST(CheckSchedule, WrongOwner) {
  expect_fault(with_fault(ring_attention(ring_problem()), 2,
                          [](RankProgram& p) { first<Attend>(p, 1).kv.rows.owners.first = 3; }),
               "slot 3 holds rows of 1 in 0..64, not rows of 3");
}

TEST(CheckSchedule, SendOfOtherRowsThanExpected) {
  expect_fault(with_fault(ring_attention(ring_problem()), 2,
                          [](RankProgram& p) {
                            first<Send>(p).what.rows.within = {0, 32};
                          }),
               "expects");
}

TEST(CheckSchedule, MissingDependencyOnAReceive) {
  expect_fault(
      with_fault(ring_attention(ring_problem()), 1,
                 [](RankProgram& p) { std::erase(first_op<Attend>(p, 1).after, OpId{1}); }),
      "races with op 1");
}

TEST(CheckSchedule, BufferReuseRace) {  // recv into the buffer that the step before still reads
  expect_fault(with_fault(ring_attention(ring_problem(5)), 0,
                          [](RankProgram& p) { first_op<Recv>(p, 2).after.clear(); }),
               "races with op");
}

TEST(CheckSchedule, MergesIntoTheSameRowsUnordered) {
  expect_fault(with_fault(ring_attention(ring_problem()), 0,
                          [](RankProgram& p) { std::erase(first_op<Merge>(p).after, OpId{2}); }),
               "races with op");
}

TEST(CheckSchedule, MergeWithoutLse) {  // Ulysses' output came as a result: nothing can be added
  expect_fault(with_fault(ulysses_attention(ring_problem(2)), 0,
                          [](RankProgram& p) {
                            const SlotView computed = first<Attend>(p).into.piece(0);
                            const SlotView output = first<Pack>(p, 6).into;
                            p.ops.push_back({Merge{computed, output}, {OpId(p.ops.size()) - 1}});
                          }),
               "needs the LSE of rows that came as a result");
}

TEST(CheckSchedule, PartialsOfTheSameRowsInOneMerge) {
  expect_fault(with_fault(ring_attention(ring_problem()), 0,
                          [](RankProgram& p) {
                            SlotView& from = first<Merge>(p).from;
                            from.rows.owners.stride = 0, from.rows.owners.count = 2;
                            p.slots[size_t(from.slot)].bytes *= 2;
                          }),
               "partials of the same rows are merged by one op");
}

// Rows of the gathered slot, wherever the program names them.
void gather_only(RankProgram& p, TokenInterval within) {
  const int slot = first<AllGather>(p).into.slot;
  first<Pack>(p).into.rows.within = first<AllGather>(p).into.rows.within = within;
  for (Op& op : p.ops)
    if (auto* attend = std::get_if<Attend>(&op.what); attend && attend->kv.slot == slot)
      attend->kv.rows.within = within;
}

TEST(CheckSchedule, ShortGather) {  // all ranks leave out the last shard
  Schedule s = dilated_attention(dilated_problem());
  for (Rank r = 0; r < 4; ++r)
    s = with_fault(s, r, [](RankProgram& p) { gather_only(p, {0, 48}); });
  expect_fault(s, "the keys attended to are not the pattern's");
}

TEST(CheckSchedule, GatherOfFewerRowsThanTheOthers) {
  expect_fault(with_fault(dilated_attention(dilated_problem()), 1,
                          [](RankProgram& p) {
                            gather_only(p, {0, 48});
                          }),
               "expects");
}

TEST(CheckSchedule, GatherWithoutTheOwnPiece) {  // no op packs it
  expect_fault(with_fault(dilated_attention(dilated_problem()), 1,
                          [](RankProgram& p) { first<Pack>(p).into.pieces.first = 2; }),
               "cannot pack");
}

TEST(CheckSchedule, Deadlock) {  // every rank waits for its predecessor before it sends
  Schedule s = ring_attention(ring_problem());
  for (Rank r = 0; r < 4; ++r)
    s = with_fault(s, r, [](RankProgram& p) {
      std::swap(p.ops[0].what, p.ops[1].what);
      p.ops[1].after = {0};
    });
  expect_fault(s, "deadlock");
}

TEST(CheckSchedule, ReceiveWithoutSend) {  // rank 3 lacks its last send, so rank 0 waits
  expect_fault(
      with_fault(ring_attention(ring_problem()), 3,
                 [](RankProgram& p) {
                   const Merge merge = first<Merge>(p);
                   p.slots.push_back(p.slots[size_t(merge.from.slot)]);
                   first_op<Send>(p, 2).what = Reset{{int(p.slots.size()) - 1, merge.from.rows}};
                 }),
      "deadlock");
}

TEST(CheckSchedule, KeysAttendedTwice) {  // the own shard once more at the end
  expect_fault(
      with_fault(
          ring_attention(ring_problem()), 0,
          [](RankProgram& p) {
            const Merge merge = first<Merge>(p);
            const Attend own = first<Attend>(p);
            const OpId last = OpId(p.ops.size()) - 1;
            p.ops.push_back({Attend{0, {0, 64}, own.heads, own.q, own.kv, merge.from}, {last}});
            p.ops.push_back({merge, {last + 1}});
          }),
      "each once");
}

TEST(CheckSchedule, MissingAttend) {
  expect_fault(
      with_fault(dilated_attention(dilated_problem()), 0, [](RankProgram& p) { p.ops.pop_back(); }),
      "the keys attended to are not the pattern's");
}

TEST(CheckSchedule, RowsLeftUninitialised) {
  expect_fault(with_fault(dilated_attention(dilated_problem()), 0,
                          [](RankProgram& p) { first<Attend>(p).queries.end -= 4; }),
               "rows");
}

TEST(CheckSchedule, SlotTooSmall) {
  expect_fault(with_fault(dilated_attention(dilated_problem()), 0,
                          [](RankProgram& p) { p.slots[4].bytes -= 1; }),
               "bytes in slot 4");
}

TEST(CheckSchedule, RequireCorrectThrowsAllFaults) {
  const Schedule broken =
      with_fault(dilated_attention(dilated_problem()), 0, [](RankProgram& p) { p.ops.pop_back(); });
  EXPECT_THROW(require_correct(broken), Error);
  EXPECT_NO_THROW(require_correct(dilated_attention(dilated_problem())));
}

TEST(ProgramText, ShowsOpsDependenciesAndMessages) {
  const Schedule ring = ring_attention(ring_problem(2));
  const std::string text = to_text(ring.sharded, ring.program(1), 1);
  EXPECT_NE(text.find("# rank 1 owns tokens 32..64"), std::string::npos) << text;
  EXPECT_NE(text.find("attend     branch 0"), std::string::npos);
  EXPECT_NE(text.find("(after"), std::string::npos);
  const std::string dot = to_dot(ring, 2);
  EXPECT_NE(dot.find("digraph"), std::string::npos);
  EXPECT_NE(dot.find("r0_0 -> r1_1 [style=dashed]"), std::string::npos) << dot;
}

TEST(ProgramText, ABackwardPassNamesItsSlots) {
  const Schedule ring = ring_attention(ring_problem(2), Pass::kBackward);
  const std::string text = to_text(ring.sharded, ring.program(1), 1);
  for (const char* op : {"delta      grad_out[rows of 1 in 0..64] x output[rows of 1 in 0..64] -> "
                         "statistics[rows of 1 in 0..64]",
                         "-> dq[rows of 1 in 0..64], dkv[rows of 1 in 0..64]"})
    EXPECT_NE(text.find(op), std::string::npos) << op << " in\n" << text;
  const Schedule forward = ring_attention(ring_problem(2));  // its buffers have the same numbers
  EXPECT_NE(to_text(forward.sharded, forward.program(1), 1).find("slot3["), std::string::npos);
}

TEST(RowMap, SizesBeyondThirtyTwoBits) {  // N H d = 2^30 12 64: an element's offset needs 40 bits
  const int64_t n = int64_t{1} << 30;
  const AttentionProblem p{
      .seq_len = n, .num_heads = 12, .num_kv_heads = 12, .dtype = DType::kBFloat16};
  const ShardedProblem s{p, {.branches = {{2048, 1}, {n, 4}}}, {n, 1}};
  const Slice all{kEveryRow, {}, {0, n}, {0, 12}};
  const RowMap map(s, TensorKind::kKeyValue, all);
  EXPECT_EQ(map.bytes(), n * 12 * 64 * 2 * 2);
  EXPECT_EQ(map.locate(map.pieces()[0], 0, 11, {n - 1, 1, 1}).row, n * 12 - 1);
  const RowMap thinned(s, TensorKind::kPartial, {1, {}, {0, n}, {0, 12}});
  EXPECT_EQ(thinned.bytes(), n / 4 * 12 * 65 * 4);
  EXPECT_EQ(thinned.locate(thinned.pieces()[0], 0, 11, {n - 1, 4, 1}).row, n / 4 * 12 - 1);
}

// Rows of a slice, located piece by piece, fill it completely and without overlap.
TEST(RowMap, PlacesAreABijection) {
  const AttentionProblem p{.seq_len = 53, .num_heads = 6, .num_kv_heads = 2, .batch = 2};
  const ShardedProblem s{p, {.branches = {{20, 1}, {53, 4}, {16, 3}}}, {53, 4}};
  for (int branch : {kEveryRow, 1, 2})
    for (TensorKind kind : {TensorKind::kQuery, TensorKind::kKeyValue, TensorKind::kPartial}) {
      const RowMap map(s, kind, {branch, {.first = 1, .stride = 1, .count = 3}, {5, 50}, {0, 6}});
      int64_t bytes = 0;
      for (const auto& piece : map.pieces()) {
        EXPECT_EQ(piece.byte_offset, bytes);
        bytes += map.piece_bytes(piece);
        std::vector<int> hits(size_t(piece.rows), 0);
        for (int64_t b = 0; b < 2; ++b)
          for (int64_t head = 0; head < 6; ++head)
            map.for_each_run(piece, branch == kEveryRow ? 0 : branch, head, {0, 53},
                             [&](const TokenRange& run, int64_t) {
                               const auto place = map.locate(piece, b, head, run);
                               for (int64_t i = 0; i < run.count; ++i)
                                 ++hits.at(size_t(place.row + i * place.step));
                             });
        for (int h : hits) EXPECT_GE(h, 1);
        if (kind != TensorKind::kKeyValue) {
          for (int h : hits) EXPECT_EQ(h, 1);
        }
      }
      EXPECT_EQ(map.bytes(), bytes);
    }
}

}  // namespace
}  // namespace longnet
