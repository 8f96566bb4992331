#include "measure/resident_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace longnet {
namespace {

constexpr int64_t kMiB = 1 << 20;

void use(int64_t bytes) {
  std::vector<char> buffer(static_cast<size_t>(bytes));
  for (int64_t i = 0; i < bytes; i += 4096) buffer[size_t(i)] = 1;
  EXPECT_EQ(buffer[size_t(bytes - 4096)], 1);
}

// A smaller buffer after a larger one grows the peak by its own size, not by nothing.
TEST(ResidentGrowth, ForgetsEarlierPeaks) {
  if (!ResidentGrowth().bytes()) GTEST_SKIP() << "the system does not tell";
  for (const int64_t bytes : {96 * kMiB, 32 * kMiB, 64 * kMiB}) {
    const ResidentGrowth growth;
    EXPECT_LT(*growth.bytes(), 8 * kMiB);
    use(bytes);
    EXPECT_GT(*growth.bytes(), bytes - 8 * kMiB);
#if !defined(LONGNET_ADDRESS_SANITIZER) && \
    !defined(LONGNET_THREAD_SANITIZER)  // sanitizers hold memory of their own
    EXPECT_LT(*growth.bytes(), bytes + 8 * kMiB);
#endif
    EXPECT_GE(*peak_resident_bytes(), *resident_bytes());
  }
}

}  // namespace
}  // namespace longnet
