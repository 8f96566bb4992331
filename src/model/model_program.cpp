#include "model/model_program.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "model/model_builder.h"

namespace longnet {
namespace {

// What a layer keeps of its forward pass.
struct Layer {
  MatrixView x = {};                                 // its input
  std::vector<int> slots = {}, backward_slots = {};  // of its attention's programs; -1: scratch
  MatrixView q = {}, k = {}, v = {}, o = {};
  // Shared by all layers unless nothing is computed again.
  MatrixView norm, sub_norm, sum, ffn_norm, fc1, gelu, ffn_sub_norm;
};

class Step {
 public:
  Step(const ModelShape& shape, const Parameters& parameters, const Schedule& attention,
       const Schedule& backward, const StepOptions& options, Rank rank)
      : shape_(shape),
        parameters_(parameters),
        options_(options),
        sharded_(attention.sharded),
        rank_(rank),
        forward_(attention.program(rank)),
        backward_(backward.program(rank)),
        build_(sharded_, rank, options.pass),
        rows_(sharded_.layout.shard(rank).tokens() * sharded_.problem.batch),
        width_(sharded_.problem.num_heads * sharded_.problem.head_dim),
        key_width_(sharded_.problem.num_kv_heads * sharded_.problem.head_dim) {}

  RankProgram make() {
    add_fixed_slots();
    add_scratch();
    build_.add(Reset{sums_.piece(rank_)});
    build_.rows(RowFunction::kEmbed, {tokens(), weight("embedding")}, {layers_.front().x});
    for (size_t l = 0; l < layers_.size(); ++l) forward(l);
    if (has_backward(options_.pass)) build_.add(Reset{gradients_});
    loss();
    if (has_backward(options_.pass)) {
      for (size_t l = layers_.size(); l-- > 0;) backward(l);
      build_.rows(RowFunction::kEmbedBackward, {tokens(), grad_x_}, {gradient("embedding")});
    }
    if (options_.pass == Pass::kStep)
      update();
    else
      gather_sums();
    return build_.take();
  }

 private:
  // ---- slots ----

