// The check of every CUDA status.
#pragma once
#include "core/check.h"

namespace longnet {

// Throws Error with the name and text of the cudaError_t `status` unless it is cudaSuccess.
void check_cuda(int status, Located what);

}  // namespace longnet
