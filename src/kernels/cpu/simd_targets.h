// Names of the instruction sets that the cpu kernel is compiled for, and a switch for tests and
// benchmarks.
#pragma once
#include <string>
#include <vector>

namespace longnet {

// Instruction sets that are compiled in and that this CPU has, best first, e.g. {"AVX3", "AVX2",
// "SCALAR"}.
std::vector<std::string> simd_targets();

// The instruction set that the cpu kernel runs on now.
std::string simd_target();

// While it lives, the whole process uses the named instruction set. Throws UsageError on a name
// that simd_targets() does not list. Not for use while kernels run.
class ScopedSimdTarget {
 public:
  explicit ScopedSimdTarget(const std::string& name);
  ~ScopedSimdTarget();
  ScopedSimdTarget(const ScopedSimdTarget&) = delete;
  ScopedSimdTarget& operator=(const ScopedSimdTarget&) = delete;
};

}  // namespace longnet