  int add_attention_slot(TensorKind kind, SlotTag tag) {
    return build_.add_slot(kind, tag, view_bytes(sharded_, kind, {.rows = build_.own()}));
  }
  void add_fixed_slots() {
    using enum TensorKind;
    const std::pair<TensorKind, SlotTag> fixed[] = {{kQuery, SlotTag::kQuery},
                                                    {kKeyValue, SlotTag::kKeyValue},
                                                    {kPartial, SlotTag::kOutput},
                                                    {kGradOut, SlotTag::kGradOut},
                                                    {kStatistics, SlotTag::kStatistics},
                                                    {kGradQuery, SlotTag::kGradQuery},
                                                    {kGradKeyValue, SlotTag::kGradKeyValue}};
    for (const auto& [kind, tag] : fixed) add_attention_slot(kind, tag);
    tokens_ = build_.add_values(SlotTag::kTokens, 2 * rows_);
    schedule_ = build_.add_values(SlotTag::kTokens, 2);
    // Parts of equal size, each a whole number of rows of attention (BoundProgram adds these).
    const int64_t unit = sharded_.layout.world_size() * std::lcm(sharded_.problem.head_dim, 16);
    const int64_t padded = ceil_div(parameters_.count(), unit) * unit;
    weights_ = build_.add_shared_values(SlotTag::kWeights, padded);
    first_moments_ = build_.add_shared_values(SlotTag::kOptimizer, padded);
    second_moments_ = build_.add_shared_values(SlotTag::kOptimizer, padded);
    gradients_ = build_.add_shared_values(SlotTag::kWeightGradients, padded);
    sums_ =
        build_.add_shared_values(SlotTag::kActivations, int64_t{4} * sharded_.layout.world_size());
    check(gradients_.slot == kWeightGradientSlot && sums_.slot == kSumsSlot, "slots out of order");
  }
  MatrixView activations(int64_t cols) { return build_.add_matrix(rows_, cols); }
  void add_scratch() {
    scratch_ = {.norm = activations(width_),
                .sub_norm = activations(width_),
                .sum = activations(width_),
                .ffn_norm = activations(width_),
                .fc1 = activations(shape_.ffn_width),
                .gelu = activations(shape_.ffn_width),
                .ffn_sub_norm = activations(shape_.ffn_width)};
    grad_x_ = activations(width_);
    grad_ffn_ = activations(shape_.ffn_width);
    grad_out_ = {{kGradOutSlot, build_.own()}, 0, rows_, width_};
    grad_q_ = {{kGradQuerySlot, build_.own()}, 0, rows_, width_};
    grad_k_ = {{kGradKvSlot, build_.own()}, 0, rows_, key_width_};
    grad_v_ = {{kGradKvSlot, build_.own()}, rows_ * key_width_, rows_, key_width_};
    const int64_t fit = options_.logits_values / shape_.vocabulary;
    logit_rows_ = std::clamp<int64_t>(std::max(fit, ceil_div(rows_, int64_t{256})), 1,
                                      std::max<int64_t>(rows_, 1));
    logits_ = build_.add_matrix(logit_rows_, shape_.vocabulary, SlotTag::kLogits);
    for (int64_t l = 0; l < shape_.layers; ++l) add_layer(l);
    last_x_ = activations(width_);
  }
  void add_layer(int64_t l) {
    Layer layer = scratch_;
    layer.x = activations(width_);
    if (shape_.recompute == Recompute::kNone)
      for (MatrixView* kept : {&layer.norm, &layer.sub_norm, &layer.sum, &layer.ffn_norm,
                               &layer.fc1, &layer.gelu, &layer.ffn_sub_norm})
        *kept = activations(kept->cols);
    layer.slots = {kQuerySlot, kKvSlot, kOutputSlot};
    if (l > 0 && shape_.recompute != Recompute::kFull)
      layer.slots = {add_attention_slot(TensorKind::kQuery, SlotTag::kQuery),
                     add_attention_slot(TensorKind::kKeyValue, SlotTag::kKeyValue),
                     add_attention_slot(TensorKind::kPartial, SlotTag::kOutput)};
    layer.backward_slots = layer.slots;
    for (const int slot : {kGradOutSlot, kStatisticsSlot, kGradQuerySlot, kGradKvSlot})
      layer.backward_slots.push_back(slot);
    layer.slots.resize(forward_.slots.size(), -1);
    layer.backward_slots.resize(backward_.slots.size(), -1);
    if (l > 0 && shape_.recompute == Recompute::kFull)
      layer.slots = layers_[0].slots, layer.backward_slots = layers_[0].backward_slots;
    for (const Kept& kept : backward_.kept) {
      const Slot& slot = backward_.slots[size_t(kept.view.slot)];
      int& place = layer.slots[size_t(kept.forward)];
      if (place < 0) place = build_.add_slot(slot.kind, slot.tag, slot.bytes);
      layer.backward_slots[size_t(kept.view.slot)] = place;
    }
    layer.q = {{layer.slots[kQuerySlot], build_.own()}, 0, rows_, width_};
    layer.k = {{layer.slots[kKvSlot], build_.own()}, 0, rows_, key_width_};
    layer.v = {{layer.slots[kKvSlot], build_.own()}, rows_ * key_width_, rows_, key_width_};
    layer.o = {{layer.slots[kOutputSlot], build_.own()}, 0, rows_, width_};
    layers_.push_back(std::move(layer));
  }

  MatrixView of(const SlotView& values, const Parameter& p) const {
    return {values, p.first, p.rows, p.cols};
  }
  MatrixView weight(std::string_view name) const { return of(weights_, parameters_.find(name)); }
  MatrixView gradient(std::string_view name) const {
    return of(gradients_, parameters_.find(name));
  }
  MatrixView tokens() const { return {tokens_, 0, rows_, 1}; }

  // ---- the parts of layers ----

