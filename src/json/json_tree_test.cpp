#include "json/json_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/testing/test_support.h"

namespace longnet {
namespace {

TEST(JsonTree, KnowsTheLineOfEachValue) {
  const JsonNode root = parse_json(
      "// first\n{\n  \"a\": 1,\n  \"b\": [2,\n    3\n  ],\n  /* two\n lines */ \"c\": { \"d\": "
      "\"x\" },\n"
      "  \"e\": 5\n}\n",
      "file.json");
  EXPECT_EQ(root.line, 2);
  EXPECT_EQ(root.find("a")->line, 3);
  EXPECT_EQ(root.find("b")->line, 4);
  EXPECT_EQ(root.find("b")->items[0].line, 4);
  EXPECT_EQ(root.find("b")->items[1].line,
            5);  // followed by the line's end, which the lexer has read
  EXPECT_EQ(root.find("c")->find("d")->line, 8);
  EXPECT_EQ(root.find("e")->where(), "file.json:9");
}

TEST(JsonTree, RefusesDuplicateKeys) {
  const std::string error =
      usage_error([] { parse_json("{\n\"a\": 1,\n\"b\": 2,\n\"a\": 3}", "f.json"); });
  EXPECT_NE(error.find("f.json:4: key 'a' occurs twice"), std::string::npos) << error;
  EXPECT_NE(error.find("line 2"), std::string::npos) << error;
}

TEST(JsonTree, SyntaxErrorsNameTheLine) {
  const std::string error =
      usage_error([] { parse_json("{\n  \"a\": 1,\n  \"b\" 2\n}", "f.json"); });
  EXPECT_NE(error.find("f.json:3: not valid JSON"), std::string::npos) << error;
  EXPECT_NE(error.find("hint"), std::string::npos) << error;
  EXPECT_NE(usage_error([] { parse_json("{\"a\": 1} x", "f"); }), "");
  EXPECT_NE(usage_error([] { parse_json("{\"a\": 1,}", "f"); }), "");
  EXPECT_NE(usage_error([] { parse_json("", "f"); }), "");
  EXPECT_NE(usage_error([] { parse_json("{\"a\": NaN}", "f"); }), "");
}

TEST(JsonTree, NumbersKeepTheirValue) {
  const JsonNode n = parse_json("[9007199254740993, 0.1, 1e300, -5, 18446744073709551615]", "f");
  EXPECT_EQ(n.items[0].integer, 9007199254740993);
  EXPECT_EQ(n.items[1].number, 0.1);
  EXPECT_EQ(n.items[2].number, 1e300);
  EXPECT_EQ(n.items[3].integer, -5);
  EXPECT_EQ(n.items[4].kind, JsonNode::Kind::kNumber);
  EXPECT_EQ(dump_json(parse_json("[0.1,9007199254740993]", "f")), "[0.1,9007199254740993]");
}

TEST(JsonTree, NotFiniteIsNull) {
  JsonNode n = JsonNode::object();
  n.set("x", NAN).set("y", INFINITY).set("z", 0.5);
  EXPECT_EQ(dump_json(n), R"({"x":null,"y":null,"z":0.5})");
  EXPECT_TRUE(std::isnan(n.real("x")));
}

TEST(JsonTree, CanonicalTextSortsKeys) {
  const JsonNode a = parse_json(R"({"b": 1, "a": {"d": 2, "c": [3]}})", "f");
  const JsonNode b = parse_json(R"({"a": {"c": [3], "d": 2}, "b": 1})", "g");
  EXPECT_EQ(dump_json(a, -1, true), R"({"a":{"c":[3],"d":2},"b":1})");
  EXPECT_EQ(dump_json(a, -1, true), dump_json(b, -1, true));
  EXPECT_EQ(dump_json(a), R"({"b":1,"a":{"d":2,"c":[3]}})");
}

TEST(JsonTree, ItemsStandOnOneLineEach) {
  const JsonNode n = parse_json(
      R"({"ranks": [1, 2], "points": [{"id": "a", "params": {"branches": [[8]]}}, 3],
          "head": {"name": "x", "none": {}, "empty": []}})",
      "f");
  const std::string text = dump_json(n, 1);
  EXPECT_EQ(text, R"({
 "ranks": [1,2],
 "points": [
  {"id":"a","params":{"branches":[[8]]}},
  3
 ],
 "head": {
  "name": "x",
  "none": {},
  "empty": []
 }
})");
  EXPECT_EQ(dump_json(parse_json(text, "g")), dump_json(n));
  EXPECT_EQ(dump_json(JsonNode(1.5), 1), "1.5");
}

TEST(JsonTree, TakesAMember) {
  JsonNode n = parse_json(R"({"a": 1, "b": [2], "c": 3})", "f");
  EXPECT_EQ(dump_json(n.take("b")), "[2]");
  EXPECT_TRUE(n.take("b").is_null());
  EXPECT_EQ(dump_json(n), R"({"a":1,"c":3})");
}

TEST(JsonTree, BadUtf8DoesNotThrow) {
  JsonNode n = JsonNode::object();
  n.set("x", std::string("a\xff"
                         "b"));
  EXPECT_NE(dump_json(n).find("a"), std::string::npos);
}

TEST(JsonTree, RefusesWhatNoReaderCanWalk) {
  const auto nested = [](size_t levels, const std::string& open, const std::string& close) {
    std::string text = "1";
    for (size_t i = 0; i < levels; ++i) text = open + text + close;
    return text;
  };
  EXPECT_NO_THROW(parse_json(nested(100, "[", "]"), "x"));
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"a\":", "}")})
    EXPECT_THAT(usage_error([&, o = open, c = close] { parse_json(nested(101, o, c), "x"); }),
                testing::HasSubstr("x:1: nested deeper than 100 levels"));
  EXPECT_THAT(usage_error([] { parse_json(std::string(100000, '['), "x"); }),
              testing::HasSubstr("nested"));
  std::string keys = "{";
  for (int i = 0; i < 10001; ++i) keys += concat("\"", i, "\":1,");
  EXPECT_THAT(usage_error([&] { parse_json(keys + "\"z\":1}", "x"); }),
              testing::HasSubstr("more than 10000 keys"));
}

TEST(JsonTree, ControlCharactersOfStringsAreReplaced) {
  const JsonNode n = parse_json("{\"a\": \"\\u001b[31m\\n\\t\\u009b\\u0085 \\u00e9\"}", "x");
  EXPECT_EQ(n.text("a"), "\uFFFD[31m\n\t\uFFFD\uFFFD \u00e9");
}

}  // namespace
}  // namespace longnet
