// Ops of a bound program whose memory is the host's, run by a kernel on the program's threads.
#pragma once
#include <functional>
#include <span>

#include "execute/bound_program.h"
#include "kernels/attention_kernel.h"

namespace longnet {

// Throws Error when the kernel cannot do what the program asks for.
void require_supported(const AttentionKernel& kernel, const BoundProgram& bound);

// Runs an op that computes, on all its tasks but those of attends.
void execute_rows(const AttentionKernel& kernel, const BoundProgram& bound, size_t op);
// Runs the attend tasks of an op. `progress_hook`: called now and then meanwhile.
void execute_attends(const AttentionKernel& kernel, const BoundProgram& bound, size_t op,
                     std::span<std::byte> workspace,
                     const std::function<void()>* progress_hook = nullptr);

}  // namespace longnet
