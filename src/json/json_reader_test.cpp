#include "json/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/check.h"
#include "core/testing/test_support.h"

namespace longnet {
namespace {

using testing::HasSubstr;

struct Read {
  double seconds = 7;
  bool on = false;
  std::string kernel = "cpu";
};

// Returns the list of problems of the text, whose fields are read into `read`.
std::string problems_of(const std::string& text, Read& read) {
  return usage_error([&] {
    const JsonNode root = parse_json(text, "f.json");
    Problems problems;
    JsonReader reader(&root, "measure", problems);
    reader.field("seconds", read.seconds, Limits{.min = 0, .max = 60, .min_excluded = true});
    reader.field("on", read.on);
    reader.field("kernel", read.kernel, std::vector<std::string>{"cpu", "cuda"});
    reader.unknown_keys();
    problems.throw_if_any();
  });
}

TEST(JsonReader, TakesFieldsAndLeavesAbsentOnes) {
  Read read;
  EXPECT_EQ(problems_of(R"({"seconds": 60, "kernel": "cuda"})", read), "");
  EXPECT_EQ(read.seconds, 60);
  EXPECT_EQ(read.kernel, "cuda");
  EXPECT_FALSE(read.on);
}

TEST(JsonReader, SaysAllThatIsWrongAndWhere) {
  Read read;
  const std::string said = problems_of(
      "{\n\"seconds\": 0,\n\"on\": [true],\n\"kernel\": \"cdua\",\n\"secnds\": 1}", read);
  for (const char* part :
       {"f.json:2: measure.seconds: must be a number greater than 0 and at most 60, is 0",
        "f.json:3: measure.on: must be true or false, is [true]", "lists belong into sweep",
        "f.json:4: measure.kernel: 'cdua' is not known", "did you mean 'cuda'",
        "f.json:5: measure.secnds: unknown key", "did you mean 'seconds'"})
    EXPECT_THAT(said, HasSubstr(part));
  EXPECT_EQ(read.seconds, 7);  // as it was
  EXPECT_EQ(read.kernel, "cpu");
}

TEST(JsonReader, NumbersBeyondALimitAndOtherKinds) {
  Read read;
  EXPECT_EQ(problems_of(R"({"seconds": 1e-300})", read), "");
  EXPECT_THAT(problems_of(R"({"seconds": 60.5})", read), HasSubstr("at most 60, is 60.5"));
  EXPECT_THAT(problems_of(R"({"seconds": "1"})", read), HasSubstr("write it without quotes"));
  EXPECT_THAT(problems_of("[1]", read), HasSubstr("measure: must be an object"));
}

TEST(JsonReader, TwentyProblemsAreSaid) {
  std::string text = "{";
  for (int i = 0; i < 23; ++i) text += concat(i > 0 ? "," : "", "\"q", i, "\": 0");
  Read read;
  const std::string said = problems_of(text + "}", read);
  EXPECT_THAT(said, HasSubstr("measure.q19: unknown key"));
  EXPECT_THAT(said, testing::Not(HasSubstr("measure.q20:")));
  EXPECT_THAT(said, HasSubstr("... and 3 more problems"));
}

TEST(JsonReader, AListOrTheValueItself) {
  const JsonNode root = parse_json(R"({"a": [1, 2], "b": 3, "c": []})", "f.json");
  Problems problems;
  EXPECT_EQ(as_list(*root.find("a"), "a", problems).size(), 2u);
  EXPECT_EQ(as_list(*root.find("b"), "b", problems).front(), root.find("b"));
  EXPECT_TRUE(problems.empty());
  EXPECT_TRUE(as_list(*root.find("c"), "c", problems).empty());
  EXPECT_FALSE(problems.empty());
}

}  // namespace
}  // namespace longnet
