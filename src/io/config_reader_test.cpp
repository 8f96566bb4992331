#include "io/config_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/testing/test_support.h"

namespace longnet {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// One JSON value, read as a field of this kind; `before` gives the type.
struct Read {
  Value value;
  bool ok;
  std::string problems;
};
Read read(const std::string& json, const Field& field, Value before = int64_t{-1}) {
  Problems problems;
  Read result{std::move(before), false, ""};
  result.ok = read_value(parse_json(json, "t.json"), "sweep.x", field, problems, result.value);
  if (!problems.empty()) result.problems = usage_error([&] { problems.throw_if_any(); });
  return result;
}

TEST(ReadValue, WholeNumbersAreWrittenInManyWays) {
  const Field tokens{.unit = Unit::kTokens}, bytes{.unit = Unit::kBytes};
  EXPECT_EQ(read("8192", tokens).value, Value(int64_t{8192}));
  EXPECT_EQ(read("\"8K\"", tokens).value, Value(int64_t{8192}));
  EXPECT_EQ(read("1e6", {}).value, Value(int64_t{1000000}));
  EXPECT_EQ(read("\"8GiB\"", bytes).value, Value(int64_t{8} << 30));
  EXPECT_EQ(read("\"world\"", {.words = {"world"}}).value, Value(std::string("world")));
  EXPECT_EQ(read("true", {}, false).value, Value(true));
}

// A refusal names the place and the limit, and the value stays.
TEST(ReadValue, RefusalsNameTheLimitAndLeaveTheValue) {
  const auto refused = [](const std::string& json, const Field& field, const Value& before,
                          const std::string& why, const std::string& hint) {
    const Read r = read(json, field, before);
    EXPECT_FALSE(r.ok) << json;
    EXPECT_EQ(r.value, before) << json;
    EXPECT_THAT(r.problems, AllOf(HasSubstr("t.json:1: sweep.x: " + why), HasSubstr(hint)));
  };
  const Value one = int64_t{1};
  refused("0", {.min = 2}, one, "must be at least 2, is 0", "use 2 or more");
  refused("-1", {}, one, "must be at least 0, is -1", "use 0 or more");
  refused("9", {.max = 8}, one, "must be at most 8, is 9", "use 8 or less");
  refused("9", {.multiple_of = 8}, one, "must be a multiple of 8, is 9", "the next one is 16");
  refused("1.5", {}, one, "must be an integer", "without quotes");
  refused("\"8K\"", {}, one, "must be an integer", "without quotes");
  refused("\"all\"", {.words = {"world"}}, one, "must be an integer or \"world\"", "or \"world\"");
  refused("\"\"", {.min = 1}, std::string("a"), "is empty", "leave the key out");
}

// A number, a list and a word in place of a number, from one object.
struct Settings {
  int64_t warmup = 3;
  std::vector<int64_t> sizes{7};
  std::optional<int64_t> limit = 5;
  double share = 0.5;
};
std::string read_settings(const std::string& json, Settings& out) {
  Problems problems;
  const JsonNode node = parse_json(json, "t.json");
  FieldReader reader(&node, "run", problems);
  reader("warmup", out.warmup, {.min = 0});
  reader("sizes", out.sizes);
  reader("limit", out.limit, {.words = {"none"}});
  reader("share", out.share, {.min = 0, .max = 1});
  reader.unknown_keys();
  return problems.empty() ? "" : usage_error([&] { problems.throw_if_any(); });
}

TEST(FieldReader, ReadsTheKeysThatAreThere) {
  Settings s;
  EXPECT_EQ(read_settings(R"({"sizes": [1, 2], "limit": "none", "share": 0.25})", s), "");
  EXPECT_EQ(s.warmup, 3);
  EXPECT_THAT(s.sizes, ElementsAre(1, 2));
  EXPECT_EQ(s.limit, std::nullopt);
  EXPECT_EQ(s.share, 0.25);
  EXPECT_EQ(read_settings(R"({"sizes": 4, "limit": 9})", s), "");  // one value is a list of it
  EXPECT_THAT(s.sizes, ElementsAre(4));
  EXPECT_EQ(s.limit, 9);
}

TEST(FieldReader, CollectsEveryProblem) {
  Settings s;
  const std::string said =
      read_settings(R"({"warmup": -1, "sizes": [], "share": 2, "warm": 1})", s);
  for (const char* path : {"run.warmup: ", "run.sizes: ", "run.share: ", "run.warm"})
    EXPECT_THAT(said, HasSubstr(path));
  EXPECT_EQ(s.warmup, 3);
  EXPECT_EQ(s.share, 0.5);
}

TEST(FieldReader, AnAxisIsAListOrARange) {
  const Axis& ranks = *find_axis("ranks");
  const auto axis = [&](const std::string& json) {
    Problems problems;
    const JsonNode node = parse_json("{\"ranks\": " + json + "}", "t.json");
    SweepConfig sweep;
    FieldReader(&node, "sweep", problems).axis(ranks, {}, sweep);
    problems.throw_if_any();
    return sweep.axes.at("ranks");
  };
  EXPECT_THAT(axis("[1, 4]").values, ElementsAre(Value(int64_t{1}), Value(int64_t{4})));
  EXPECT_THAT(axis("2").values, ElementsAre(Value(int64_t{2})));
  const AxisValues range = axis(R"({"from": 1, "to": 8, "factor": 2})");
  EXPECT_TRUE(range.is_range);
  EXPECT_EQ(range.from, 1);
  EXPECT_EQ(range.to, Value(int64_t{8}));
  for (const auto& [json, why] : {std::pair(R"({"from": 1, "factor": 2})", "needs \"from\" and"),
                                  std::pair(R"({"from": 1, "to": 8})", "a factor or a step"),
                                  std::pair(R"({"from": 8, "to": 1, "step": 1})", "upwards")})
    EXPECT_THAT(usage_error([&] { axis(json); }), HasSubstr(why));
}

}  // namespace
}  // namespace longnet
