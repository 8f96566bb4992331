// Attention on CPU cores: exact, tiled, fp32 arithmetic over fp32 or bf16 storage (see
// attend_simd.h).
#pragma once
#include <memory>

#include "kernels/attention_kernel.h"

namespace longnet {

std::unique_ptr<AttentionKernel> make_cpu_kernel();

}  // namespace longnet
