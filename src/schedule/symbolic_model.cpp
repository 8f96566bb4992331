// Part of check_schedule: ops of a model's layers.
#include <algorithm>
#include <map>
#include <vector>

#include "core/check.h"
#include "schedule/row_map.h"
#include "schedule/symbolic_rank.h"

namespace longnet {
namespace {

// 0 of ranks with other heads, whose weights are others.
int64_t rows_of(const ShardedProblem& s, Rank rank, Rank like) {
  const RankGrid& grid = s.layout.grid();
  if (grid.head_group(rank) != grid.head_group(like)) return 0;
  return s.layout.shard(rank).tokens() * s.problem.batch;
}

// Contribution to a sum over ranks with the same tokens: the heads of `group` have added to it.
Contribution heads_added(int group) { return {kAllValues, {}, {group, 1}, {}}; }

// True when the intervals lie one behind the other and fill `all`.
bool tile(std::vector<TokenInterval> intervals, TokenInterval all) {
  std::ranges::sort(intervals);
  for (const TokenInterval& i : intervals) {
    if (i.begin != all.begin) return false;
    all.begin = i.end;
  }
  return all.empty();
}

}  // namespace

void SymbolicRank::apply(const ModelOp& op, const Report& report) {
  const auto tag_of = [&](const MatrixView& m) { return tags_.at(size_t(m.view.slot)); };
  for (const MatrixView& m : op.from) {
    const TensorKind kind = kinds_.at(size_t(m.view.slot));
    const std::vector<PieceState> states = read(m.view, report);
    if (kind == TensorKind::kValues) check_heads(m.view.slot, states, report);
    if (tag_of(m) == SlotTag::kWeights)
      weights_end_ = std::max(weights_end_, m.first + m.rows * m.cols);
    const bool of_attention = kind == TensorKind::kPartial || kind == TensorKind::kGradQuery ||
                              kind == TensorKind::kGradKeyValue;
    if (of_attention && !states.at(0).of_model) check_rows(m.view.slot, report);
  }
  for (size_t i = 0; i < op.into.size(); ++i) {
    const MatrixView& into = op.into[i];
    if (tag_of(into) == SlotTag::kWeightGradients) {
      read(into.view, report);
      add_weight_gradient(op, into);
      continue;
    }
    const bool last = i + 1 == op.into.size();
    if (op.accumulate && last) read(into.view, report);
    if (op.accumulate && last && op.of_heads) continue;
    // The output of other queries is gone.
    if (into.view.slot == kQuerySlot) slots_[kOutputSlot].pieces.assign(1, {});
    PieceState state{.of_model = true};
    if (last && op.of_heads) state.add({heads_added(sharded_.layout.grid().head_group(rank_))});
    write(into.view, std::vector<PieceState>(size_t(into.view.num_pieces()), state), report);
  }
}

// A sum over ranks with the same tokens has got the part of each, once.
void SymbolicRank::check_heads(int slot, const std::vector<PieceState>& pieces,
                               const Report& report) {
  if (tags_.at(size_t(slot)) != SlotTag::kActivations) return;
  for (const PieceState& piece : pieces)
    for (int g = 0; g < sharded_.layout.grid().head_groups && !piece.sum.empty(); ++g)
      if (std::ranges::count(piece.sum, heads_added(g)) != 1)
        report(concat("slot ", slot, " does not hold what head group ", g, " adds, once"));
}

// Rows of the batch that this rank has, counted over all ranks with its heads.
TokenInterval SymbolicRank::own_batch_rows() const {
  int64_t before = 0;
  for (Rank r = 0; r < rank_; ++r) before += rows_of(sharded_, r, rank_);
  return {before, before + rows_of(sharded_, rank_, rank_)};
}

void SymbolicRank::add_weight_gradient(const ModelOp& op, const MatrixView& into) {
  const TokenInterval own = own_batch_rows();
  if (own.empty()) return;
  int64_t first = 0;  // own rows that come in other ops
  for (const MatrixView& m : op.from)
    if (tags_.at(size_t(m.view.slot)) != SlotTag::kWeights)
      first = std::max(first, m.first / m.cols % own.length());
  const MatrixView& rows = op.from.front();
  const TokenInterval added{own.begin + first, own.begin + first + rows.rows};
  const HeadRange values{into.first, into.rows * into.cols};
  Slice source;
  source.branch = rows.view.slot;
  for (PieceState& piece : laid_out_for(into.view).pieces)
    piece.add({{kAllValues, added, values, source}});
}

// Each value of the views has got a part from each of these rows of the batch, once.
void SymbolicRank::check_gradients(const SlotView& view, TokenInterval all, TokenInterval rows,
                                   const Report& report) {
  const SlotState& slot = slots_.at(size_t(view.slot));
  for (int i = 0; i < view.num_pieces(); ++i) {
    const int piece = view.first_piece() + i;
    const TokenInterval own = intersect(all, values_of({.rows = slot.rows, .pieces = {piece, 1}}));
    std::map<std::pair<HeadRange, int>, std::vector<TokenInterval>> added;
    for (const Contribution& c : slot.pieces.at(size_t(piece)).sum)
      if (!intersect(own, {c.heads.first, c.heads.end()}).empty())
        added[{c.heads, c.others.branch}].push_back(c.rows);
    int64_t reached = own.begin;
    for (const auto& [key, intervals] : added) {
      const HeadRange& values = key.first;
      if (!tile(intervals, rows))
        report(concat("gradients ", values.first, "..", values.end(),
                      " do not hold every row of the batch once"));
      if (values.first <= reached) reached = std::max(reached, values.end());
    }
    if (reached < own.end) report(concat("nothing adds to the gradient of value ", reached));
  }
}

void SymbolicRank::apply(const Update& op, const Report& report) {
  for (const MatrixView& m : op.from) read(m.view, report);
  const MatrixView& gradients = op.from.front();
  int64_t rows = 0;
  for (Rank r = 0; r < sharded_.layout.world_size(); ++r) rows += rows_of(sharded_, r, rank_);
  check_gradients(gradients.view,
                  {gradients.first, gradients.first + gradients.rows * gradients.cols}, {0, rows},
                  report);
  const SlotView& weights = op.into.front().view;
  SlotState& slot = slots_.at(size_t(weights.slot));
  for (int i = 0; i < slot.rows.num_pieces(); ++i)
    slot.pieces.at(size_t(i)).valid =
        weights.first_piece() <= i && i < weights.first_piece() + weights.num_pieces();
}

// Every rank ends with all weights; without an update, with gradients that its own rows have added
// to.
void SymbolicRank::check_model(const Report& report) {
  for (size_t i = 0; i < tags_.size(); ++i) {
    const SlotState& slot = slots_[i];
    if (kinds_[i] == TensorKind::kValues) check_heads(int(i), slot.pieces, report);
    if (tags_[i] == SlotTag::kWeights)
      for (const PieceState& piece : slot.pieces)
        if (!piece.valid) report("ends without the weights of another rank");
    const TokenInterval own = own_batch_rows();
    if (tags_[i] == SlotTag::kWeightGradients && pass_ == Pass::kForwardBackward && !own.empty())
      check_gradients({int(i), slot.rows}, {0, weights_end_}, own, report);
  }
}

}  // namespace longnet
