// Bytes and messages of a rank in a model's step, or a pass of one layer, in closed form: those of
// attention as often as it runs, and those of gradients, weights and sums. As
// schedule/closed_form_counts.h it knows no program, so that a run can hold its counts against it.
//
//   2 layers, P = 4, W weights: 2 x (attention, forward and backward), 3/4 W x 4 bytes twice,
//   and 16 bytes to each other rank
#pragma once
#include <optional>
#include <string_view>

#include "core/model_shape.h"
#include "model/model_program.h"
#include "schedule/closed_form_counts.h"

namespace longnet {

// `attention`: the problem of the ranks that share a sequence. Holds no bytes: memory is left out.
// Nothing where attention has no closed form, or where nodes of a collective lie across groups.
std::optional<RankCounts> closed_form_step(const ModelShape& shape, std::string_view algorithm,
                                           const ShardedProblem& attention,
                                           const StepOptions& options,
                                           const CollectiveChoice& choice, Rank rank);

}  // namespace longnet
