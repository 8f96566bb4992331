// The calling thread's GPU in figures; only of builds with CUDA.
#pragma once
#include <cstdint>

namespace longnet {

int64_t device_memory_bytes();
// Dense 16-bit peak of the tensor cores at the highest clock, in FLOP/s; 0 for architectures whose
// rate is not known here.
double device_peak_flops();

}  // namespace longnet
