#include "core/cuda/dynamic_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace longnet {
namespace {

using testing::HasSubstr;

// The tables of functions (nccl_functions.h and its like) are made without their library, too.
TEST(DynamicLibrary, OneThatIsAbsentHasNoFunctions) {
  const DynamicLibrary absent("liblongnet-none.so.1");
  EXPECT_FALSE(absent.is_open());
  EXPECT_THAT(absent.error(), HasSubstr("liblongnet-none.so.1"));
  double (*const wanted)(double) = absent.require("cos");
  double (*const optional)(double) = absent.find("cos");
  EXPECT_EQ(wanted, nullptr);
  EXPECT_EQ(optional, nullptr);
}

TEST(DynamicLibrary, AFunctionThatIsNeededAndNotThereIsAnotherVersion) {
  const DynamicLibrary math("libm.so.6");
  ASSERT_TRUE(math.is_open()) << math.error();
  double (*const cosine)(double) = math.require("cos");
  EXPECT_EQ(cosine(0), 1);
  EXPECT_EQ(math.find("longnet_none").at, nullptr);
  try {
    math.require("longnet_none");
    FAIL() << "it is not there";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("library libm.so.6 has no longnet_none: another version"));
  }
}

}  // namespace
}  // namespace longnet
