// Attention inside a model, or a layer: what it made of the Q, K and V that it found there.
#pragma once
#include "execute/executor.h"
#include "io/config.h"

namespace longnet {

// After a run: sampled rows that attention has written in layer 0 (where layers share its memory,
// in the one that ran last), of every stratum, against the definition in double on the rows of Q, K
// and V there. A function that is wrong alike forward and backward has right gradients of a wrong
// loss: it shows here. Collective.
struct AttentionInModel {
  CheckOutcome outcome;  // of the rows of all sequences
  SampleChoice choice;   // of each sequence and its heads
};
AttentionInModel check_attention_in_model(const Executor& executor, const CheckConfig& config,
                                          Communicator& comm);

}  // namespace longnet
