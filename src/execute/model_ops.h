// Runs ops of a model's layers (schedule/program.h, ModelOp) on the host.
#pragma once
#include <cstddef>
#include <span>

#include "execute/bound_program.h"
#include "kernels/model_kernel.h"

namespace longnet {

// Does nothing for other ops.
void execute_model_op(const ModelKernel& kernel, const BoundProgram& bound, size_t op,
                      std::span<std::byte> workspace);

}  // namespace longnet
