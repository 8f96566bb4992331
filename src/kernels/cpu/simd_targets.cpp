#include "kernels/cpu/simd_targets.h"

#include "core/check.h"
#include "kernels/cpu/highway_targets.h"

// Must follow highway_targets.h.
#include "hwy/highway.h"

namespace longnet {
namespace {

// Targets are single bits; the lower the bit, the better the target.
std::vector<int64_t> supported_targets() {
  std::vector<int64_t> bits;
  const int64_t all = hwy::SupportedTargets() & HWY_TARGETS;
  for (int64_t left = all; left != 0; left &= left - 1) bits.push_back(left & -left);
  return bits;
}

}  // namespace

std::vector<std::string> simd_targets() {
  std::vector<std::string> names;
  for (const int64_t bit : supported_targets()) names.emplace_back(hwy::TargetName(bit));
  return names;
}

std::string simd_target() { return simd_targets().front(); }

ScopedSimdTarget::ScopedSimdTarget(const std::string& name) {
  for (const int64_t bit : supported_targets()) {
    if (name != hwy::TargetName(bit)) continue;
    hwy::SetSupportedTargetsForTest(bit);
    return;
  }
  throw UsageError(concat("instruction set '", name, "' is not available"));
}

ScopedSimdTarget::~ScopedSimdTarget() { hwy::SetSupportedTargetsForTest(0); }

}  // namespace longnet
