// The backward programs: shapes x 1..9 ranks x layouts x collectives through check_schedule, and
// the faults that it must find in them.
#include <gtest/gtest.h>

#include <map>

#include "core/check.h"
#include "core/testing/test_support.h"
#include "schedule/accounting.h"
#include "schedule/check_schedule.h"
#include "schedule/closed_form_counts.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"
#include "schedule/testing/planted_fault.h"

namespace longnet {
namespace {

constexpr LayoutKind kEveryLayout[] = {LayoutKind::kContiguous, LayoutKind::kZigzag,
                                       LayoutKind::kStriped};

std::vector<std::pair<AttentionProblem, DilatedPattern>> backward_shapes() {
  using P = AttentionProblem;
  return {
      {P{.seq_len = 64, .num_heads = 4, .num_kv_heads = 4},
       {.branches = {{16, 1}, {32, 2}, {64, 4}}}},
      {P{.seq_len = 97, .num_heads = 6, .num_kv_heads = 2},
       {.branches = {{16, 1}, {40, 6}, {97, 5}}}},
      {P{.seq_len = 40, .num_heads = 1, .num_kv_heads = 1}, {.branches = {{8, 16}, {40, 64}}}},
      {P{.seq_len = 33, .num_heads = 5, .num_kv_heads = 1}, {.branches = {{100, 1}}}},
      {P{.seq_len = 5, .num_heads = 2, .num_kv_heads = 2}, {.branches = {{2, 1}, {5, 2}}}},
      {P{.seq_len = 60, .num_heads = 4, .num_kv_heads = 2, .batch = 2},
       {.branches = {{12, 2}, {60, 1}, {60, 3}}, .offset = OffsetRule::kBlock}},
  };
}

// Two heads of 64 tokens.
Schedule backward_of(std::string_view name, int ranks) {
  const AlgorithmInfo& algorithm = find_algorithm(name);
  ShardedProblem s{
      {.seq_len = 64, .num_heads = 2, .num_kv_heads = 2}, dense_pattern(64), {64, ranks}};
  if (algorithm.pattern == PatternKind::kDilated) s.pattern = {.branches = {{16, 1}, {64, 2}}};
  if (algorithm.pattern == PatternKind::kSparse) s.pattern = sparse_pattern(11, 3);
  return algorithm.make_backward(s);
}

// Kept slots of a backward program lie as the last op of the forward one that writes them leaves
// them.
void expect_kept(const RankProgram& forward, const RankProgram& backward) {
  for (const auto& [from, view] : backward.kept) {
    const Slot &slot = forward.slots.at(size_t(from)), &kept = backward.slots.at(size_t(view.slot));
    EXPECT_EQ(slot.kind, kept.kind);
    EXPECT_EQ(slot.bytes, kept.bytes);
    SlotView last;
    for (const Op& op : forward.ops)
      for_each_view(op.what, [&, slot_index = from](const SlotView& v, bool writes) {
        if (writes && v.slot == slot_index) last = v;
      });
    EXPECT_TRUE(last.rows == view.rows || kept.bytes == 0) << to_text(last.rows);
  }
}

bool expect_pass(const AlgorithmInfo& algorithm, ShardedProblem s, const std::string& collective,
                 Pass pass) {
  if (algorithm.pattern == PatternKind::kDense) s.pattern = dense_pattern(s.problem.seq_len);
  if (algorithm.pattern == PatternKind::kSparse) s.pattern = sparse_pattern(11, 3);
  if (!why_no_program(algorithm, s, Pass::kBackward).empty()) return false;
  const CollectiveChoice choice = parse_collective(collective);
  const Schedule schedule = lower_collectives(make_schedule(algorithm, s, pass), choice);
  const auto where = [&] {
    return concat(algorithm.name, " ", to_string(pass), " N=", s.problem.seq_len,
                  " P=", s.layout.world_size(), " causal=", s.problem.causal, " ",
                  to_string(s.layout.kind()), " ", collective, ": ");
  };
  const auto faults = check_schedule(schedule);
  EXPECT_TRUE(faults.empty()) << where() << (faults.empty() ? "" : faults.front());
  const Schedule before = lower_collectives(algorithm.make(s), choice);
  const WorldAccount forward = account(before);
  const WorldAccount all = account(schedule);
  EXPECT_EQ(all.pairs, forward.pairs) << where();
  const bool alone = s.pattern.mix != MixRule::kLse;  // attends once more
  EXPECT_EQ(all.flops, (2.5 + alone + has_forward(pass)) * forward.flops) << where();
  for (Rank r = 0; r < s.layout.world_size(); ++r) {
    const RankProgram program = schedule.program(r);
    if (!program.kept.empty()) expect_kept(before.program(r), program);
    const auto form = closed_form_counts(algorithm.name, s, choice, r, pass);
    EXPECT_EQ(form.has_value(), s.pattern.phase_parts == 1) << where();
    if (!form) continue;
    const RankAccount a = account(schedule.sharded, program, r);
    const ClosedFormCounts counted{a.bytes_sent, a.messages_sent, a.bytes_received,
                                   received_messages(schedule.sharded, program, r),
                                   a.memory_bytes()};
    EXPECT_EQ(to_text(*form), to_text(counted)) << where() << "rank " << r;
  }
  return true;
}

// False when the algorithm cannot run this.
bool expect_backward(const AlgorithmInfo& algorithm, const ShardedProblem& s,
                     const std::string& collective = "native") {
  return expect_pass(algorithm, s, collective, Pass::kForwardBackward) &&
         expect_pass(algorithm, s, collective, Pass::kBackward);
}

TEST(BackwardPrograms, AreCorrectForEveryShape) {
  CasesRun ran;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (auto [problem, pattern] : backward_shapes())
      for (int ranks = 1; ranks <= 9; ++ranks)
        for (const bool causal : {false, true})
          for (const LayoutKind layout : kEveryLayout) {
            problem.causal = causal;
            problem.dtype = ranks % 2 == 0 ? DType::kBFloat16 : DType::kFloat32;
            const bool right =
                expect_backward(algorithm, {problem, pattern, {problem.seq_len, ranks, layout}});
            if (algorithm.make_backward) ran.add(std::string(algorithm.name), right);
          }
  ran.expect_some_of_each();
}

TEST(BackwardPrograms, OfEveryCollectiveAndOption) {
  CasesRun ran;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (auto [problem, pattern] : backward_shapes())
      for (const int ranks : {2, 3, 4, 6, 8})
        for (const std::string& collective : collective_names())
          for (const GatherScope scope : {GatherScope::kSegmentGroup, GatherScope::kWholeWorld}) {
            if (algorithm.collectives == CollectiveUse::kNone) continue;
            pattern.phase_parts = ranks % 2 == 0 ? ranks : 1;
            ShardedProblem s{problem, pattern, {problem.seq_len, ranks}, scope};
            s.options = {.ulysses_degree = ranks % 4 == 0 ? 2 : 0, .head_slice = ranks % 3};
            ran.add(concat(algorithm.name, " ", collective),
                    expect_backward(algorithm, s, collective));
          }
  ran.expect_some_of_each();
}

TEST(BackwardPrograms, OfMixturesThatNeedEachBranchAlone) {
  for (auto [problem, pattern] : backward_shapes())
    for (int ranks = 1; ranks <= 9; ++ranks)
      for (const MixRule mix : {MixRule::kMean, MixRule::kSum, MixRule::kLseDetached}) {
        problem.causal = ranks % 2 == 0;
        pattern.mix = mix;
        EXPECT_TRUE(expect_backward(find_algorithm("dilated"),
                                    {problem, pattern, {problem.seq_len, ranks}}));
      }
}

TEST(BackwardPrograms, OfEveryInnerRing) {
  for (auto [problem, pattern] : backward_shapes())
    for (const int ranks : {4, 6, 8, 9})
      for (const LayoutKind layout : kEveryLayout)
        for (int inner = 1; inner <= ranks; ++inner) {
          if (ranks % inner != 0) continue;
          ShardedProblem s{problem, pattern, {problem.seq_len, ranks, layout}};
          s.problem.causal = inner % 2 == 0;
          s.options.ring_inner = inner;
          EXPECT_TRUE(expect_backward(find_algorithm("double_ring"), s));
        }
}

// A message that is posted after a kernel waits for it.
TEST(BackwardPrograms, TheFirstMessageStartsBeforeAnyKernel) {
  for (const AlgorithmInfo& algorithm : algorithms()) {
    if (algorithm.one_rank_only) continue;
    const RankProgram program = backward_of(algorithm.name, 4).program(1);
    const Op& first = *std::ranges::find_if_not(
        program.ops, [](const Op& op) { return std::holds_alternative<Pack>(op.what); });
    EXPECT_TRUE(is_communication(first.what)) << algorithm.name << ": " << to_text(first);
  }
}

TEST(BackwardPrograms, AnAlgorithmWithoutOneSaysWhy) {
  const ShardedProblem s{{.seq_len = 64}, dense_pattern(64), {64, 2}};
  AlgorithmInfo forward_only = find_algorithm("ring");
  forward_only.make_backward = nullptr;
  EXPECT_NE(why_no_program(forward_only, s, Pass::kBackward).find("no backward pass yet"),
            std::string::npos);
}

// P = 8, c = 512 tokens a rank, H = 16, G = 4, d = 64, fp32: a token has 4096 bytes of Q, dO or dQ,
// 2048 of K and V, 2048 of dK and dV, 4160 of O and LSE, 128 of statistics.
TEST(BackwardPrograms, CountsWorkedOutByHand) {
  constexpr int64_t c = 512, kv = 2048, grad = 2048, own = c * (3 * 4096 + kv + grad + 4160 + 128);
  ShardedProblem s{
      {.seq_len = 8 * c, .num_heads = 16, .num_kv_heads = 4}, dense_pattern(8 * c), {8 * c, 8}};
  const auto form = [&](const char* algorithm) {
    return *closed_form_counts(algorithm, s, {}, 1, Pass::kBackward);
  };
  // Half of the bytes are gradients, in as many hops as the keys take.
  const int64_t sent = 7 * c * (kv + grad);
  EXPECT_EQ(form("ring"), (ClosedFormCounts{sent, 14, sent, 14, own + c * (2 * kv + 3 * grad)}));
  EXPECT_EQ(form("bidirectional_ring"),
            (ClosedFormCounts{sent, 28, sent, 28, own + c * (2 * kv + 3 * grad)}));
  // Pi = 2: one buffer of K and V and two of gradients inside, two and three across.
  EXPECT_EQ(form("double_ring"),
            (ClosedFormCounts{sent, 14, sent, 14, own + c * (3 * kv + 5 * grad)}));
  // Q, dO, statistics and dQ of 16 heads instead of K, V and their gradients of 4.
  constexpr int64_t queries = 2 * 4096 + 128, grad_q = 4096;
  const int64_t queries_sent = 7 * c * (queries + grad_q);
  EXPECT_EQ(form("query_ring"), (ClosedFormCounts{queries_sent, 28, queries_sent, 28,
                                                  own + c * (2 * queries + 3 * grad_q)}));
  EXPECT_EQ(form("all_gather"),
            (ClosedFormCounts{sent, 14, sent, 14, own + c * (8 * kv + 8 * grad + grad)}));
  // dO goes out, dQ, dK and dV come back, of 8 K/V heads instead of 4; Q, K, V and O are kept.
  const int64_t exchanged = 7 * c * 2 * (4096 + grad) / 8;
  EXPECT_EQ(form("ulysses"), (ClosedFormCounts{exchanged, 21, exchanged, 21,
                                               own + c * (4096 + 2 * kv + 4160) +
                                                   c * (4 * 4096 + 128 + 2 * 2 * grad)}));
  // Q, dO and the statistics come, dQ goes.
  const int64_t gathered = 7 * c * (3 * 4096 + 128);
  EXPECT_EQ(form("query_gather"), (ClosedFormCounts{gathered, 28, gathered, 28,
                                                    own + 8 * c * (3 * 4096 + 128) + c * 4096}));
  // Rows 0, 8, 16, ... of 4 offsets among 4 ranks: half of the shard's bytes.
  s.pattern = {.branches = {{c / 2, 1}, {4 * c, 8}}};
  EXPECT_EQ(form("dilated"), (ClosedFormCounts{3 * c * (kv + grad) / 2, 6, 3 * c * (kv + grad) / 2,
                                               6, own + c * (4 * kv + (4 + 3) * grad) / 2}));
}

// The ops of a program in a few letters: G posts a message of the gather, r one of gradients, L and
// X attend to local keys and to gathered ones, m merges.
std::string letters(const Schedule& schedule, Rank rank) {
  const RankProgram p = lower_collectives(schedule, {}).program(rank);
  std::string out;
  for (const Op& op : p.ops)
    out += visit_op(
        op.what, [](const AllGather&) { return "G"; }, [](const Send&) { return "r"; },
        [](const AttendBackward& o) { return o.kv.slot == kKvSlot ? "L" : "X"; },
        [](const Merge&) { return "m"; }, [](const auto&) { return ""; });
  return out;
}

// Both messages of a segment that crosses borders are under way while local segments run: half of
// the pairs each in fp32, as many bytes; twice as many behind it in bf16, whose gradients are twice
// as long. A segment that cannot be cut hides the gradients.
TEST(BackwardPrograms, LocalSegmentsHideBothMessagesOfDilated) {
  ShardedProblem s{
      {.seq_len = 96, .num_heads = 4, .num_kv_heads = 4}, {.branches = {{4, 1}, {96, 4}}}, {96, 4}};
  const auto local_queries = [&] {
    std::vector<int64_t> tokens;
    for (const Op& op : dilated_backward(s).program(1).ops)
      if (const auto* o = std::get_if<AttendBackward>(&op.what); o && o->kv.slot == kKvSlot)
        tokens.push_back(o->queries.length());
    return tokens;
  };
  EXPECT_EQ(letters(dilated_backward(s), 1), "GLXrrrLmm");
  EXPECT_EQ(local_queries(), (std::vector<int64_t>{12, 12}));
  s.problem.dtype = DType::kBFloat16;
  EXPECT_EQ(local_queries(), (std::vector<int64_t>{8, 16}));
  s.pattern = {.branches = {{24, 1}, {48, 2}, {96, 4}}};
  EXPECT_EQ(letters(dilated_backward(s), 1), "GGXrXrrrLmmmm");
  s.pattern = {.branches = {{24, 1}, {12, 1}, {96, 4}}};
  EXPECT_EQ(letters(dilated_backward(s), 1), "GLXrrrLmm");
  s.pattern = {.branches = {{24, 1}, {12, 1}}};
  EXPECT_EQ(letters(dilated_backward(s), 1), "LL");
}

// ---- planted faults ----

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
  const Schedule right = ulysses_backward(
      {{.seq_len = 64, .num_heads = 4, .num_kv_heads = 2}, dense_pattern(64), {64, 4}});
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
                            [&](RankProgram& p) {
                              const OpId reset = OpId(&first_op<Reset>(p, skip) - p.ops.data());
                              for (Op& op : p.ops) std::erase(op.after, reset);
                            }),
                 "races with op");
}

