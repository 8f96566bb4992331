#include "model/layer_program.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace longnet {
namespace {

std::string prefix(int64_t l) { return concat("layers.", l, "."); }

}  // namespace

LayerProgram::LayerProgram(const ModelShape& shape, RankProgram forward, RankProgram backward,
                           ModelBuilder& build)
    : shape_(shape), forward_(std::move(forward)), backward_(std::move(backward)), build_(build) {
  const SlotTag given =
      build_.scope() == Scope::kLayer ? SlotTag::kLayerInput : SlotTag::kActivations;
  input_ = build_.add_whole_rows(given);
  output_ = build_.add_whole_rows();
  grad_x_ = build_.add_whole_rows(given);
}

void LayerProgram::add_slots() {
  const int64_t width = build_.attended_width(), key_width = build_.key_width();
  const int64_t ffn = shape_.ffn_width / build_.grid().head_groups;
  scratch_ = {.norm = build_.add_whole_rows(),
              .sub_norm = build_.add_activations(width),
              .sum = build_.add_whole_rows(),
              .ffn_norm = build_.add_whole_rows(),
              .fc1 = build_.add_activations(ffn),
              .gelu = build_.add_activations(ffn),
              .ffn_sub_norm = build_.add_activations(ffn)};
  grad_ffn_ = build_.add_activations(ffn);
  grad_out_ = build_.attention_rows(kGradOutSlot, width);
  grad_q_ = build_.attention_rows(kGradQuerySlot, width);
  grad_k_ = build_.attention_rows(kGradKvSlot, key_width);
  grad_v_ = build_.attention_rows(kGradKvSlot, key_width, build_.num_rows() * key_width);
  if (build_.splits_heads()) moments_ = build_.add_row_parts(), sums_ = build_.add_row_parts();
  for (int64_t l = 0; l < shape_.layers; ++l) add_layer(l);
}

void LayerProgram::add_layer(int64_t l) {
  Layer layer = scratch_;
  layer.x = l == 0 ? input_ : build_.add_whole_rows();
  if (shape_.recompute == Recompute::kNone) {
    for (MatrixView* kept : {&layer.norm, &layer.sum, &layer.ffn_norm})
      *kept = build_.add_whole_rows();
    for (MatrixView* kept : {&layer.sub_norm, &layer.fc1, &layer.gelu, &layer.ffn_sub_norm})
      *kept = build_.add_activations(kept->cols);
  }
  layer.slots = {kQuerySlot, kKvSlot, kOutputSlot};
  if (l > 0 && shape_.recompute != Recompute::kFull)
    layer.slots = {build_.add_attention_slot(TensorKind::kQuery, SlotTag::kQuery),
                   build_.add_attention_slot(TensorKind::kKeyValue, SlotTag::kKeyValue),
                   build_.add_attention_slot(TensorKind::kPartial, SlotTag::kOutput)};
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
  const int64_t width = build_.attended_width(), key_width = build_.key_width();
  layer.q = build_.attention_rows(layer.slots[kQuerySlot], width);
  layer.k = build_.attention_rows(layer.slots[kKvSlot], key_width);
  layer.v = build_.attention_rows(layer.slots[kKvSlot], key_width, build_.num_rows() * key_width);
  layer.o = build_.attention_rows(layer.slots[kOutputSlot], width);
  layers_.push_back(std::move(layer));
}

void LayerProgram::rotate(const MatrixView& x, bool keys, RowFunction function) {
  if (shape_.positions == Positions::kNone) return;
  const auto length = double(build_.sharded().problem.seq_len);
  RowWise op{{{x}, {x}}, function, keys};
  if (shape_.positions == Positions::kXpos) {
    // zeta^(N / 2 / scale) stays far from the ends of fp32 for every N: 512 up to 16K tokens.
    op.xpos_scale = std::max(512.0, length / 32);
    op.xpos_centre = length / 2;
  }
  build_.add(std::move(op));
}

