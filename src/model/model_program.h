// A training step of a model as a program: what each rank does with its shard of the tokens, the
// attention of each layer by any algorithm of the registry, lowered before.
//
//   forward    embed, layers, loss: logits of some rows at a time become their gradients
//   backward   layers from the last to the first, each from what it has kept (Recompute)
//   step       reduce_scatter of the gradients of weights, their norm, all_gather, update
//
// Between attention's own ops all others form one chain. Slots of attention's scratch memory and of
// what a layer does not keep are shared by all layers.
#pragma once
#include "model/model.h"
#include "schedule/program.h"

namespace longnet {

struct StepOptions {
  // kForward: its slots are the first of those of a step, in whose memory it can run.
  Pass pass = Pass::kStep;
  double decay = 0.1, clip_norm = 1;
  int64_t logits_values = int64_t{1} << 26;  // of a part of the rows; 256 parts at most
};

// Slots of a step's program that a training loop reads and writes, after those of layer 0's
// attention (schedule/program.h).
inline constexpr int kTokenSlot = kGradKvSlot + 1;    // int32: a token a row, then a target a row
inline constexpr int kScheduleSlot = kTokenSlot + 1;  // floats: number of the step, learning rate
inline constexpr int kWeightSlot = kTokenSlot + 2;    // floats, as Parameters has them
inline constexpr int kFirstMomentSlot = kTokenSlot + 3, kSecondMomentSlot = kTokenSlot + 4;
inline constexpr int kWeightGradientSlot = kTokenSlot + 5;
inline constexpr int kSumsSlot = kTokenSlot + 6;  // doubles: squared norm and loss of each rank

// `attention` and its backward pass are those of one layer, for the same problem and layout.
Schedule training_step(const ModelShape& shape, const Schedule& attention,
                       const Schedule& attention_backward, const StepOptions& options);

}  // namespace longnet