  void norm(const std::string& name, const MatrixView& x, const MatrixView& into) {
    build_.rows(RowFunction::kLayerNorm, {x, weight(name + ".gain"), weight(name + ".bias")},
                {into});
  }
  void norm_backward(const std::string& name, const MatrixView& x, const MatrixView& grad_y,
                     const MatrixView& grad_x, bool accumulate = false) {
    build_.rows(RowFunction::kLayerNormBackward, {x, grad_y, weight(name + ".gain")},
                {gradient(name + ".gain"), gradient(name + ".bias"), grad_x}, accumulate);
  }
  void linear(const std::string& name, const MatrixView& x, const MatrixView& into) {
    build_.multiply(x, weight(name + ".weight"), weight(name + ".bias"), into);
  }
  // The gradients of weights and bias, which need x and dy.
  void weight_gradients(const std::string& name, const MatrixView& x, const MatrixView& grad_y) {
    build_.add_product_of_transposed(x, grad_y, gradient(name + ".weight"));
    build_.rows(RowFunction::kAddColumns, {grad_y}, {gradient(name + ".bias")});
  }
  void linear_backward(const std::string& name, const MatrixView& grad_y, const MatrixView& grad_x,
                       bool accumulate = false) {
    build_.multiply_transposed(grad_y, weight(name + ".weight"), grad_x, accumulate);
  }
  void rotate(const MatrixView& x, bool keys, RowFunction function) {
    if (shape_.positions == Positions::kNone) return;
    RowWise op{{{x}, {x}}, function, keys};
    if (shape_.positions == Positions::kXpos) {
      // zeta^(N / 2 / scale) stays far from the ends of fp32 for every N: 512 up to 16K tokens.
      op.xpos_scale = std::max(512.0, double(sharded_.problem.seq_len) / 32);
      op.xpos_centre = double(sharded_.problem.seq_len) / 2;
    }
    build_.add(std::move(op));
  }

  static std::string prefix(size_t l) { return concat("layers.", l, "."); }

  void forward(size_t l) {
    const Layer& y = layers_[l];
    attend(l);
    after_attention(l);
    const MatrixView& next = l + 1 < layers_.size() ? layers_[l + 1].x : last_x_;
    linear(prefix(l) + "fc2", y.ffn_sub_norm, next);
    build_.rows(RowFunction::kAdd, {y.sum}, {next}, true);
  }
  // From the layer's input to attention's output.
  void attend(size_t l) {
    const Layer& y = layers_[l];
    const std::string name = prefix(l);
    norm(name + "norm", y.x, y.norm);
    linear(name + "query", y.norm, y.q);
    linear(name + "key", y.norm, y.k);
    linear(name + "value", y.norm, y.v);
    rotate(y.q, false, RowFunction::kRotate);
    rotate(y.k, true, RowFunction::kRotate);
    build_.append(forward_, y.slots, forward_scratch_);
  }
  // From attention's output to the input of fc2.
  void after_attention(size_t l) {
    const Layer& y = layers_[l];
    const std::string name = prefix(l);
    norm(name + "sub_norm", y.o, y.sub_norm);
    linear(name + "out", y.sub_norm, y.sum);
    build_.rows(RowFunction::kAdd, {y.x}, {y.sum}, true);
    norm(name + "ffn_norm", y.sum, y.ffn_norm);
    linear(name + "fc1", y.ffn_norm, y.fc1);
    build_.rows(RowFunction::kGelu, {y.fc1}, {y.gelu});
    norm(name + "ffn_sub_norm", y.gelu, y.ffn_sub_norm);
  }

  // The loss of all own rows, some at a time, and the gradient of the last layer's output.
  void loss() {
    const MatrixView normed = scratch_.norm, grad = scratch_.ffn_norm;
    norm("final_norm", last_x_, normed);
    const double total = double(sharded_.problem.seq_len * sharded_.problem.batch);
    for (int64_t row = 0; row < rows_; row += logit_rows_) {
      const int64_t rows = std::min(logit_rows_, rows_ - row);
      const auto part = [&](const MatrixView& m) {
        return MatrixView{m.view, m.first + row * m.cols, rows, m.cols};
      };
      MatrixView logits = logits_;
      logits.rows = rows;
      build_.multiply_transposed(part(normed), weight("embedding"), logits);
      build_.add(
          CrossEntropy{{{{tokens_, rows_ + row, rows, 1}}, {logits, own_sum(2)}, true}, 1 / total});
      if (!has_backward(options_.pass)) continue;
      build_.add_product_of_transposed(logits, part(normed), gradient("embedding"));
      build_.add(Gemm{{{logits, weight("embedding")}, {part(grad)}}});
    }
    if (has_backward(options_.pass)) norm_backward("final_norm", last_x_, grad, grad_x_);
  }

