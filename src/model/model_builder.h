// ModelBuilder: a rank's program of a layer or a model, op by op.
//
// Its first slots are those of one layer's attention, kQuerySlot to kGradKvSlot, then those of the
// weights and of their gradients, as Parameters lays them out.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/model.h"
#include "schedule/program.h"
#include "schedule/row_map.h"

namespace longnet {

class ModelBuilder {
 public:
  ModelBuilder(const Parameters& parameters, const ShardedProblem& sharded, Rank rank, Scope scope,
               Pass pass);

  const ShardedProblem& sharded() const { return sharded_; }
  const RankGrid& grid() const { return sharded_.layout.grid(); }
  Rank rank() const { return rank_; }
  Scope scope() const { return program_.scope; }
  const Parameters& parameters() const { return parameters_; }
  int64_t num_rows() const { return sharded_.layout.shard(rank_).tokens() * problem().batch; }
  // Columns of the heads that are here, of queries and of keys; and of the model.
  int64_t attended_width() const { return problem().num_heads * problem().head_dim; }
  int64_t key_width() const { return problem().num_kv_heads * problem().head_dim; }
  int64_t width() const { return attended_width() * grid().head_groups; }
  bool splits_heads() const { return grid().head_groups > 1; }

  // ---- slots ----

  int add_slot(TensorKind kind, SlotTag tag, int64_t bytes);
  int add_attention_slot(TensorKind kind, SlotTag tag);
  // A slot of values, in one part a rank, or of this rank alone.
  SlotView add_shared_values(SlotTag tag, int64_t count);
  SlotView add_values(SlotTag tag, int64_t count, TensorKind kind = TensorKind::kValues);
  // One value a parameter, in equal parts, each a whole number of rows of attention (BoundProgram
  // adds these).
  SlotView add_parameter_values(SlotTag tag);
  // Adds a matrix of activations in the type that Q is stored in.
  MatrixView add_matrix(int64_t rows, int64_t cols, SlotTag tag = SlotTag::kActivations) {
    return {add_values(tag, rows * cols, TensorKind::kStored), 0, rows, cols};
  }
  // Adds a matrix of activations with a row for each token of the rank.
  MatrixView add_activations(int64_t cols) { return add_matrix(num_rows(), cols); }
  // Adds activations as wide as the model, which ranks with other heads of the same tokens have as
  // well. Where ranks split heads, they sum these rows up, in fp32.
  MatrixView add_whole_rows(SlotTag tag = SlotTag::kActivations) {
    MatrixView x = add_values_of_tokens(tag, num_rows() * width());
    x.rows = num_rows(), x.cols = width();
    return x;
  }
  // Two floats a row, of each rank with the same tokens.
  MatrixView add_row_parts() {
    const int64_t one = 2 * num_rows(), parts = grid().head_groups;
    MatrixView x = add_values_of_tokens(SlotTag::kActivations, one * parts);
    x.rows = parts, x.cols = one;
    return x;
  }
  MatrixView attention_rows(int slot, int64_t cols, int64_t first = 0) const {
    return {{slot, own()}, first, num_rows(), cols};
  }

  const SlotView& weights() const { return weights_; }
  const SlotView& gradients() const { return gradients_; }
  MatrixView weight(std::string_view name) const { return of(weights_, name); }
  MatrixView gradient(std::string_view name) const { return of(gradients_, name); }

  // ---- ops ----

  // An op after all that came before it.
  void add(Action what);
  void rows(RowFunction function, std::vector<MatrixView> from, std::vector<MatrixView> into,
            bool accumulate = false) {
    add(RowWise{{std::move(from), std::move(into), accumulate}, function});
  }
  // into += a^T b; into = or += a b^T, of_heads: as a part of a sum over heads.
  void add_product_of_transposed(const MatrixView& a, const MatrixView& b, const MatrixView& into) {
    add(Gemm{{{a, b}, {into}, true}, true, false});
  }
  void multiply_transposed(const MatrixView& a, const MatrixView& b, const MatrixView& into,
                           bool accumulate = false, bool of_heads = false) {
    add(Gemm{{{a, b}, {into}, accumulate, of_heads}, false, true});
  }

  // Add the layer normalisation, or the linear function, whose parameters have this name.
  void norm(const std::string& name, const MatrixView& x, const MatrixView& into);
  void norm_backward(const std::string& name, const MatrixView& x, const MatrixView& grad_y,
                     const MatrixView& grad_x, bool accumulate = false);
  void linear(const std::string& name, const MatrixView& x, const MatrixView& into);
  // The gradients of weights and bias, which need x and dy.
  void weight_gradients(const std::string& name, const MatrixView& x, const MatrixView& grad_y);
  void linear_backward(const std::string& name, const MatrixView& grad_y, const MatrixView& grad_x,
                       bool accumulate = false, bool of_heads = false);

  // `x` becomes the sum of those of all ranks with the same tokens.
  void sum_over_heads(const MatrixView& x);
  // Add norm and norm_backward of rows whose columns the ranks with the same tokens split.
  // add_row_parts makes `moments` and `sums`.
  void split_norm(const std::string& name, const MatrixView& x, const MatrixView& moments,
                  const MatrixView& into);
  void split_norm_backward(const std::string& name, const MatrixView& x, const MatrixView& grad,
                           const MatrixView& moments, const MatrixView& sums,
                           const MatrixView& grad_x);
  // Adds a linear function of rows whose columns the ranks with the same tokens split: its sum over
  // these ranks, plus `x`.
  void split_linear(const std::string& name, const MatrixView& columns, const MatrixView& x,
                    const MatrixView& into);

  // The ops of an attention's program on the rank's sequence group, whose slots are these, and
  // `scratch` from its first other slot on, which grows where it has too few: those without
  // dependencies after all that came before, and what comes next after those that none of them
  // waits for.
  void append(const RankProgram& section, std::vector<int> slots, std::vector<int>& scratch);

  RankProgram take() { return std::move(program_); }

 private:
  const AttentionProblem& problem() const { return sharded_.problem; }
  Slice own() const {
    return {kEveryRow, {.first = rank_}, sharded_.all_tokens(), sharded_.all_heads()};
  }
  MatrixView of(const SlotView& values, std::string_view name) const;
  // Adds a slot of `count` values in equal parts, one for each rank with the same tokens.
  MatrixView add_values_of_tokens(SlotTag tag, int64_t count) {
    const auto kind = splits_heads() ? TensorKind::kValues : TensorKind::kStored;
    return {{add_slot(kind, tag, count * row_bytes(problem(), kind)),
             {kAllValues, grid().same_tokens(rank_), {0, count}, {0, 1}}}};
  }
  // The part of this rank, of add_row_parts.
  MatrixView own_part(const MatrixView& parts) const {
    const int me = grid().head_group(rank_);
    return {parts.view.piece(me), me * parts.cols, parts.cols / 2, 2};
  }
  void gather(const MatrixView& parts) { add(AllGather{grid().same_tokens(rank_), parts.view}); }

  const Parameters& parameters_;
  const ShardedProblem& sharded_;
  Rank rank_;
  RankProgram program_;
  std::vector<OpId> last_;  // ops that the next one waits for
  SlotView weights_, gradients_;
};

}  // namespace longnet
