// The table of NCCL's functions against the library itself: other tests have an emulated one.
#include "comm/nccl/nccl_functions.h"

#include <gtest/gtest.h>

namespace longnet {
namespace {

TEST(NcclFunctions, TheLibraryHasThemAll) {
  const NcclFunctions nccl;  // throws where one is missing
  if (!nccl.missing.empty()) {
    EXPECT_TRUE(nccl.missing.starts_with("NCCL is not on the library path: ")) << nccl.missing;
    EXPECT_EQ(nccl.send, nullptr);
    GTEST_SKIP() << nccl.missing;
  }
  int version = 0;
  ASSERT_EQ(nccl.version(&version), ncclSuccess);
  EXPECT_EQ(version / 10000, NCCL_MAJOR);
  EXPECT_STRNE(nccl.error_string(ncclInvalidUsage), nccl.error_string(ncclSuccess));
  EXPECT_EQ(nccl.register_buffer != nullptr, version >= 21900);
  EXPECT_EQ(nccl.deregister_buffer != nullptr, version >= 21900);
}

}  // namespace
}  // namespace longnet