  void backward(size_t l) {
    const Layer& y = layers_[l];
    const std::string name = prefix(l);
    if (shape_.recompute == Recompute::kFull) attend(l);
    if (shape_.recompute != Recompute::kNone) after_attention(l);
    weight_gradients(name + "fc2", y.ffn_sub_norm, grad_x_);
    linear_backward(name + "fc2", grad_x_, grad_ffn_);
    norm_backward(name + "ffn_sub_norm", y.gelu, grad_ffn_, grad_ffn_);
    build_.rows(RowFunction::kGeluBackward, {y.fc1, grad_ffn_}, {grad_ffn_});
    weight_gradients(name + "fc1", y.ffn_norm, grad_ffn_);
    linear_backward(name + "fc1", grad_ffn_, y.ffn_norm);
    norm_backward(name + "ffn_norm", y.sum, y.ffn_norm, grad_x_, true);

    weight_gradients(name + "out", y.sub_norm, grad_x_);
    linear_backward(name + "out", grad_x_, y.sub_norm);
    norm_backward(name + "sub_norm", y.o, y.sub_norm, grad_out_);
    build_.append(backward_, y.backward_slots, backward_scratch_);
    rotate(grad_q_, false, RowFunction::kRotateBackward);
    rotate(grad_k_, true, RowFunction::kRotateBackward);

    if (shape_.recompute == Recompute::kKeepAttention) norm(name + "norm", y.x, y.norm);
    weight_gradients(name + "query", y.norm, grad_q_);
    weight_gradients(name + "key", y.norm, grad_k_);
    weight_gradients(name + "value", y.norm, grad_v_);
    linear_backward(name + "query", grad_q_, y.norm);
    linear_backward(name + "key", grad_k_, y.norm, true);
    linear_backward(name + "value", grad_v_, y.norm, true);
    norm_backward(name + "norm", y.x, y.norm, grad_x_, true);
  }

  // ---- the step ----

  // A double of this rank's part of the sums, which are four floats a rank.
  MatrixView own_sum(int64_t at) const {
    return {sums_.piece(rank_), int64_t{4} * rank_ + at, 1, 2};
  }

  void gather_sums() {
    if (const int world = sharded_.layout.world_size(); world > 1)
      build_.add(AllGather{{.count = world}, sums_});
  }
  void update() {
    const int world = sharded_.layout.world_size();
    const RankGroup all{.count = world};
    if (world > 1) build_.add(ReduceScatter{all, gradients_});
    const SlotView own = gradients_.piece(rank_);
    const TokenInterval part = values_of(own);
    build_.rows(RowFunction::kSumOfSquares, {{own, part.begin, 1, part.length()}}, {own_sum(0)});
    gather_sums();
    if (world > 1 && !shape_.shard_optimizer) build_.add(AllGather{all, gradients_});
    const auto update = [&](TokenInterval values, double decay) {
      const auto in = [&](SlotView slot) {
        if (shape_.shard_optimizer) {
          slot = slot.piece(rank_);
          values = intersect(values, part);
        }
        return MatrixView{slot, values.begin, 1, values.length()};
      };
      const MatrixView gradients = in(gradients_);
      if (values.empty()) return;
      build_.add(Update{{{gradients, {sums_, 0, 1, int64_t{4} * world}, {schedule_, 0, 1, 2}},
                         {in(weights_), in(first_moments_), in(second_moments_)}},
                        decay,
                        options_.clip_norm});
    };
    update({0, parameters_.matrices()}, options_.decay);
    update({parameters_.matrices(), parameters_.count()}, 0);
    if (world > 1 && shape_.shard_optimizer) build_.add(AllGather{all, weights_});
  }

  const ModelShape& shape_;
  const Parameters& parameters_;
  const StepOptions& options_;
  const ShardedProblem& sharded_;
  Rank rank_;
  RankProgram forward_, backward_;  // of attention
  ModelBuilder build_;
  int64_t rows_, width_, key_width_, logit_rows_ = 0;
  SlotView tokens_, schedule_, weights_, first_moments_, second_moments_, gradients_, sums_;
  MatrixView grad_x_, grad_ffn_, grad_out_, grad_q_, grad_k_, grad_v_, logits_, last_x_;
  Layer scratch_;
  std::vector<Layer> layers_;
  std::vector<int> forward_scratch_, backward_scratch_;
};

}  // namespace

Schedule training_step(const ModelShape& shape, const Schedule& attention,
                       const Schedule& attention_backward, const StepOptions& options) {
  const auto program = [=, parameters = Parameters(shape, attention.sharded.problem)](Rank rank) {
    return Step(shape, parameters, attention, attention_backward, options, rank).make();
  };
  return {attention.sharded, program, attention.algorithm, {}};
}

}  // namespace longnet
