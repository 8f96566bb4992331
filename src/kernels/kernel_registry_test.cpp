#include <gmock/gmock.h>

#include "core/check.h"
#include "kernels/attention_kernel.h"

namespace longnet {
namespace {

TEST(KernelRegistryTest, EachNameMakesTheKernelOfThatName) {
  EXPECT_THAT(names_of(kernels()), testing::ElementsAre("reference", "cpu", "cpu_amx"));
  for (const std::string& name : names_of(kernels())) EXPECT_EQ(make_kernel(name)->name(), name);
}

TEST(KernelRegistryTest, AnUnknownNameThrowsTheKnownOnes) {
  try {
    make_kernel("gpu");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("reference, cpu, cpu_amx"));
  }
}

}  // namespace
}  // namespace longnet
