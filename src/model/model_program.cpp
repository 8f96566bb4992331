#include "model/model_program.h"

#include <algorithm>

#include "core/check.h"
#include "model/layer_program.h"
#include "model/model_builder.h"

namespace longnet {
namespace {

class Step {
 public:
  Step(const ModelShape& shape, const ShardedProblem& sharded, const Schedule& attention,
       const Schedule& backward, const StepOptions& options, Rank rank)
      : shape_(shape),
        options_(options),
        grid_(sharded.layout.grid()),
        parameters_(shape, sharded.problem, options.scope,
                    {grid_.head_group(rank), grid_.head_groups}),
        build_(parameters_, sharded, rank, options.scope, options.pass),
        layers_(shape, attention.program(grid_.position(rank)),
                backward.program(grid_.position(rank)), build_),
        rows_(build_.num_rows()) {}

  RankProgram make() {
    const bool model = options_.scope == Scope::kModel, backward = has_backward(options_.pass);
    if (model) add_slots();
    layers_.add_slots();
    if (!options_.with_ops) return build_.take();
    if (model) {
      build_.add(Reset{sums_.piece(build_.rank())});
      build_.rows(RowFunction::kEmbed, {tokens(), build_.weight("embedding")}, {layers_.input()});
    }
    for (int64_t l = 0; l < shape_.layers; ++l) layers_.forward(l);
    if (backward) build_.add(Reset{build_.gradients()});
    if (model) loss();
    for (int64_t l = shape_.layers; backward && l-- > 0;) layers_.backward(l);
    if (!model) return build_.take();
    if (backward)
      build_.rows(RowFunction::kEmbedBackward, {tokens(), layers_.gradient()},
                  {build_.gradient("embedding")});
    if (options_.pass == Pass::kStep)
      update();
    else
      gather_sums();
    return build_.take();
  }

 private:
  void add_slots() {
    tokens_ = build_.add_values(SlotTag::kTokens, 2 * rows_);
    schedule_ = build_.add_values(SlotTag::kTokens, 2);
    const int64_t moments = values_of(updated(build_.weights())).length();
    first_moments_ = build_.add_values(SlotTag::kOptimizer, moments);
    second_moments_ = build_.add_values(SlotTag::kOptimizer, moments);
    sums_ = build_.add_shared_values(SlotTag::kActivations, int64_t{4} * grid_.count());
    check(tokens_.slot == kTokenSlot && sums_.slot == kSumsSlot, "slots out of order");
    const int64_t fit = options_.logits_values / shape_.vocabulary;
    logit_rows_ = std::clamp<int64_t>(std::max(fit, ceil_div(rows_, int64_t{256})), 1,
                                      std::max<int64_t>(rows_, 1));
    logits_ = {build_.add_values(SlotTag::kLogits, logit_rows_ * shape_.vocabulary), 0, logit_rows_,
               shape_.vocabulary};
  }
  MatrixView tokens() const { return {tokens_, 0, rows_, 1}; }

  // The loss of all own rows, some at a time, and the gradient of the last layer's output.
  void loss() {
    const MatrixView normed = layers_.scratch(), grad = layers_.more_scratch();
    const MatrixView embedding = build_.weight("embedding");
    build_.norm("final_norm", layers_.output(), normed);
    const AttentionProblem& p = build_.sharded().problem;
    const double total = double(p.seq_len * p.batch) * grid_.replicas;
    for (int64_t row = 0; row < rows_; row += logit_rows_) {
      const int64_t rows = std::min(logit_rows_, rows_ - row);
      const auto part = [&](const MatrixView& m) {
        return MatrixView{m.view, m.first + row * m.cols, rows, m.cols};
      };
      MatrixView logits = logits_;
      logits.rows = rows;
      build_.multiply_transposed(part(normed), embedding, logits);
      build_.add(
          CrossEntropy{{{{tokens_, rows_ + row, rows, 1}}, {logits, own_sum(2)}, true}, 1 / total});
      if (!has_backward(options_.pass)) continue;
      build_.add_product_of_transposed(logits, part(normed), build_.gradient("embedding"));
      build_.add(Gemm{{{logits, embedding}, {part(grad)}}});
    }
    if (has_backward(options_.pass))
      build_.norm_backward("final_norm", layers_.output(), grad, layers_.gradient());
  }

