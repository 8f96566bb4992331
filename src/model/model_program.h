// A training step of a model, or one layer of it alone, as a program: what each rank does with its
// shard of the tokens, the attention of each layer by any algorithm of the registry, lowered
// before.
//
//   forward    embed, layers, loss: logits of some rows at a time become their gradients
//   backward   layers from the last to the first, each from what it has kept (Recompute)
//   step       reduce_scatter of the gradients of weights, their norm, all_gather, update
//
// One layer alone (Scope::kLayer) begins with given rows and ends with its output, and its backward
// pass goes from given gradients of that to those of its input and weights, each rank's own.
//
// Between attention's own ops all others form one chain. Slots of attention's scratch memory and of
// what a layer does not keep are shared by all layers.
#pragma once
#include "model/model.h"
#include "schedule/program.h"

namespace longnet {

struct StepOptions {
  Scope scope = Scope::kModel;
  // kForward: its slots are the first of those of the other passes, in whose memory it can run.
  Pass pass = Pass::kStep;
  int replicas = 1;  // groups of ranks, each with as large a batch as the attention's problem has
  // Ranks with the same tokens: `attention` has the heads of one of them.
  int head_groups = 1;
  double decay = 0.1, clip_norm = 1;
  bool with_ops = true;                      // false: slots alone, without those that only ops need
  int64_t logits_values = int64_t{1} << 26;  // logits per part of the rows; 256 parts at most
};

// Slots that those who run a program read and write, after those of layer 0's attention
// (schedule/program.h).
inline constexpr int kWeightSlot = kGradKvSlot + 1;          // floats, as Parameters has them
inline constexpr int kWeightGradientSlot = kGradKvSlot + 2;  // the same
inline constexpr int kInputRowsSlot = kGradKvSlot + 3;       // the first layer's, as Q is stored
inline constexpr int kOutputRowsSlot = kGradKvSlot + 4;      // the last layer's
// Before a backward pass gradients of the output, after it those of the input.
inline constexpr int kGradRowsSlot = kGradKvSlot + 5;
// Slots of whole models; a layer alone has none of them.
inline constexpr int kTokenSlot = kGradKvSlot + 6;    // int32: a token a row, then a target a row
inline constexpr int kScheduleSlot = kTokenSlot + 1;  // floats: number of the step, learning rate
inline constexpr int kFirstMomentSlot = kTokenSlot + 2, kSecondMomentSlot = kTokenSlot + 3;
inline constexpr int kSumsSlot = kTokenSlot + 4;  // doubles: squared norm and loss of each rank

// `attention` and its backward pass are those of one layer, on the ranks of one sequence. Ranks
// that split heads split fc1 and fc2 as well (Shoeybi et al., Megatron-LM, arXiv 1909.08053): after
// out and fc2, and backward at the inputs of q, k, v and of fc1, they sum up their rows; norms
// between take the moments of all columns.
Schedule training_step(const ModelShape& shape, const Schedule& attention,
                       const Schedule& attention_backward, const StepOptions& options);

}  // namespace longnet
