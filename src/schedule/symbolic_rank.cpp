#include "schedule/symbolic_rank.h"

#include <algorithm>
#include <set>

#include "core/check.h"
#include "schedule/row_map.h"

namespace longnet {
namespace {

// Restricts a piece's partial results to some heads.
PieceState restricted(PieceState state, const HeadRange& heads) {
  const auto restrict_all = [&](auto& list) {
    for (auto& item : list) item.heads = intersect(item.heads, heads);
    std::erase_if(list, [](const auto& item) { return item.heads.count == 0; });
  };
  restrict_all(state.sum);
  restrict_all(state.initialised);
  return state;
}

// A canonical list: sorted, neighbouring pieces of one progression joined. An overlap never joins.
std::vector<TokenRange> joined(std::vector<TokenRange> runs) {
  std::erase_if(runs, [](const TokenRange& r) { return r.empty(); });
  std::ranges::sort(runs, {}, &TokenRange::first);
  std::vector<TokenRange> out;
  for (const TokenRange& r : runs) {
    if (!out.empty() && out.back().stride == r.stride && out.back()[out.back().count] == r.first)
      out.back().count += r.count;
    else
      out.push_back(r);
  }
  return out;
}

std::vector<int64_t> tokens_of(const std::vector<TokenRange>& runs) {
  std::vector<int64_t> tokens;
  for (const TokenRange& r : runs)
    for (int64_t i = 0; i < r.count; ++i) tokens.push_back(r[i]);
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

// Equal as multisets of tokens. Strides differ only for striped shards, which are then compared one
// by one.
bool same_tokens(std::vector<TokenRange> a, std::vector<TokenRange> b) {
  a = joined(std::move(a));
  b = joined(std::move(b));
  return a == b || tokens_of(a) == tokens_of(b);
}

}  // namespace

SymbolicRank::SymbolicRank(const ShardedProblem& sharded, const RankProgram& program, Rank rank)
    : sharded_(sharded),
      rank_(rank),
      slots_(std::max(program.slots.size(), size_t{kGradKvSlot + 1})),
      pass_(program.pass),
      scope_(program.scope) {
  for (const Slot& slot : program.slots) kinds_.push_back(slot.kind), tags_.push_back(slot.tag);
  const Slice own{kEveryRow, {.first = rank}, sharded.all_tokens(), sharded.all_heads()};
  const auto begin_with = [&](int slot, const Slice& rows) {
    slots_[size_t(slot)] = {rows, std::vector<PieceState>(size_t(rows.num_pieces()))};
    for (PieceState& piece : slots_[size_t(slot)].pieces) piece.valid = program.is_input(slot);
  };
  const int last = has_backward(pass_) ? kGradKvSlot : kOutputSlot;
  for (int slot = kQuerySlot; slot <= last; ++slot) begin_with(slot, own);
  for (const auto& [forward, view] : program.kept) begin_with(view.slot, view.rows);
  for (const Op& op : program.ops)
    for_each_view(op.what, [&](const SlotView& view, bool) {
      if (has_layers(scope_) && program.is_input(view.slot)) begin_with(view.slot, view.rows);
    });
  for (size_t i = 0; i < kinds_.size(); ++i)
    inputs_.push_back(program.is_input(int(i)) &&
                      (scope_ == Scope::kAttention || tags_[i] == SlotTag::kTokens));
}

// The slot laid out for `view`; what another layout held is gone.
SymbolicRank::SlotState& SymbolicRank::laid_out_for(const SlotView& view) {
  SlotState& slot = slots_.at(size_t(view.slot));
  if (slot.pieces.empty() || slot.rows != view.rows)
    slot = {view.rows, std::vector<PieceState>(size_t(view.rows.num_pieces()))};
  return slot;
}

std::vector<PieceState> SymbolicRank::read(const SlotView& view, const Report& report) {
  const SlotState& slot = slots_.at(size_t(view.slot));
  std::vector<PieceState> out(size_t(view.num_pieces()));
  const TensorKind kind = kinds_.at(size_t(view.slot));
  if (view_bytes(sharded_, kind, view) == 0) return out;
  if (slot.pieces.empty()) {
    report(concat("reads slot ", view.slot, " before anything is in it"));
    return out;
  }
  if (slot.rows != view.rows) {
    report(concat("slot ", view.slot, " holds ", to_text(slot.rows), ", not ", to_text(view.rows)));
    return out;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const int piece = view.first_piece() + int(i);
    out[i] = slot.pieces.at(size_t(piece));
    if (!out[i].valid && view_bytes(sharded_, kind, view.piece(piece)) > 0)
      report(concat("reads piece ", piece, " of slot ", view.slot, " before it is there"));
  }
  return out;
}

void SymbolicRank::write(const SlotView& view, std::vector<PieceState> states,
                         const Report& report) {
  if (inputs_.at(size_t(view.slot))) report("overwrites an input");
  SlotState& slot = laid_out_for(view);
  for (size_t i = 0; i < states.size(); ++i) {
    states[i].valid = true;
    slot.pieces.at(size_t(view.first_piece()) + i) = std::move(states[i]);
  }
}

int64_t SymbolicRank::area(Rank owner, const std::vector<Region>& regions,
                           const Region& within) const {
  int64_t rows = 0;
  for (const Region& r : regions)
    rows += owned_tokens(sharded_, owner, intersect(r.tokens, within.tokens)).tokens() *
            intersect(r.heads, within.heads).count;
  return rows;
}

void SymbolicRank::apply(const Pack& op, const Report& report) {
  PieceState value = read(op.from, report).at(0);
  const HeadRange from_heads = heads_of(op.from, 0), into_heads = heads_of(op.into, 0);
  const bool rows_fit =
      op.from.rows.branch == kEveryRow || op.from.rows.branch == op.into.rows.branch;
  const bool heads_fit = from_heads.contains(into_heads) || into_heads.contains(from_heads);
  if (op.from.num_pieces() != 1 || op.into.num_pieces() != 1 ||
      owner_of(op.from, 0) != owner_of(op.into, 0) || !rows_fit || !heads_fit ||
      !op.from.rows.within.contains(op.into.rows.within))
    return report(concat("cannot pack ", to_text(op.into.rows), " from ", to_text(op.from.rows)));
  value = restricted(value, into_heads);
  if (kinds_.at(size_t(op.into.slot)) == TensorKind::kResult) value.has_lse = false;
  if (from_heads.contains(into_heads) && op.into.slot != kOutputSlot)
    return write(op.into, {value}, report);
  // Unpacking: some heads of a piece that has more.
  PieceState& into = laid_out_for(op.into).pieces.at(size_t(op.into.first_piece()));
  for (const Region& r : value.initialised)
    if (area(owner_of(op.into, 0), into.initialised, r) > 0)
      report("a pack overwrites rows that hold a result");
  into.valid = true;
  into.has_lse = into.has_lse && value.has_lse;
  into.add(value.sum);
  into.initialised.insert(into.initialised.end(), value.initialised.begin(),
                          value.initialised.end());
}

void SymbolicRank::apply(const Attend& op, const Report& report) {
  read(op.q, report);
  read(op.kv, report);
  const auto holds_branch = [&](const SlotView& h) {
    return h.rows.branch == kEveryRow || h.rows.branch == op.branch;
  };
  if (!holds_branch(op.q) || !holds_branch(op.kv) || !holds_branch(op.into))
    report("mixes rows of different branches");
  bool same_owners = op.q.num_pieces() == op.into.num_pieces();  // the order may differ
  for (int i = 0; i < op.into.num_pieces(); ++i)
    same_owners = same_owners && op.q.rows.owners.index_of(owner_of(op.into, i)) >= 0;
  if (!same_owners || !op.q.rows.heads.contains(op.heads) || !op.kv.rows.heads.contains(op.heads) ||
      !op.into.rows.heads.contains(op.heads))
    return report("queries, keys and results do not belong together");
  if (op.into.rows.branch != kEveryRow && op.into.rows.within != op.queries)
    report("writes other rows than its partial holds");
  const DilatedBranch& branch = sharded_.pattern.branches.at(size_t(op.branch));
  if (op.into.rows.branch == kEveryRow && branch.dilation_rate != 1)
    report(concat("branch ", op.branch, " is attended in place but does not cover every row"));
  const Region region{op.queries, op.heads};
  SlotState& slot = laid_out_for(op.into);
  for (int i = 0; i < op.into.num_pieces(); ++i) {
    PieceState& piece = slot.pieces.at(size_t(op.into.first_piece() + i));
    if (area(owner_of(op.into, i), piece.initialised, region) > 0) {
      if (op.into.slot == kOutputSlot) report("an attend overwrites rows of the output");
      piece = {};  // a scratch partial is written anew
    }
    piece.valid = true;
    piece.initialised.push_back(region);
    piece.sum.push_back({op.branch, op.queries, op.heads, op.kv.rows});
  }
}

void SymbolicRank::apply(const Delta& op, const Report& report) {
  for (const SlotView& view : {op.output, op.lse, op.grad_out}) read(view, report);
  if (has_forward(pass_) && op.lse.slot == kOutputSlot)  // complete, so early
    check_rows(kOutputSlot, report);
  const auto belongs = [&](SlotView output) {  // rows of a branch go to their places among all
    if (op.into.rows.branch == kEveryRow)
      output.rows.branch = kEveryRow, output.rows.within = op.into.rows.within;
    return same_rows(output, op.into);
  };
  const bool lse_alone = op.lse.rows.branch != kEveryRow;
  if (!belongs(op.output) || !belongs(op.lse) || !same_rows(op.grad_out, op.into) ||
      (lse_alone && op.lse.slot != op.output.slot))
    return report("statistics, outputs and gradients do not belong together");
  std::vector<PieceState> states(size_t(op.into.num_pieces()));
  for (size_t i = 0; i < states.size() && op.output.rows.branch != kEveryRow; ++i) {
    states[i].sum = laid_out_for(op.output).pieces.at(size_t(op.output.first_piece()) + i).sum;
    states[i].lse_alone = lse_alone;
  }
  write(op.into, std::move(states), report);
}

void SymbolicRank::apply(const AttendBackward& op, const Report& report) {
  for (const SlotView& view : {op.q, op.kv, op.grad_out}) read(view, report);
  const MixRule mix = sharded_.pattern.mix;
  std::vector<Contribution> attended;  // none: merged
  if (mix != MixRule::kLse) attended = {{op.branch, op.queries, op.heads, op.kv.rows}};
  for (const PieceState& piece : read(op.statistics, report))
    if (piece.sum != attended || piece.lse_alone == mixes_by_lse(mix))
      report("the statistics are those of other keys");
  for (const SlotView& view : {op.grad_out, op.statistics, op.into_q})
    if (view.rows != op.q.rows) report("rows of queries do not belong together");
  if (op.into_kv.rows != op.kv.rows) report("keys and their gradients do not belong together");
  for (const SlotView& view : {op.q, op.kv})
    if (view.rows.branch != kEveryRow && view.rows.branch != op.branch)
      report("mixes rows of different branches");
  if (!op.q.rows.heads.contains(op.heads) || !op.kv.rows.heads.contains(op.heads))
    return report("queries and keys do not belong together");
  add_gradient(op.into_q, {op.queries, op.heads}, {op.branch, op.queries, op.heads, op.kv.rows},
               report);
  Slice queries = op.q.rows;
  queries.within = intersect(queries.within, op.queries);
  const Region keys{op.kv.rows.within, op.heads};
  add_gradient(op.into_kv, keys, {op.branch, keys.tokens, op.heads, queries}, report);
}

void SymbolicRank::add_gradient(const SlotView& into, const Region& region,
                                const Contribution& what, const Report& report) {
  SlotState& slot = laid_out_for(into);
  for (int i = 0; i < into.num_pieces(); ++i) {
    PieceState& piece = slot.pieces.at(size_t(into.first_piece() + i));
    const Rank owner = owner_of(into, i);
    if (area(owner, piece.initialised, region) < area(owner, {region}, region))
      report("adds to gradients that hold nothing yet");
    piece.add({what});
  }
}

void SymbolicRank::apply(const Merge& op, const Report& report) {
  const std::vector<PieceState> from = read(op.from, report);
  const bool gradient = holds_sum(kinds_.at(size_t(op.from.slot)));
  if (!gradient && op.from.pieces_of_a_row() > 1)
    return report("partials of the same rows are merged by one op");
  SlotState& into = laid_out_for(op.into);
  for (int i = 0; i < op.from.num_pieces(); ++i) {
    const PieceState& part = from[size_t(i)];
    const Rank owner = owner_of(op.from, i);
    int target = -1;
    for (int j = 0; j < op.into.num_pieces(); ++j)
      if (owner_of(op.into, j) == owner && heads_of(op.into, j).contains(heads_of(op.from, i)))
        target = j;
    if (target < 0)
      return report(concat("merges rows of rank ", owner, ", which the target does not hold"));
    if (!gradient && part.valid && part.sum.empty())
      report("a merge reads a partial that holds no result or was merged already");
    PieceState& piece = into.pieces.at(size_t(op.into.first_piece() + target));
    if (!piece.has_lse || !part.has_lse)
      report("a merge needs the LSE of rows that came as a result");
    for (const Region& r : part.initialised)
      if (area(owner, piece.initialised, r) < area(owner, part.initialised, r))
        report("a merge adds to rows that hold nothing yet");
    piece.add(part.sum);
    // A gradient may be 0, and stays where it is: a second merge of it shows in the sums.
    if (!gradient)
      slots_[size_t(op.from.slot)].pieces.at(size_t(op.from.first_piece() + i)).sum.clear();
  }
}

void SymbolicRank::apply(const Reset& op, const Report&) {
  SlotState& slot = laid_out_for(op.into);
  for (int i = 0; i < op.into.num_pieces(); ++i)
    slot.pieces.at(size_t(op.into.first_piece() + i)) = {
        .valid = true, .sum = {}, .initialised = {{sharded_.all_tokens(), heads_of(op.into, i)}}};
}

void SymbolicRank::check_output(const Report& report) {
  if (has_layers(scope_)) return check_model(report);
  if (has_forward(pass_)) check_rows(kOutputSlot, report);
  if (!has_backward(pass_)) return;
  check_rows(kGradQuerySlot, report);
  check_rows(kGradKvSlot, report);
}

void SymbolicRank::check_rows(int slot, const Report& report) {
  const int64_t rows = sharded_.layout.shard(rank_).tokens() * sharded_.problem.num_heads;
  const int64_t initialised = area(rank_, slots_[size_t(slot)].pieces.at(0).initialised,
                                   {sharded_.all_tokens(), sharded_.all_heads()});
  if (rows != initialised)
    report(concat("the output initialises ", initialised, " of ", rows, " rows"));
  for (int b = 0; b < int(sharded_.pattern.branches.size()); ++b) check_branch(slot, b, report);
}

void SymbolicRank::check_branch(int slot, int b, const Report& report) {
  const RowMap own(sharded_, kinds_[size_t(slot)], slots_[kQuerySlot].rows);
  const auto& sum = slots_[size_t(slot)].pieces.at(0).sum;
  const bool heads_alike =
      std::ranges::count(sum, sharded_.all_heads(), &Contribution::heads) == std::ssize(sum);
  const BranchRows rows(sharded_.pattern, b, sharded_.problem);
  std::set<int64_t> offsets_done;  // heads of one offset attend to the same rows
  int faults = 0;
  for (int64_t head = 0; head < sharded_.problem.num_heads && faults < 5; ++head) {
    if (heads_alike && !offsets_done.insert(rows.offset_of(head)).second) continue;
    own.for_each_run(
        own.pieces()[0], b, head, sharded_.all_tokens(),
        [&](const TokenRange& run, int64_t segment) {
          if (faults >= 5 || right_pairs(slot, b, head, segment, run)) return;
          ++faults;
          report(concat("branch ", b, ", head ", head, ", segment ", segment,
                        slot == kGradKvSlot
                            ? ": the queries whose gradients arrived are not the pattern's"
                            : ": the keys attended to are not the pattern's",
                        ", each once"));
        });
  }
}

// True when the contributions to these rows are the pattern's keys, each once; to gradients of K
// and V, its queries. Rows that the mask hides from all of the run may be there or not.
bool SymbolicRank::right_pairs(int slot, int b, int64_t head, int64_t segment,
                               const TokenRange& run) const {
  const bool own_keys = slot == kGradKvSlot;
  const TensorKind others_kind = own_keys ? TensorKind::kQuery : TensorKind::kKeyValue;
  const BranchRows rows(sharded_.pattern, b, sharded_.problem);
  const BranchRows others = branch_rows(sharded_, others_kind, b);
  TokenInterval visible = sharded_.all_tokens();
  if (sharded_.problem.causal)
    (own_keys ? visible.begin : visible.end) = own_keys ? run.first : run.last() + 1;
  std::vector<TokenRange> expected, found;
  for (const TokenInterval& scope : rows.key_scope(segment)) {
    const TokenInterval seen = intersect(scope, visible);
    others.for_each_run(others.offset_of(head), seen,
                        [&](int64_t, const TokenRange& r) { expected.push_back(r); });
    for (const Contribution& c : slots_[size_t(slot)].pieces.at(0).sum) {
      if (c.branch != b || !c.heads.contains(head)) continue;
      const bool first = c.rows.contains(run.first), last = c.rows.contains(run.last());
      if (first != last) return false;  // an attend takes only some rows of a run
      if (!first) continue;
      const RowMap map(sharded_, others_kind, c.others);
      for (const auto& piece : map.pieces())
        map.for_each_run(piece, b, head, scope,
                         [&](const TokenRange& r, int64_t) { found.push_back(clip(r, seen)); });
    }
  }
  return same_tokens(std::move(found), std::move(expected));
}

}  // namespace longnet
