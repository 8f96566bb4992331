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

TEST(Text, WrapsBetweenWords) {
  EXPECT_EQ(wrapped("one two three", 9, "# ", "#   "), "# one two\n#   three");
  EXPECT_EQ(wrapped("one two three", 13), "one two three");
  EXPECT_EQ(wrapped("a long_word_of_its_own b", 5), "a\nlong_word_of_its_own\nb");
  EXPECT_EQ(wrapped("", 5), "");
}

}  // namespace
}  // namespace longnet
