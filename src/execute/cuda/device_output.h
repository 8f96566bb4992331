// The output of a program whose memory is a GPU's, checked: sampled rows are copied to the host.
#pragma once
#include <vector>

#include "core/cuda/device.h"
#include "execute/bound_program.h"
#include "execute/sample_check.h"

namespace longnet {

// As compare_samples (execute/sample_check.h).
SampleErrors compare_on_device(const BoundProgram& bound, const AttentionProblem& problem,
                               const std::vector<QuerySample>& samples, const Stream& stream);
int64_t count_nan_on_device(const BoundProgram& bound, const Stream& stream);

// Largest relative L2 error that counts as right for 16-bit storage of probabilities: 4e-3.
inline constexpr double kDeviceTolerance = 4e-3, kDeviceLseTolerance = 1e-4;
// Returns the largest errors that pass the check. `given`: the relative L2 error, 0 for the
// default. `rounded`: the output was sent in bf16.
Tolerance device_tolerance(double given, bool rounded = false);

}  // namespace longnet
