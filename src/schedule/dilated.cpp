// LongNet's distributed dilated attention (arXiv 2307.02486, section 3): K/V rows are selected
// before they are sent.
//
// A segment that lies inside one shard is local. A segment that crosses a border of shards is
// shared by a group of neighbouring ranks: each packs the K/V rows that the branch selects, the
// group gathers them, and each rank attends with its own queries. All gathers start first, so the
// local segments hide them.
//
//   N = 16, P = 4, branches {4, 1} {8, 2}, rank 1, head 0:
//     tokens      0 1 2 3 | 4 5 6 7 | 8 9 ...       (rank 1 owns 4..7)
//     branch 0              4 5 6 7                 own segment: local
//     branch 1    0   2     4   6                   segment 0..7: gathered with rank 0
//   Each rank gathers w / r = 4 rows of K and V, whatever N is.
//
// The first branch of rate 1 covers every row and writes the output in place; the others go through
// a compact partial and are merged into the rows that they touch. A pattern without such a branch
// begins with a reset.
//
// Backward, the same parts run again on the gathered rows. The gradients of a segment that crosses
// borders are summed and scattered in its group (reduce_scatter): a rank gets back as many rows as
// it has given. Some local segments run before the parts that cross, and hide the gathers; the
// others behind them, and hide the reduce_scatters. With `keep_gathered` the rows are those that
// the forward pass has gathered: no rank sends K and V again, and all local segments hide the
// reduce_scatters.
// A mixture by sum or mean needs L and delta of each branch alone, a detached one delta alone: its
// part attends once more, into the scratch of the forward pass, before its gradients are computed.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "schedule/program_builder.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

// True when some rank gathers rows of this branch.
bool gathers_somewhere(const ShardedProblem& sharded, const BranchRows& rows) {
  const int world = sharded.layout.world_size();
  if (rows.is_summary()) return world > 1;  // every segment's, to every rank
  for (Rank p = 1; p < world; ++p) {
    const TokenInterval shard = sharded.layout.interval(p);
    if (!shard.empty() && shard.begin % rows.segment_length() != 0) return true;
  }
  return false;
}

// Queries of one branch that can be attended together, and the K/V rows for it.
struct Part {
  int branch;
  TokenInterval queries;
  std::optional<RankGroup> group;  // ranks that gather; none for local segments
  TokenInterval gathered;          // tokens that the gather covers
  SlotView kv{};
  OpId ready = -1;  // op that gathers the rows
};

class DilatedProgram {
 public:
  DilatedProgram(const ShardedProblem& sharded, Rank rank, Pass pass)
      : sharded_(sharded),
        rank_(rank),
        shard_(sharded.layout.interval(rank)),
        keeps_gathered_(pass == Pass::kBackward && sharded.options.keep_gathered),
        build_(sharded, rank, pass) {}

  RankProgram make() {
    const int direct = branch_that_covers_all();
    std::vector<Part> parts = gathered_parts();
    if (shard_.empty()) return build_.take();

    if (direct < 0) output_ = {build_.add(Reset{build_.output()})};
    // Local parts run first, to hide the gathers; but a merge needs its rows in place, so the
    // direct branch is complete before any other part is merged.
    std::ranges::stable_sort(parts, {}, [&](const Part& part) {
      return std::pair(part.branch != direct, part.group.has_value());
    });
    for (const Part& part : parts)
      if (part.branch == direct)
        output_.push_back(attend(part, build_.output(), -1));
      else
        attend_and_merge(part);
    return build_.take();
  }

