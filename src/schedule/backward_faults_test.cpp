// The faults that check_schedule must find in backward programs.
#include <gtest/gtest.h>

#include <map>

#include "schedule/check_schedule.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"
#include "schedule/testing/planted_fault.h"

namespace longnet {
namespace {

// Takes an op out: what depended on it depends on what it depended on.
void remove(RankProgram& p, OpId victim) {
  const std::vector<OpId> before = p.ops[size_t(victim)].after;
  p.ops.erase(p.ops.begin() + victim);
  for (Op& op : p.ops) {
    if (std::erase(op.after, victim) > 0)
      op.after.insert(op.after.end(), before.begin(), before.end());
    for (OpId& a : op.after) a -= a > victim;
  }
}
template <class Action>
void remove_first(RankProgram& p, int skip = 0) {
  remove(p, OpId(&first_op<Action>(p, skip) - p.ops.data()));
}

// Nothing waits for the first op of this kind after `skip` others.
template <class Action>
void wait_for_no(RankProgram& p, int skip = 0) {
  const OpId id = OpId(&first_op<Action>(p, skip) - p.ops.data());
  for (Op& op : p.ops) std::erase(op.after, id);
}

void expect_found(const Schedule& schedule, const std::string& text) {
  const auto faults = check_schedule(schedule);
  for (const std::string& line : faults)
    if (line.find(text) != std::string::npos) return;
  FAIL() << "expected '" << text << "', got " << faults.size()
         << " faults: " << (faults.empty() ? "" : faults[0]);
}

// The merges of a ring of four: two sums on their way, one at the owner; of a ring each way, all of
// these twice; of rings of two in two nodes, in step 0 and 1 a node's sum, then one at the owner.
const std::map<std::string, int> kMerges{
    {"ring", 3}, {"bidirectional_ring", 6}, {"double_ring", 3}, {"query_ring", 3}};

TEST(BackwardFaults, AMissingHop) {  // a sum that has come is not added
  for (const auto& [name, merges] : kMerges)
    for (int i = 0; i < merges; ++i)
      expect_found(
          with_fault(backward_of(name, 4), 2, [i](RankProgram& p) { remove_first<Merge>(p, i); }),
          name == "query_ring" ? "the keys attended to are not the pattern's"
                               : "the queries whose gradients arrived are not the pattern's");
}

TEST(BackwardFaults, ASumThatIsAddedElsewhere) {  // a node's to the own, some heads' to other heads
  expect_found(with_fault(backward_of("double_ring", 4), 1,
                          [](RankProgram& p) { first<Merge>(p, 1).into = first<Merge>(p).into; }),
               "which the target does not hold");
  expect_found(
      with_fault(backward_of("bidirectional_ring", 4), 1,
                 [](RankProgram& p) { first<Merge>(p, 0).from = first<Merge>(p, 1).from; }),
      "which the target does not hold");
}

TEST(BackwardFaults, ADoubledPiece) {
  expect_found(with_fault(backward_of("dilated", 4), 1,
                          [](RankProgram& p) {
                            const Merge merge = first<Merge>(p);
                            p.ops.push_back({merge, {OpId(p.ops.size()) - 1}});
                          }),
               "the queries whose gradients arrived are not the pattern's");
}

TEST(BackwardFaults, APartThatIsLeftOut) {
  const Schedule s = with_fault(backward_of("dilated", 4), 3,
                                [](RankProgram& p) { remove_first<AttendBackward>(p, 1); });
  expect_found(s, "the keys attended to are not the pattern's");
  expect_found(s, "the queries whose gradients arrived are not the pattern's");
}

TEST(BackwardFaults, AWrongOwner) {
  for (const auto& [name, merges] : kMerges)
    expect_found(with_fault(backward_of(name, 4), 1,
                            [](RankProgram& p) { first<Merge>(p).from.rows.owners.first ^= 1; }),
                 "holds rows of");
  expect_found(with_fault(backward_of("dilated", 4), 1,
                          [](RankProgram& p) { first<Merge>(p).from.pieces.first = 0; }),
               "which the target does not hold");
}

// Two ranks share each K/V head. Ops of rank 1: 4 packs of dO, then a pack of dQ and a merge of dK
// and dV for each rank.
TEST(BackwardFaults, GradientsOfAHeadSkippedOrDoubled) {
  const Schedule right = ulysses_attention(
      {{.seq_len = 64, .num_heads = 4, .num_kv_heads = 2}, dense_pattern(64), {64, 4}},
      Pass::kBackward);
  const char* const missing = "the queries whose gradients arrived are not the pattern's";
  for (int i = 0; i < 4; ++i) {
    expect_found(with_fault(right, 1, [i](RankProgram& p) { remove_first<Merge>(p, i); }), missing);
    expect_found(with_fault(right, 1, [i](RankProgram& p) { remove_first<Pack>(p, 4 + i); }),
                 "initialises 48 of 64 rows");
    expect_found(with_fault(right, 1,
                            [i](RankProgram& p) {
                              p.ops.push_back({first<Merge>(p, i), {OpId(p.ops.size()) - 1}});
                            }),
                 missing);
  }
  const Schedule gathered = backward_of("query_gather", 4);
  const Schedule skipped =
      with_fault(gathered, 2, [](RankProgram& p) { --first<AttendBackward>(p).heads.count; });
  expect_found(skipped, missing);
  expect_found(skipped, "the keys attended to are not the pattern's");
  expect_found(with_fault(gathered, 2,
                          [](RankProgram& p) {
                            const Op& once = first_op<AttendBackward>(p);
                            const Op again{once.what, {OpId(&once - p.ops.data())}};
                            p.ops.push_back(again);
                          }),
               missing);
}

TEST(BackwardFaults, ASumThatIsNotCleared) {  // the second shard of a partial finds the first one's
  for (const auto& [name, merges] : kMerges)
    expect_found(
        with_fault(backward_of(name, 4), 0, [](RankProgram& p) { remove_first<Reset>(p, 4); }),
        "adds to gradients that hold nothing yet");
  expect_found(
      with_fault(backward_of("dilated", 4), 0, [](RankProgram& p) { remove_first<Reset>(p); }),
      "adds to gradients that hold nothing yet");
}

TEST(BackwardFaults, AResetAtTheWrongTime) {
  // The resets of sums for other ranks, of dQ, and of dK and dV: left out; dQ's again after its
  // sums; beside the sums in no order.
  for (const int skip : {0, 1, 2})
    expect_found(with_fault(backward_of("dilated", 4), 0,
                            [&](RankProgram& p) { remove_first<Reset>(p, skip); }),
                 "adds to gradients that hold nothing yet");
  expect_found(with_fault(backward_of("dilated", 4), 2,
                          [](RankProgram& p) {
                            const Reset reset = first<Reset>(p, 1);
                            p.ops.push_back({reset, {OpId(p.ops.size()) - 1}});
                          }),
               "the keys attended to are not the pattern's");
  for (const int skip : {0, 1, 2})
    expect_found(with_fault(backward_of("dilated", 4), 1,
                            [&](RankProgram& p) { wait_for_no<Reset>(p, skip); }),
                 "races with op");
}

TEST(BackwardFaults, StatisticsThatAreNotThere) {
  for (const Schedule& s : {backward_of("dilated", 4), backward_of("ring", 3)}) {
    expect_found(with_fault(s, 1, [](RankProgram& p) { remove_first<Delta>(p); }),
                 "reads piece 0 of slot 4 before it is there");
    expect_found(with_fault(s, 1, [](RankProgram& p) { wait_for_no<Delta>(p); }), "races with op");
    expect_found(
        with_fault(s, 1, [](RankProgram& p) { first<Delta>(p).grad_out.rows.within.end = 20; }),
        "statistics, outputs and gradients do not belong together");
  }
}

TEST(BackwardFaults, AReduceScatter) {
  expect_found(with_fault(backward_of("dilated", 4), 2,
                          [](RankProgram& p) { remove_first<ReduceScatter>(p); }),
               "deadlock");
  expect_found(with_fault(backward_of("dilated", 4), 1,
                          [](RankProgram& p) { first_op<ReduceScatter>(p).after.clear(); }),
               "races with op");
  expect_found(with_fault(backward_of("dilated", 4), 1,
                          [](RankProgram& p) { first<ReduceScatter>(p).group.first = 2; }),
               "takes part in a collective of ranks it is not among");
  // As messages: a piece that stays behind, a piece that another rank owns, a sum that is read
  // before all have come.
  const Schedule lowered = lower_collectives(backward_of("dilated", 4), {});
  expect_found(with_fault(lowered, 1,
                          [](RankProgram& p) {
                            first<Merge>(p).from.pieces = {0, 2};
                          }),
               "the queries whose gradients arrived are not the pattern's");
  expect_found(with_fault(lowered, 1, [](RankProgram& p) { first<Send>(p).what.pieces.first = 0; }),
               "expects");
  expect_found(with_fault(lowered, 1, [](RankProgram& p) { wait_for_no<Merge>(p); }),
               "races with op");
}

TEST(BackwardFaults, TwoSumsIntoOneSlotWithoutAnOrder) {
  expect_found(with_fault(backward_of("dilated", 4), 0,
                          [](RankProgram& p) {
                            Op& second = first_op<AttendBackward>(p, 1);
                            std::erase(second.after,
                                       OpId(&first_op<AttendBackward>(p) - p.ops.data()));
                          }),
               "races with op");
}

TEST(BackwardFaults, StatisticsOfOtherQueries) {
  expect_found(with_fault(backward_of("query_ring", 4), 0,
                          [](RankProgram& p) {
                            AttendBackward& attend = first<AttendBackward>(p, 1);
                            attend.statistics = first<AttendBackward>(p).statistics;
                          }),
               "rows of queries do not belong together");
}

TEST(BackwardFaults, StatisticsOfAnotherBranch) {
  const ShardedProblem s{{.seq_len = 64, .num_heads = 2, .num_kv_heads = 2},
                         {.branches = {{16, 1}, {64, 2}}, .mix = MixRule::kSum},
                         {64, 4}};
  for (const int i : {0, 1})
    expect_found(with_fault(dilated_attention(s, Pass::kBackward), 1,
                            [i](RankProgram& p) {
                              Delta& delta = first<Delta>(p, i);
                              delta.output = delta.lse = {kOutputSlot, delta.into.rows};
                            }),
                 "the statistics are those of other keys");
  expect_found(with_fault(dilated_attention(s, Pass::kBackward), 1,
                          [](RankProgram& p) { remove_first<Delta>(p, 1); }),
               "the statistics are those of other keys");
}

// Detached weights: delta of the branch alone, L of all. Each of the other three is another
// mixture's.
TEST(BackwardFaults, StatisticsOfAnotherMixture) {
  for (const auto& [mix, output, lse] : {std::tuple{MixRule::kLseDetached, false, false},
                                         {MixRule::kLseDetached, true, true},
                                         {MixRule::kSum, false, true},
                                         {MixRule::kSum, true, true}}) {
    const ShardedProblem s{{.seq_len = 64, .num_heads = 2, .num_kv_heads = 2},
                           {.branches = {{16, 1}, {64, 2}}, .mix = mix},
                           {64, 4}};
    expect_found(with_fault(dilated_attention(s, Pass::kBackward), 1,
                            [of_all = std::pair{output, lse}](RankProgram& p) {
                              Delta& delta = first<Delta>(p, 1);
                              const SlotView merged{kOutputSlot, delta.into.rows};
                              const SlotView alone = delta.output;
                              delta.output = of_all.first ? merged : alone;
                              delta.lse = of_all.second ? merged : alone;
                            }),
                 "the statistics are those of other keys");
    expect_found(with_fault(dilated_attention(s, Pass::kBackward), 1,
                            [](RankProgram& p) {
                              Delta& delta = first<Delta>(p, 1);
                              delta.lse = delta.output;
                              delta.output = {kOutputSlot, delta.into.rows};
                            }),
                 "statistics, outputs and gradients do not belong together");
  }
}

TEST(BackwardFaults, AnInputIsOverwritten) {
  expect_found(with_fault(backward_of("ring", 2), 0,
                          [](RankProgram& p) { first<Recv>(p).what.slot = kKvSlot; }),
               "overwrites an input");
  expect_found(
      with_fault(backward_of("usp", 4), 0,
                 [](RankProgram& p) { first<Recv>(p).what.slot = p.kept.at(1).view.slot; }),
      "overwrites an input");
}

}  // namespace
}  // namespace longnet
