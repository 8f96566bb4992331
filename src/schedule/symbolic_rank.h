// Part of check_schedule: one rank's memory, symbolically. Slots hold "these pieces of that slice";
// partial results are lists of contributions. Ops are applied in the order in which they happen.
//
//   N = 8, P = 2, branches {4, 1} and {8, 2}, rank 0 (tokens 0 to 3), where its program ends:
//
//   slot          rows                     contributions to its piece
//   0 q, 1 kv     all of rank 0            none: inputs
//   3 gathered    branch 1, of ranks 0 1   none: rows that a message brought
//   2 output      all of rank 0            branch 0, queries 0..4, all heads: keys of slot 1
//                                          branch 1, queries 0..4, all heads: keys of slot 3
//   4 partial     branch 1, of rank 0      none any more: merged into the output
//
// check_output() compares them with the pattern, row by row and key by key.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "schedule/program.h"

namespace longnet {

// A statement about what has been added to rows or values.
//   partial: "the rows of `branch` in `rows`, for `heads`, have attended to the keys of `others`"
//   gradients of K and V: "... have been attended to by the queries of `others`"
//   gradients of weights (branch kAllValues): "the rows `rows` of the batch, counted over all
//     ranks, have added to the values `heads`", from a matrix in the slot `others.branch`
//   sum over ranks with the same tokens: "the heads of group `heads.first` have added to it"
struct Contribution {
  int branch;
  TokenInterval rows;
  HeadRange heads;
  Slice others;
  bool operator==(const Contribution&) const = default;
};

// Rows of a partial that hold a value.
struct Region {
  TokenInterval tokens;
  HeadRange heads;
};

// Content of a piece; the lists are for partials and gradients only. Statistics with delta of a
// branch alone have the `sum` of the partial that they were made of.
struct PieceState {
  bool valid = false;
  bool has_lse = true;     // partials: false when made from a result
  bool lse_alone = false;  // statistics: L is that of a branch alone
  bool of_model = false;   // written by a model's op, not a sum of an attention's any more
  std::vector<Contribution> sum = {};
  std::vector<Region> initialised = {};
  void add(const std::vector<Contribution>& more) {
    sum.insert(sum.end(), more.begin(), more.end());
  }
};

class SymbolicRank {
 public:
  using Report = std::function<void(const std::string&)>;

  SymbolicRank(const ShardedProblem& sharded, const RankProgram& program, Rank rank);

  // Ops that stay on the rank.
  void apply(const Pack& op, const Report& report);
  void apply(const Attend& op, const Report& report);
  void apply(const Merge& op, const Report& report);
  void apply(const Reset& op, const Report& report);
  void apply(const Delta& op, const Report& report);
  void apply(const AttendBackward& op, const Report& report);
  void apply(const ModelOp& op, const Report& report);
  void apply(const Update& op, const Report& report);

  // The content that a message carries (reports pieces that are not there), and its arrival.
  std::vector<PieceState> read(const SlotView& view, const Report& report);
  void write(const SlotView& view, std::vector<PieceState> states, const Report& report);

  // Reports when the output, or the gradients, do not hold exactly the pattern's pairs.
  void check_output(const Report& report);

 private:
  struct SlotState {
    Slice rows;
    std::vector<PieceState> pieces;
  };
  SlotState& laid_out_for(const SlotView& view);
  int64_t area(Rank owner, const std::vector<Region>& regions, const Region& within) const;
  void add_gradient(const SlotView& into, const Region& region, const Contribution& what,
                    const Report& report);
  void check_rows(int slot, const Report& report);
  void check_model(const Report& report);
  void check_heads(int slot, const std::vector<PieceState>& pieces, const Report& report);
  TokenInterval own_batch_rows() const;
  void check_gradients(const SlotView& view, TokenInterval all, TokenInterval rows,
                       const Report& report);
  void add_weight_gradient(const ModelOp& op, const MatrixView& into);
  void check_branch(int slot, int branch, const Report& report);
  bool right_pairs(int slot, int branch, int64_t head, int64_t segment,
                   const TokenRange& run) const;

  const ShardedProblem& sharded_;
  Rank rank_;
  std::vector<SlotState> slots_;
  std::vector<TensorKind> kinds_;  // kinds of the slots
  std::vector<bool> inputs_;       // the slots that are inputs
  Pass pass_;
  std::vector<SlotTag> tags_;
  Scope scope_;
  int64_t weights_end_ = 0;  // end of the values of weights that ops have read
};

}  // namespace longnet