void LayerProgram::forward(int64_t l) {
  const Layer& y = layers_[size_t(l)];
  const std::string name = prefix(l);
  attend(name, y);
  after_attention(name, y);
  const MatrixView& next = l + 1 < shape_.layers ? layers_[size_t(l) + 1].x : output_;
  build_.split_linear(name + "fc2", y.ffn_sub_norm, y.sum, next);
}

void LayerProgram::attend(const std::string& name, const Layer& y) {
  build_.norm(name + "norm", y.x, y.norm);
  build_.linear(name + "query", y.norm, y.q);
  build_.linear(name + "key", y.norm, y.k);
  build_.linear(name + "value", y.norm, y.v);
  rotate(y.q, false, RowFunction::kRotate);
  rotate(y.k, true, RowFunction::kRotate);
  build_.append(forward_, y.slots, forward_scratch_);
}

void LayerProgram::after_attention(const std::string& name, const Layer& y) {
  build_.split_norm(name + "sub_norm", y.o, moments_, y.sub_norm);
  build_.split_linear(name + "out", y.sub_norm, y.x, y.sum);
  build_.norm(name + "ffn_norm", y.sum, y.ffn_norm);
  build_.linear(name + "fc1", y.ffn_norm, y.fc1);
  build_.rows(RowFunction::kGelu, {y.fc1}, {y.gelu});
  build_.split_norm(name + "ffn_sub_norm", y.gelu, moments_, y.ffn_sub_norm);
}

void LayerProgram::backward(int64_t l) {
  const Layer& y = layers_[size_t(l)];
  const std::string name = prefix(l);
  if (shape_.recompute == Recompute::kFull) attend(name, y);
  if (shape_.recompute != Recompute::kNone) after_attention(name, y);
  ffn_backward(name, y);
  attention_backward(name, y);
}

void LayerProgram::ffn_backward(const std::string& name, const Layer& y) {
  build_.weight_gradients(name + "fc2", y.ffn_sub_norm, grad_x_);
  build_.linear_backward(name + "fc2", grad_x_, grad_ffn_);
  build_.split_norm_backward(name + "ffn_sub_norm", y.gelu, grad_ffn_, moments_, sums_, grad_ffn_);
  build_.rows(RowFunction::kGeluBackward, {y.fc1, grad_ffn_}, {grad_ffn_});
  build_.weight_gradients(name + "fc1", y.ffn_norm, grad_ffn_);
  build_.linear_backward(name + "fc1", grad_ffn_, y.ffn_norm, false, build_.splits_heads());
  build_.sum_over_heads(y.ffn_norm);
  build_.norm_backward(name + "ffn_norm", y.sum, y.ffn_norm, grad_x_, true);
}

void LayerProgram::attention_backward(const std::string& name, const Layer& y) {
  build_.weight_gradients(name + "out", y.sub_norm, grad_x_);
  build_.linear_backward(name + "out", grad_x_, y.sub_norm);
  build_.split_norm_backward(name + "sub_norm", y.o, y.sub_norm, moments_, sums_, grad_out_);
  build_.append(backward_, y.backward_slots, backward_scratch_);
  rotate(grad_q_, false, RowFunction::kRotateBackward);
  rotate(grad_k_, true, RowFunction::kRotateBackward);

  if (shape_.recompute == Recompute::kKeepAttention) build_.norm(name + "norm", y.x, y.norm);
  build_.weight_gradients(name + "query", y.norm, grad_q_);
  build_.weight_gradients(name + "key", y.norm, grad_k_);
  build_.weight_gradients(name + "value", y.norm, grad_v_);
  const bool of_heads = build_.splits_heads();
  build_.linear_backward(name + "query", grad_q_, y.norm, false, of_heads);
  build_.linear_backward(name + "key", grad_k_, y.norm, true, of_heads);
  build_.linear_backward(name + "value", grad_v_, y.norm, true, of_heads);
  build_.sum_over_heads(y.norm);
  build_.norm_backward(name + "norm", y.x, y.norm, grad_x_, true);
}

}  // namespace longnet