  // ---- the step ----

  // A double of this rank's part of the sums, which are four floats a rank.
  MatrixView own_sum(int64_t at) const {
    return {sums_.piece(build_.rank()), int64_t{4} * build_.rank() + at, 1, 2};
  }

  // Values that all head groups have count once.
  void add_squares(const SlotView& own, TokenInterval part) {
    const auto add = [&](TokenInterval values) {
      if (!values.empty())
        build_.rows(RowFunction::kSumOfSquares, {{own, values.begin, 1, values.length()}},
                    {own_sum(0)}, true);
    };
    if (grid_.head_group(build_.rank()) > 0)
      for (const TokenInterval& shared : build_.parameters().shared()) {
        add(intersect(part, {part.begin, shared.begin}));
        part.begin = std::max(part.begin, std::min(shared.end, part.end));
      }
    add(part);
  }
  // The part of `values`, one a parameter, that this rank updates.
  SlotView updated(const SlotView& values) const {
    const RankGroup all = grid_.same_heads(build_.rank());
    return shape_.shard_optimizer ? values.piece(all.index_of(build_.rank())) : values;
  }
  void gather_sums() {
    if (grid_.count() > 1) build_.add(AllGather{grid_.everyone(), sums_});
  }
  void update() {
    const RankGroup all = grid_.same_heads(build_.rank());
    const SlotView& gradients = build_.gradients();
    if (all.count > 1) build_.add(ReduceScatter{all, gradients});
    const SlotView summed = gradients.piece(all.index_of(build_.rank()));
    add_squares(summed, values_of(summed));
    gather_sums();
    if (all.count > 1 && !shape_.shard_optimizer) build_.add(AllGather{all, gradients});
    const TokenInterval own = values_of(updated(gradients));  // where moments begin
    const auto update = [&](TokenInterval values, double decay) {
      values = intersect(values, own);
      if (values.empty()) return;
      const auto in = [&](const SlotView& slot, int64_t begin = 0) {
        return MatrixView{slot, values.begin - begin, 1, values.length()};
      };
      const MatrixView sums{sums_, 0, 1, int64_t{4} * grid_.count()};
      build_.add(Update{{{in(updated(gradients)), sums, {schedule_, 0, 1, 2}},
                         {in(updated(build_.weights())), in(first_moments_, own.begin),
                          in(second_moments_, own.begin)}},
                        decay,
                        options_.clip_norm});
    };
    const Parameters& parameters = build_.parameters();
    update({0, parameters.matrices()}, options_.decay);
    update({parameters.matrices(), parameters.count()}, 0);
    if (all.count > 1 && shape_.shard_optimizer) build_.add(AllGather{all, build_.weights()});
  }

  const ModelShape& shape_;
  const StepOptions& options_;
  const RankGrid& grid_;
  Parameters parameters_;
  ModelBuilder build_;
  LayerProgram layers_;
  int64_t rows_, logit_rows_ = 0;
  SlotView tokens_, schedule_, first_moments_, second_moments_, sums_;
  MatrixView logits_;
};

}  // namespace

Schedule training_step(const ModelShape& shape, const Schedule& attention,
                       const Schedule& attention_backward, const StepOptions& options) {
  ShardedProblem sharded = attention.sharded;
  sharded.layout = sharded.layout.replicated(options.replicas, options.head_groups);
  const auto program = [=](Rank rank) {
    return Step(shape, sharded, attention, attention_backward, options, rank).make();
  };
  return {sharded, program, attention.algorithm, {}, attention.inner_group};
}

}  // namespace longnet
