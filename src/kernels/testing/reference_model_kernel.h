// ModelKernel in plain loops: what the kernels of cores and GPUs are tested against.
#pragma once
#include <memory>

#include "kernels/model_kernel.h"

namespace longnet {

// Every value is computed in double and rounded once, when it is stored. Allocates.
std::unique_ptr<ModelKernel> make_reference_model_kernel();

}  // namespace longnet
