// Layer normalisation and its backward pass on one core (see model_kernel.h), on a run of rows that
// one thread works on; also of rows whose columns lie on several ranks.
#pragma once
#include "kernels/model_kernel.h"

namespace longnet {

void layer_norm_rows(const LayerNormTask& task);
// grad_gain and grad_bias are added to: sums of one thread.
void layer_norm_backward_rows(const LayerNormBackwardTask& task);
// As RowMomentsTask.
void moments_of_rows(const Matrix& x, float* into);
void layer_norm_sums_of_rows(const LayerNormSumsTask& task);

}  // namespace longnet
