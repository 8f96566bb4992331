// From measured seconds to the numbers of a cluster file.
//
// Costs are sums of parts, each a count times a coefficient that cannot be negative:
//   a message    seconds = alpha + bytes / bandwidth
//   an attend    seconds = blocks * b + queries * q + key rows * k + pairs * p
//   a product    seconds = FLOPs / flops_per_s + bytes / bytes_per_s
// The coefficients make the sum of the squared *relative* errors least, so that a message of 1 KB
// counts as much as one of 16 MB. (Non-negative least squares: Lawson and Hanson, Solving Least
// Squares Problems, 1974, chapter 23; with four unknowns every subset can be tried.)
//
//   fit_link({{1000, 11e-6}, {1e6, 1010e-6}})    // alpha 10 us, 1 GB/s
#pragma once
#include <span>

#include "simulate/cost_model.h"

namespace longnet {

struct MessageTime {
  double bytes = 0, seconds = 0;
};
struct FitErrors {
  double median_rel_error = 0, max_rel_error = 0;  // |fitted - measured| / measured
};
struct LinkFit : FitErrors {
  double alpha_s = 0, bytes_per_s = 0;
};
// Needs two sizes. Throws Error when there is one measurement, or time does not grow with size.
LinkFit fit_link(std::span<const MessageTime> times);

struct AttendTime {
  AttendCounts counts{};
  double seconds = 0;
};
struct AttendFit : FitErrors {
  double block_s = 0, query_s = 0, key_s = 0, pair_s = 0;
};
// Needs four measurements, else throws Error. pair_s is positive.
AttendFit fit_attend(std::span<const AttendTime> times);

struct GemmTime {
  double flops = 0, bytes = 0, seconds = 0;
};
struct GemmFit : FitErrors {
  double flops_per_s = 0, bytes_per_s = 0;  // 0 bytes_per_s: bytes take no time
};
// Needs two measurements, else throws Error.
GemmFit fit_gemm(std::span<const GemmTime> times);

}  // namespace longnet
