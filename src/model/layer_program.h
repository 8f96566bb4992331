// The ops of a model's layers on one rank, forward and backward, and the slots that they need.
#pragma once
#include <string>
#include <vector>

#include "core/model_shape.h"
#include "model/model_builder.h"

namespace longnet {

class LayerProgram {
 public:
  // `forward` and `backward`: one layer's attention on the ranks of a sequence. Adds the slots
  // kInputRowsSlot to kGradRowsSlot (model_program.h), which must be the next ones.
  LayerProgram(const ModelShape& shape, RankProgram forward, RankProgram backward,
               ModelBuilder& build);
  // Slots of what layers keep, and scratch memory.
  void add_slots();

  // From the input of layer `l` to that of the next one, or to `output`.
  void forward(int64_t l);
  // From the gradient of the layer's output to that of its input, both in `gradient`.
  void backward(int64_t l);

  const MatrixView& input() const { return input_; }    // the first layer's
  const MatrixView& output() const { return output_; }  // the last one's
  const MatrixView& gradient() const { return grad_x_; }
  // Rows as wide as the model, free between layers.
  const MatrixView& scratch() const { return scratch_.norm; }
  const MatrixView& more_scratch() const { return scratch_.ffn_norm; }

 private:
  // The slots of one layer's attention, in the order of its program's slots; -1: scratch.
  using AttentionSlots = std::vector<int>;
  // Matrices of a layer's forward pass, which its backward pass reads.
  struct Layer {
    MatrixView x = {};  // its input
    AttentionSlots slots = {}, backward_slots = {};
    MatrixView q = {}, k = {}, v = {}, o = {};
    // Shared by all layers unless nothing is computed again.
    MatrixView norm, sub_norm, sum, ffn_norm, fc1, gelu, ffn_sub_norm;
  };

  void add_layer(int64_t l);
  // From the layer's input to attention's output; from there to the input of fc2.
  void attend(const std::string& name, const Layer& y);
  void after_attention(const std::string& name, const Layer& y);
  void ffn_backward(const std::string& name, const Layer& y);
  void attention_backward(const std::string& name, const Layer& y);
  void rotate(const MatrixView& x, bool keys, RowFunction function);

  const ModelShape& shape_;
  RankProgram forward_, backward_;  // attention's
  ModelBuilder& build_;
  MatrixView input_, output_, grad_x_;
  MatrixView grad_ffn_, grad_out_, grad_q_, grad_k_, grad_v_;
  Layer scratch_;
  MatrixView moments_, sums_;  // where ranks split heads
  std::vector<Layer> layers_;
  std::vector<int> forward_scratch_, backward_scratch_;
};

}  // namespace longnet
