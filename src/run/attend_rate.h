// The attention rate of this machine on dense segments, to which walks are compared.
#pragma once
#include "kernels/attention_kernel.h"

namespace longnet {

// FLOP/s (4 d per pair) of the kernel on segments of 2048 rows, all threads at work, as
// kernels_benchmark measures it: the mean of a few repetitions, under half a second on a quiet
// core.
double measure_attend_rate(const AttentionKernel& kernel, const AttendOptions& options,
                           int threads);

}  // namespace longnet
