// Largest errors that count as right, by how a kernel multiplies P = exp(S - L) with V: in fp32,
// or rounded to 16 bits, as kernels of GPUs and cpu_amx with bf16 storage do.
#pragma once
#include <cmath>

#include "execute/sample_check.h"

namespace longnet {

// Tolerances where P is rounded to 16 bits: the relative L2 error of O, and the error of LSE.
inline constexpr double kRoundedPowersTolerance = 4e-3, kRoundedPowersLseTolerance = 1e-4;
// Tolerances, where P is rounded so, of gradients, which are products of more factors, and of laws,
// which sum over the rows of a sequence. Roundings of rows are independent: the tolerance of laws
// is divided by the square root of their number.
inline constexpr double kRoundedGradientTolerance = 5e-3, kRoundedLawTolerance = 1e-2;
inline constexpr double kLawTolerance = 1e-6;  // fp32

// Returns the largest errors of O that pass. `given`: the relative L2 error, 0 for the default.
// `rounded_output`: O was sent or is stored in bf16.
inline Tolerance output_tolerance(bool rounds_probabilities, double given, bool rounded_output) {
  if (!rounds_probabilities) return {.rel_l2 = given};
  // Where a kernel's error is near half a unit, both sides round to different values now and then.
  constexpr double kHalfBf16Unit = 1.0 / 256;
  const double usual = kRoundedPowersTolerance + (rounded_output ? kHalfBf16Unit : 0);
  return {.rel_l2 = given > 0 ? given : usual, .lse = kRoundedPowersLseTolerance};
}

// Return the largest relative L2 error of gradients, products of more factors than an output, and
// the largest error of laws of conservation (gradient_check.h) that pass.
inline double gradient_tolerance(bool rounds_probabilities, const ShardedProblem& s, double given) {
  if (given > 0) return given;
  return rounds_probabilities ? kRoundedGradientTolerance : 2 * check_tolerance(s);
}
inline double law_tolerance(bool rounds_probabilities, const ShardedProblem& s) {
  return rounds_probabilities ? kRoundedLawTolerance / std::sqrt(double(s.problem.seq_len))
                              : kLawTolerance;
}

}  // namespace longnet
