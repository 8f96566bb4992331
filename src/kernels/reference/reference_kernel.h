// The reference kernel, simple enough to be obviously right: row_oracle.h for each query row. Slow;
// it allocates.
#pragma once
#include <memory>

#include "kernels/attention_kernel.h"

namespace longnet {

std::unique_ptr<AttentionKernel> make_reference_kernel();

}  // namespace longnet
