// Instruction sets of this machine's cores, and their peak arithmetic and memory bandwidth,
// measured: the base of every "share of peak".
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/problem.h"

namespace longnet {

// Instruction sets that are compiled in and that this CPU has, best first, e.g. {"AVX3", "AVX2",
// "SCALAR"}.
std::vector<std::string> simd_targets();

// The instruction set that the cpu kernel runs on now.
std::string simd_target();

// Name of an instruction set as its maker has it, and Highway's: "AVX-512 (AVX3_ZEN4)", "AVX2".
std::string simd_text(const std::string& target);

// Makes the whole process use the named instruction set until it is destroyed. Throws UsageError on
// a name that simd_targets() does not list. Not for use while kernels run.
class ScopedSimdTarget {
 public:
  explicit ScopedSimdTarget(const std::string& name);
  ~ScopedSimdTarget();
  ScopedSimdTarget(const ScopedSimdTarget&) = delete;
  ScopedSimdTarget& operator=(const ScopedSimdTarget&) = delete;
};

// fp32 multiply-adds per second times 2, on the instruction set that the cpu kernel runs on now:
// independent chains in registers, no memory. `threads` threads run at once; the
// best of several windows within about `seconds`, because other processes disturb some windows.
double measure_fma_peak_flops(int threads, double seconds);

// The highest rate of a kernel over that of these multiply-adds: what `cpu_amx` sums in bf16 tiles
// runs at 16 times their rate at the same clock, for fp32 six products in the place of one (see
// attend_amx_simd.h). 1: other kernels.
double peak_over_fma(std::string_view kernel, DType dtype);

// Runs about `flops` such operations on `threads` threads at once; returns those that it ran.
// Timed, this is what the cores can do at that moment, beside whatever else runs.
double run_fma(int threads, double flops);

// Bytes per second of a[i] += s * b[i] over arrays of `array_bytes` each, to be chosen well above
// the last-level cache. 12 bytes count per element, and no more are moved: unlike the triad of
// STREAM, no line is written that was not read before. The faster quartile of many slices of about
// a millisecond: not the best of them, which may have read lines that were still in a cache.
double measure_memory_bandwidth(int threads, int64_t array_bytes = int64_t{128} << 20);

}  // namespace longnet
