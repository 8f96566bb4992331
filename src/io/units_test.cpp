#include "io/units.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/testing/test_support.h"
#include "json/text.h"

namespace longnet {
namespace {

TEST(Tokens, SuffixesArePowersOfTwo) {
  EXPECT_EQ(try_parse_tokens("8192"), 8192);
  EXPECT_EQ(try_parse_tokens("8K"), 8192);
  EXPECT_EQ(try_parse_tokens("8k"), 8192);
  EXPECT_EQ(try_parse_tokens("1M"), 1048576);
  EXPECT_EQ(try_parse_tokens("1B"), 1073741824);
  for (const char* bad :
       {"", "K", "8KB", "8 K", "-1", "1.5K", "8G", "99999999999999999999", "9000000000000B"})
    EXPECT_FALSE(try_parse_tokens(bad)) << bad;
}

TEST(Tokens, FormatParsesBack) {
  EXPECT_EQ(format_tokens(8192), "8K");
  EXPECT_EQ(format_tokens(1500), "1500");
  EXPECT_EQ(format_tokens(1 << 20), "1M");
  EXPECT_EQ(format_tokens(0), "0");
  EXPECT_EQ(format_tokens(int64_t{3} << 30), "3B");
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const int64_t n = int64_t(random() >> (1 + random() % 62)) << (random() % 2 * 10 % 10);
    EXPECT_EQ(try_parse_tokens(format_tokens(n)), n);
  }
}

TEST(Bytes, ParseAndFormat) {
  EXPECT_EQ(try_parse_bytes("8GiB"), int64_t{8} << 30);
  EXPECT_EQ(try_parse_bytes("1.5 GiB"), 1610612736);
  EXPECT_EQ(try_parse_bytes("2GB"), 2000000000);
  EXPECT_EQ(try_parse_bytes("512"), 512);
  EXPECT_FALSE(try_parse_bytes("-1"));
  EXPECT_FALSE(try_parse_bytes("8 gibi"));
  EXPECT_EQ(format_bytes(1610612736), "1.5 GiB");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023.9), "1 KiB");
  EXPECT_EQ(format_bytes(3.3e12), "3 TiB");
  EXPECT_EQ(format_bytes(NAN), "-");
}

TEST(Seconds, ReadableAtEveryScale) {
  EXPECT_EQ(format_seconds(1.234e-3), "1.23 ms");
  EXPECT_EQ(format_seconds(4.5), "4.5 s");
  EXPECT_EQ(format_seconds(3e-9), "3 ns");
  EXPECT_EQ(format_seconds(2.5e-5), "25 us");
  EXPECT_EQ(format_seconds(125), "2 min 5 s");
  EXPECT_EQ(format_seconds(7300), "2 h 1 min");
  EXPECT_EQ(format_seconds(1e30), "3.17e+22 years");
  EXPECT_EQ(format_seconds(0), "0 s");
  EXPECT_EQ(format_seconds(NAN), "-");
  EXPECT_EQ(format_si(1.234e12, "FLOP/s"), "1.23 TFLOP/s");
  EXPECT_EQ(format_si(12, "B"), "12 B");
}

TEST(Duration, Parses) {
  EXPECT_EQ(parse_duration("30m"), 1800);
  EXPECT_EQ(parse_duration("90s"), 90);
  EXPECT_EQ(parse_duration("1.5h"), 5400);
  EXPECT_EQ(parse_duration("45"), 45);
  EXPECT_THROW(parse_duration("soon"), UsageError);
  EXPECT_THROW(parse_duration("-3s"), UsageError);
  EXPECT_DOUBLE_EQ(parse_fraction("5%"), 0.05);
  EXPECT_DOUBLE_EQ(parse_fraction("0.1"), 0.1);
  EXPECT_THROW(parse_fraction("five"), UsageError);
}

TEST(Utc, HasItsTwoForms) {
  EXPECT_EQ(utc_rfc3339().size(), std::string("2026-11-20T22:56:00Z").size());
  EXPECT_EQ(utc_compact().size(), std::string("20261120T225600Z").size());
}

TEST(DidYouMean, FindsSlipsOnly) {
  const std::vector<std::string> names{"seq_len", "ranks", "batch", "algorithm", "kernel"};
  EXPECT_EQ(closest_match("sqe_len", names), "seq_len");
  EXPECT_EQ(closest_match("rank", names), "ranks");
  EXPECT_EQ(closest_match("algoritm", names), "algorithm");
  EXPECT_EQ(closest_match("kern", names), "kernel");
  for (const char* far : {"zzzzz", "x", "bank", "runs"})  // two errors in four letters
    EXPECT_EQ(closest_match(far, names), "") << far;
  EXPECT_EQ(name_hint("fp16", std::vector<std::string>{"fp32", "bf16"}), "known: fp32, bf16");
  EXPECT_EQ(edit_distance("ab", "ba"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(name_hint("zzzzz", names), "known: seq_len, ranks, batch, algorithm, kernel");
}

}  // namespace
}  // namespace longnet
