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

TEST(Text, AShellReadsAWordAsItWas) {
  EXPECT_EQ(shell_word("sweep.ranks=1,2"), "sweep.ranks=1,2");
  EXPECT_EQ(shell_word("results/20260101T000000Z-quick"), "results/20260101T000000Z-quick");
  EXPECT_EQ(shell_word("seq_len <= 64K && ranks == 2"), "'seq_len <= 64K && ranks == 2'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
  for (const char* special : {"a b", "$HOME", "exclude=[]", "a;b", "~", "a\nb", "ç"})
    EXPECT_EQ(shell_word(special), "'" + std::string(special) + "'");
}

TEST(Text, PrintableHoldsNothingThatATerminalObeysOrCannotRead) {
  EXPECT_EQ(printable("a\tb\nç€😀"), "a\tb\nç€😀");
  EXPECT_EQ(printable("\x1b[31m\x7f\x00"), "\uFFFD[31m\uFFFD");
  EXPECT_EQ(printable("\xC2\x9B"
                      "1m\xC2\xA0"),
            "\uFFFD1m\xC2\xA0");  // CSI in one character
  for (const char* bad : {"\xFF", "\x80", "\xC0", "\xC3", "\xF5"})
    EXPECT_EQ(printable(bad), "\uFFFD");
  EXPECT_EQ(printable("\xC3z"), "\uFFFDz");
  // A slash in two bytes, half of a surrogate pair, beyond U+10FFFF, cut.
  for (const char* bad : {"\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF0\x9F\x98"})
    EXPECT_EQ(printable(bad).find_first_not_of("\uFFFD"), std::string::npos) << printable(bad);
  EXPECT_EQ(printable(std::string(1 << 20, '\1')).size(), 3u << 20);
}

}  // namespace
}  // namespace longnet