  RankProgram make_backward() {
    const std::vector<Part> parts = gathered_parts();
    const auto [first, last] = local_halves(parts);
    GradientSum sum(build_);
    if (needs_branch_statistics() && !shard_.empty())
      for (const Part& part : parts) scratch_for(part);  // halves need no more
    for (const Part& part : first) add_gradients(sum, part, sum.own_keys());
    std::vector<std::pair<SlotView, OpId>> reduced;
    for (const Part& part : parts) {
      if (!part.group) continue;
      const SlotView rows =
          build_.add_view(TensorKind::kGradKeyValue, SlotTag::kPartial, part.kv.rows);
      Gradients gradients{rows, build_.add(Reset{rows})};
      if (!shard_.empty()) add_gradients(sum, part, gradients);
      reduced.emplace_back(rows.piece(part.group->index_of(rank_)),
                           build_.add(ReduceScatter{*part.group, rows}, {gradients.last}));
    }
    for (const Part& part : last) add_gradients(sum, part, sum.own_keys());
    if (!shard_.empty())
      for (const auto& [rows, ready] : reduced) build_.merge(rows, ready, sum.own_keys());
    return build_.take();
  }

 private:
  std::vector<Part> gathered_parts() {
    std::vector<Part> parts;
    for (int b = 0; b < int(sharded_.pattern.branches.size()); ++b) add_parts(b, parts);
    int slot = kOutputSlot;  // the forward program's, where gathered rows come next
    for (Part& part : parts)
      if (part.group) gather(part, ++slot);
    return parts;
  }

  int branch_that_covers_all() const {
    for (size_t b = 0; b < sharded_.pattern.branches.size(); ++b)
      if (sharded_.pattern.branches[b].dilation_rate == 1) return int(b);
    return -1;
  }

  // Cuts the shard into local segments and those (at most two) that cross its borders.
  void add_parts(int b, std::vector<Part>& parts) const {
    const BranchRows rows(sharded_.pattern, b, sharded_.problem);
    const bool by_all = rows.is_summary() || sharded_.gather_scope == GatherScope::kWholeWorld;
    if (by_all && gathers_somewhere(sharded_, rows)) {
      parts.push_back(
          {b, shard_, RankGroup{0, 1, sharded_.layout.world_size()}, sharded_.all_tokens()});
      return;
    }
    if (shard_.empty()) return;
    if (rows.is_summary()) {
      parts.push_back({b, shard_, std::nullopt, {}, build_.kv()});
      return;
    }
    const int64_t first = rows.segment_of(shard_.begin), last = rows.segment_of(shard_.end - 1);
    const bool first_crosses = !shard_.contains(rows.segment(first));
    const bool last_crosses = !shard_.contains(rows.segment(last));
    if (first_crosses) parts.push_back(crossing(b, rows.segment(first)));
    const TokenInterval local{first_crosses ? rows.segment(first).end : shard_.begin,
                              last_crosses ? rows.segment(last).begin : shard_.end};
    if (!local.empty()) parts.push_back({b, local, std::nullopt, {}, build_.kv()});
    if (last_crosses && last != first) parts.push_back(crossing(b, rows.segment(last)));
  }

  // The local parts that run before those that cross borders, and behind them, cut between
  // segments. Their pairs are shared out as the bytes of the messages that they hide: 4 of a
  // gradient for 2 or 4 of a key, or for none where keys are kept. Parts that cannot be cut run
  // behind.
  std::array<std::vector<Part>, 2> local_halves(const std::vector<Part>& parts) const {
    const auto segment_length = [&](const Part& part) {
      return BranchRows(sharded_.pattern, part.branch, sharded_.problem).segment_length();
    };
    const auto pairs = [&](const Part& part) {  // one head's
      const double rate = double(sharded_.pattern.branches[size_t(part.branch)].dilation_rate);
      return double(part.queries.length()) * double(segment_length(part)) / (rate * rate);
    };
    const double key_bytes = keeps_gathered_ ? 0 : double(dtype_bytes(sharded_.problem.dtype));
    double local = 0;
    bool crosses = false;
    for (const Part& part : parts) {
      crosses = crosses || part.group;
      if (!part.group) local += pairs(part);
    }
    // Pairs that still fit in the first half. Without messages to hide all parts belong there: room
    // for twice the pairs, so that rounding cuts off none.
    double left = local * (crosses ? key_bytes / (key_bytes + sizeof(float)) : 2);
    std::array<std::vector<Part>, 2> halves;
    for (const Part& part : parts) {
      if (part.group) continue;
      int64_t tokens = int64_t(std::min(1.0, left / pairs(part)) * double(part.queries.length()));
      if (tokens < part.queries.length()) tokens -= tokens % segment_length(part);
      Part before = part, behind = part;
      before.queries.end = behind.queries.begin = part.queries.begin + tokens;
      left -= pairs(before);
      if (!before.queries.empty()) halves[0].push_back(before);
      if (!behind.queries.empty()) halves[1].push_back(behind);
    }
    return halves;
  }

