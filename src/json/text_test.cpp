#include "json/text.h"

#include <gtest/gtest.h>

namespace longnet {
namespace {

TEST(Text, TwoColumnsTakeNamesOfAnyLength) {
  const std::vector<std::pair<std::string, std::string>> rows{
      {"ring", "short"}, {"a_name_longer_than_twenty_letters", "long"}, {"", "none"}};
  EXPECT_EQ(two_columns(rows),
            "  ring                               short\n"
            "  a_name_longer_than_twenty_letters  long\n"
            "                                     none\n");
  EXPECT_EQ(two_columns({}), "");
}

}  // namespace
}  // namespace longnet
