// The loss of a model by definition, in double, token by token: what its programs are tested
// against. It takes the order of parameters from Parameters and nothing else of the product.
#pragma once
#include <cstdint>
#include <vector>

#include "model/model.h"

namespace longnet {

// Mean over all rows of the cross entropy, in nats. Sequence b is tokens[b * (seq_len + 1)] and the
// seq_len tokens behind it, of which each is the target of the one before. Attention is that of the
// pattern's branches {w, r}, and of those of summary tokens, mixed by LSE, with head j's offset
// j mod r (of summaries mod w / c), causal or not.
double defined_loss(const ModelShape& shape, const AttentionProblem& problem,
                    const DilatedPattern& pattern, const std::vector<double>& weights,
                    const std::vector<int32_t>& tokens);

}  // namespace longnet
