#include "run/shipped.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "core/check.h"

namespace longnet {
namespace {

class Shipped : public testing::Test {
 protected:
  void SetUp() override { setenv("LONGNET_HOME", LONGNET_SOURCE_DIR, 1); }
  void TearDown() override { unsetenv("LONGNET_HOME"); }
  static std::string message(const std::string& kind, const std::string& given) {
    try {
      return find_shipped(kind, given);
    } catch (const UsageError& e) {
      return e.what();
    }
  }
};

TEST_F(Shipped, IsFoundByItsNameOrABeginningOfIt) {
  EXPECT_THAT(find_shipped("clusters", "h100-ndr400"), testing::EndsWith("/h100-ndr400.json"));
  EXPECT_THAT(find_shipped("clusters", "h100"), testing::EndsWith("/h100-ndr400.json"));
  EXPECT_THAT(find_shipped("configs", "quick"), testing::EndsWith("configs/quick.json"));
  EXPECT_EQ(find_shipped("clusters", "mine/tpu.json"), "mine/tpu.json");
  EXPECT_EQ(find_shipped("clusters", "tpu.json"), "tpu.json");  // its reader says what is missing
}

TEST_F(Shipped, OtherwiseTheNamesAreListed) {
  EXPECT_THAT(message("clusters", "h"), testing::HasSubstr("h100-ndr400, h200-ndr400"));
  EXPECT_THAT(message("clusters", "h100-ndr40x"),
              testing::HasSubstr("did you mean 'h100-ndr400'?"));
  for (const char* mistyped : {"qiuck", "qiuck.json", "configs/qiuck.json"})
    EXPECT_THAT(message("configs", mistyped), testing::HasSubstr("did you mean 'quick'?"));
}

TEST_F(Shipped, EveryFileSaysWhatItIs) {
  for (const char* kind : {"configs", "clusters"}) {
    EXPECT_GT(shipped_files(kind).size(), 5U);
    for (const ShippedFile& file : shipped_files(kind)) EXPECT_NE(file.about, "") << file.path;
  }
}

}  // namespace
}  // namespace longnet
