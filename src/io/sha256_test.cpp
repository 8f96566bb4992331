#include "io/sha256.h"

#include <gtest/gtest.h>

namespace longnet {
namespace {

TEST(Sha256, KnownDigests) {  // FIPS 180-2, appendix B
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256, ASealHoldsUntilALineIsChanged) {
  const std::string line = sealed(R"({"walk":0,"shard":12})");
  EXPECT_EQ(line.find(R"({"walk":0,"shard":12,"sha256":")"), 0u) << line;
  EXPECT_EQ(seal_holds(line), true);
  for (size_t i = 0; i < line.find(R"(,"sha256")"); ++i) {
    std::string changed = line;
    changed[i] ^= 1;
    EXPECT_EQ(seal_holds(changed), false) << changed;
  }
  EXPECT_EQ(seal_holds(R"({"walk":0,"shard":12})"), std::nullopt);
}

}  // namespace
}  // namespace longnet