  Part crossing(int b, TokenInterval segment) const {
    const Rank from = sharded_.layout.owner(segment.begin),
               to = sharded_.layout.owner(segment.end - 1);
    return {b, intersect(segment, shard_), RankGroup{from, 1, to - from + 1}, segment};
  }

  // Starts the gather, or keeps the rows that the forward program has gathered in its `slot`.
  void gather(Part& part, int slot) {
    const Slice all{part.branch, *part.group, part.gathered, sharded_.all_heads()};
    if (keeps_gathered_) {
      part.kv = build_.keep(slot, TensorKind::kKeyValue, SlotTag::kGathered, all);
      return;
    }
    part.kv = build_.add_view(TensorKind::kKeyValue, SlotTag::kGathered, all);
    const OpId pack = build_.add(Pack{build_.kv(), part.kv.piece(part.group->index_of(rank_))});
    part.ready = build_.add(AllGather{*part.group, part.kv}, {pack});
  }

  Attend attend_of(const Part& part, const SlotView& into) const {
    return {part.branch, part.queries, sharded_.all_heads(), build_.q(), part.kv, into};
  }
  OpId attend(const Part& part, const SlotView& into, OpId after) {
    return build_.add(attend_of(part, into), {part.ready, after});
  }

  bool needs_branch_statistics() const { return sharded_.pattern.mix != MixRule::kLse; }
  void add_gradients(GradientSum& sum, const Part& part, Gradients& into) {
    if (needs_branch_statistics()) {
      const SlotView alone = scratch_for(part);
      const SlotView lse = mixes_by_lse(sharded_.pattern.mix) ? build_.output() : alone;
      scratch_free_after_ =
          sum.use_statistics_of(alone, lse, attend(part, alone, scratch_free_after_));
    }
    sum.add(attend_of(part, {}), into, part.ready);
  }

  // The scratch slot for the results of the part alone.
  SlotView scratch_for(const Part& part) {
    const Slice rows{part.branch, {rank_, 1, 1}, part.queries, sharded_.all_heads()};
    if (scratch_ < 0) scratch_ = build_.add_slot(TensorKind::kPartial, SlotTag::kPartial, rows);
    const SlotView into{scratch_, rows};
    build_.grow_slot(scratch_, view_bytes(sharded_, TensorKind::kPartial, into));
    return into;
  }
  void attend_and_merge(const Part& part) {
    const SlotView into = scratch_for(part);
    std::vector<OpId> after = output_;
    after.push_back(attend(part, into, scratch_free_after_));
    scratch_free_after_ = build_.add(Merge{into, build_.output()}, std::move(after));
    output_ = {scratch_free_after_};
  }

  const ShardedProblem& sharded_;
  Rank rank_;
  TokenInterval shard_;
  bool keeps_gathered_;  // in a backward program
  ProgramBuilder build_;
  std::vector<OpId> output_;  // ops that the next merge into the output must wait for
  int scratch_ = -1;
  OpId scratch_free_after_ = -1;  // op after which the scratch may be written again
};

}  // namespace

bool dilated_keep_gathered(const ShardedProblem& sharded) {
  if (!sharded.options.keep_gathered) return false;
  for (int b = 0; b < int(sharded.pattern.branches.size()); ++b)
    if (gathers_somewhere(sharded, BranchRows(sharded.pattern, b, sharded.problem))) return true;
  return false;
}

Schedule dilated_attention(const ShardedProblem& sharded, Pass pass) {
  return {sharded, [=](Rank rank) {
            DilatedProgram program(sharded, rank, pass);
            return pass == Pass::kForward ? program.make() : program.make_backward();
          }};
}

}  // namespace longnet
