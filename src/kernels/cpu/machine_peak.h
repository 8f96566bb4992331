// Peak arithmetic and memory bandwidth of this machine, measured: the base of every "share of
// peak".
#pragma once
#include <cstdint>

namespace longnet {

// fp32 multiply-adds per second times 2, on the instruction set that the cpu kernel runs on now
// (simd_targets.h): independent chains in registers, no memory. `threads` threads run at once; the
// best of several windows within about `seconds`, because other processes disturb some windows.
double measure_fma_peak_flops(int threads, double seconds);

// Bytes per second of a[i] += s * b[i] over arrays of `array_bytes` each, to be chosen well above
// the last-level cache. 12 bytes count per element, and no more are moved: unlike the triad of
// STREAM, no line is written that was not read before. The faster quartile of many slices of about
// a millisecond: not the best of them, which may have read lines that were still in a cache.
double measure_memory_bandwidth(int threads, int64_t array_bytes = int64_t{128} << 20);

}  // namespace longnet
