// Loss, update of weights, and the norm of gradients on one core (see model_kernel.h), on what one
// thread works on. All in fp32.
#pragma once
#include <cstdint>

#include "kernels/model_kernel.h"

namespace longnet {

// Returns the loss of the rows; task.loss is not used.
double cross_entropy_rows(const CrossEntropyTask& task);

// `clipping`: of gradients, for which neither squares nor pieces are read.
void update_weights(const UpdateTask& task, double clipping);
double sum_squares(const float* x, int64_t count);

}  // namespace longnet
