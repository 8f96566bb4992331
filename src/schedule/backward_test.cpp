// The backward programs: shapes x 1..9 ranks x layouts x collectives through check_schedule; counts
// by hand; what hides which message.
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
    EXPECT_EQ(to_text(*form), to_text(program_counts(schedule.sharded, program, r)))
        << where() << "rank " << r;
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
            ran.add(std::string(algorithm.name), right);
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

// A backward pass that finds gathered K and V kept sends none of them again: its bytes are fewer by
// those that the forward pass sends.
TEST(BackwardPrograms, OfRowsThatAreKept) {
  int gather_again = 0;
  for (const char* name : {"dilated", "sparse"})
    for (auto [problem, pattern] : backward_shapes())
      for (int ranks = 1; ranks <= 9; ++ranks)
        for (const std::string& collective : collective_names())
          for (const GatherScope scope : {GatherScope::kSegmentGroup, GatherScope::kWholeWorld}) {
            const AlgorithmInfo& algorithm = find_algorithm(name);
            problem.causal = ranks % 2 == 0;
            pattern.phase_parts = ranks % 3 == 0 ? ranks : 1;
            if (algorithm.pattern == PatternKind::kDilated)
              pattern.mix = ranks % 4 == 1 ? MixRule::kMean : MixRule::kLse;
            else
              pattern = sparse_pattern(11, 3);
            ShardedProblem s{problem, pattern, {problem.seq_len, ranks}, scope};
            const auto sent = [&, rank = ranks / 2](Pass pass, bool keep) {
              s.options.keep_gathered = keep;
              const Schedule made = lower_collectives(make_schedule(algorithm, s, pass),
                                                      parse_collective(collective));
              return account(s, made.program(rank), rank).bytes_sent;
            };
            const int64_t forward = sent(Pass::kForward, true);
            EXPECT_EQ(sent(Pass::kBackward, true), sent(Pass::kBackward, false) - forward);
            gather_again += forward > 0;
            EXPECT_TRUE(expect_backward(algorithm, s, collective));
          }
  EXPECT_GT(gather_again, 100);
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
    EXPECT_TRUE(is_communication(first.what)) << algorithm.name << ": " << to_text(program, first);
  }
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
  EXPECT_EQ(form("ring"), (RankCounts{sent, 14, sent, 14, own + c * (2 * kv + 3 * grad)}));
  EXPECT_EQ(form("bidirectional_ring"),
            (RankCounts{sent, 28, sent, 28, own + c * (2 * kv + 3 * grad)}));
  // Pi = 2: one buffer of K and V and two of gradients inside, two and three across.
  EXPECT_EQ(form("double_ring"), (RankCounts{sent, 14, sent, 14, own + c * (3 * kv + 5 * grad)}));
  // Q, dO, statistics and dQ of 16 heads instead of K, V and their gradients of 4.
  constexpr int64_t queries = 2 * 4096 + 128, grad_q = 4096;
  const int64_t queries_sent = 7 * c * (queries + grad_q);
  EXPECT_EQ(form("query_ring"),
            (RankCounts{queries_sent, 28, queries_sent, 28, own + c * (2 * queries + 3 * grad_q)}));
  EXPECT_EQ(form("all_gather"),
            (RankCounts{sent, 14, sent, 14, own + c * (8 * kv + 8 * grad + grad)}));
  // dO goes out, dQ, dK and dV come back, of 8 K/V heads instead of 4; Q, K, V and O are kept.
  const int64_t exchanged = 7 * c * 2 * (4096 + grad) / 8;
  EXPECT_EQ(form("ulysses"),
            (RankCounts{exchanged, 21, exchanged, 21,
                        own + c * (4096 + 2 * kv + 4160) + c * (4 * 4096 + 128 + 2 * 2 * grad)}));
  // Q, dO and the statistics come, dQ goes.
  const int64_t gathered = 7 * c * (3 * 4096 + 128);
  EXPECT_EQ(form("query_gather"),
            (RankCounts{gathered, 28, gathered, 28, own + 8 * c * (3 * 4096 + 128) + c * 4096}));
  // Rows 0, 8, 16, ... of 4 offsets among 4 ranks: half of the shard's bytes.
  s.pattern = {.branches = {{c / 2, 1}, {4 * c, 8}}};
  EXPECT_EQ(form("dilated"), (RankCounts{3 * c * (kv + grad) / 2, 6, 3 * c * (kv + grad) / 2, 6,
                                         own + c * (4 * kv + (4 + 3) * grad) / 2}));
  s.options.keep_gathered = true;  // half of the bytes and messages, as much memory
  EXPECT_EQ(form("dilated"), (RankCounts{3 * c * grad / 2, 3, 3 * c * grad / 2, 3,
                                         own + c * (4 * kv + (4 + 3) * grad) / 2}));
  // Both passes as one program hold the gathered rows once.
  const auto both = [&] {
    return closed_form_counts("dilated", s, {}, 1, Pass::kForwardBackward)->memory_bytes;
  };
  const int64_t kept = both();
  s.options.keep_gathered = false;
  EXPECT_EQ(both(), kept + 4 * c * kv / 2);
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
    for (const Op& op : dilated_attention(s, Pass::kBackward).program(1).ops)
      if (const auto* o = std::get_if<AttendBackward>(&op.what); o && o->kv.slot == kKvSlot)
        tokens.push_back(o->queries.length());
    return tokens;
  };
  EXPECT_EQ(letters(dilated_attention(s, Pass::kBackward), 1), "GLXrrrLmm");
  EXPECT_EQ(local_queries(), (std::vector<int64_t>{12, 12}));
  s.problem.dtype = DType::kBFloat16;
  EXPECT_EQ(local_queries(), (std::vector<int64_t>{8, 16}));
  s.pattern = {.branches = {{24, 1}, {48, 2}, {96, 4}}};
  EXPECT_EQ(letters(dilated_attention(s, Pass::kBackward), 1), "GGXrXrrrLmmmm");
  s.pattern = {.branches = {{24, 1}, {12, 1}, {96, 4}}};
  EXPECT_EQ(letters(dilated_attention(s, Pass::kBackward), 1), "GLXrrrLmm");
  s.options.keep_gathered = true;  // nothing to hide before the part that crosses
  EXPECT_EQ(letters(dilated_attention(s, Pass::kBackward), 1), "XrrrLLmm");
  s.pattern = {.branches = {{24, 1}, {12, 1}}};
  EXPECT_EQ(letters(dilated_attention(s, Pass::kBackward), 1), "LL");
}

}  // namespace
}  // namespace longnet