TEST(BackwardFaults, StatisticsThatAreNotThere) {
  for (const Schedule& s : {backward_of("dilated", 4), backward_of("ring", 3)}) {
    expect_found(with_fault(s, 1, [](RankProgram& p) { remove_first<Delta>(p); }),
                 "reads piece 0 of slot 4 before it is there");
    expect_found(with_fault(s, 1,
                            [](RankProgram& p) {
                              const OpId delta = OpId(&first_op<Delta>(p) - p.ops.data());
                              for (Op& op : p.ops) std::erase(op.after, delta);
                            }),
                 "races with op");
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
  expect_found(with_fault(lowered, 1,
                          [](RankProgram& p) {
                            const OpId last = OpId(&first_op<Merge>(p) - p.ops.data());
                            for (Op& op : p.ops) std::erase(op.after, last);
                          }),
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
    expect_found(with_fault(dilated_backward(s), 1,
                            [i](RankProgram& p) {
                              Delta& delta = first<Delta>(p, i);
                              delta.output = delta.lse = {kOutputSlot, delta.into.rows};
                            }),
                 "the statistics are those of other keys");
  expect_found(
      with_fault(dilated_backward(s), 1, [](RankProgram& p) { remove_first<Delta>(p, 1); }),
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
    expect_found(with_fault(dilated_backward(s), 1,
                            [of_all = std::pair{output, lse}](RankProgram& p) {
                              Delta& delta = first<Delta>(p, 1);
                              const SlotView merged{kOutputSlot, delta.into.rows};
                              const SlotView alone = delta.output;
                              delta.output = of_all.first ? merged : alone;
                              delta.lse = of_all.second ? merged : alone;
                            }),
                 "the statistics are those of other keys");
    expect_found(with_fault(dilated_backward(s), 1,
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
