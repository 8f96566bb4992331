#include "kernels/cpu/machine_peak.h"

#include <gmock/gmock.h>

#include "core/check.h"

namespace longnet {
namespace {

TEST(SimdTargetsTest, ScopeSelectsAndRestores) {
  const std::string best = simd_target();
  for (const std::string& name : simd_targets()) {
    const ScopedSimdTarget use(name);
    EXPECT_EQ(simd_target(), name);
  }
  EXPECT_EQ(simd_target(), best);
  EXPECT_THAT(simd_targets(), testing::Contains("SCALAR"));
  EXPECT_THROW(ScopedSimdTarget("AVX9"), UsageError);
}

TEST(SimdTargetsTest, Avx512HasItsName) {
  EXPECT_EQ(simd_text("AVX3_ZEN4"), "AVX-512 (AVX3_ZEN4)");
  EXPECT_EQ(simd_text("AVX2"), "AVX2");
}

// No upper bounds: they depend on the machine.
TEST(MachinePeakTest, MeasuresSomethingOnEveryTarget) {
  for (const std::string& name : simd_targets()) {
    const ScopedSimdTarget use(name);
    EXPECT_GT(measure_fma_peak_flops(1, 0.02), 1e8) << name;
  }
  EXPECT_GT(measure_fma_peak_flops(2, 0.02), 1e8);
  EXPECT_GT(measure_memory_bandwidth(1, int64_t{4} << 20), 1e8);
  EXPECT_GT(measure_memory_bandwidth(2, int64_t{4} << 20), 1e8);
}

}  // namespace
}  // namespace longnet
