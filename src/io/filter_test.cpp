#include "io/filter.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "core/testing/test_support.h"

namespace longnet {
namespace {

Point point(const std::string& algorithm, int64_t seq_len, int ranks, bool causal = false) {
  Point p{.id = "0123abcd", .params = {}, .reason = {}};
  p.params.algorithm = algorithm;
  p.params.problem.seq_len = seq_len;
  p.params.problem.causal = causal;
  p.params.ranks = ranks;
  return p;
}

bool matches(const std::string& text, const Point& p) { return parse_filter(text)(p); }

TEST(Filter, ComparesWithTokenSuffixes) {
  const Point p = point("dilated", 1 << 20, 4);
  EXPECT_TRUE(matches("seq_len == 1M", p));
  EXPECT_TRUE(matches("seq_len<=1M", p));
  EXPECT_FALSE(matches("seq_len < 1M", p));
  EXPECT_TRUE(matches("seq_len > 512K && seq_len < 1B", p));
  EXPECT_TRUE(matches("algorithm==dilated", p));
  EXPECT_TRUE(matches("algorithm == \"dilated\" && dtype != 'bf16'", p));
  EXPECT_TRUE(matches("id == 0123abcd", p));
  EXPECT_TRUE(matches("ranks >= 3.5", p));
}

TEST(Filter, AndBindsTighterThanOr) {
  EXPECT_TRUE(matches("ranks == 1 || ranks == 2 && algorithm == ring", point("local", 8, 1)));
  EXPECT_FALSE(matches("(ranks == 1 || ranks == 2) && algorithm == ring", point("local", 8, 1)));
  EXPECT_TRUE(matches("!ranks == 1 || ranks == 1", point("local", 8, 1)));
  EXPECT_TRUE(
      matches("algorithm==dilated && seq_len<=1M || !(ranks > 4)", point("ring", 1 << 21, 4)));
  EXPECT_FALSE(
      matches("algorithm==dilated && seq_len<=1M || !(ranks > 4)", point("ring", 1 << 21, 8)));
}

TEST(Filter, FlagsMayStandAlone) {
  EXPECT_TRUE(matches("causal", point("ring", 8, 1, true)));
  EXPECT_FALSE(matches("causal", point("ring", 8, 1)));
  EXPECT_TRUE(matches("!causal && ranks == 1", point("ring", 8, 1)));
  EXPECT_TRUE(matches("causal == false", point("ring", 8, 1)));
}

TEST(Filter, EmptyMatchesEverything) {
  EXPECT_TRUE(matches("", point("ring", 8, 1)));
  EXPECT_TRUE(matches("  ", point("ring", 8, 1)));
  EXPECT_TRUE(parse_filter("")(point("ring", 8, 1)));
}

void expect_error(const std::string& text, const std::string& what, int column,
                  const std::string& hint) {
  const std::string error = usage_error([&] { parse_filter(text); });
  EXPECT_NE(error.find(what), std::string::npos) << error;
  EXPECT_NE(error.find("hint: " + hint), std::string::npos) << error;
  EXPECT_NE(error.find(concat("column ", column, ":")), std::string::npos) << error;
  // The caret stands under the mistake: as far in as the text is, plus the column.
  EXPECT_NE(
      error.find(concat("\n    ", text, "\n    ", std::string(size_t(column - 1), ' '), "^\n")),
      std::string::npos)
      << error;
}

TEST(Filter, ErrorsPointAtTheMistake) {
  expect_error("ranks > 2 && sqe_len < 8K", "unknown key 'sqe_len'", 14, "did you mean 'seq_len'?");
  expect_error("algorithm = ring", "'=' has no meaning", 11, "equality is ==");
  expect_error("causal & causal", "'&' has no meaning", 8, "and is &&");
  expect_error("algorithm < ring", "has no order", 11, "use == or !=");
  expect_error("seq_len <= many", "is a number, not 'many'", 12, "write 8192");
  expect_error("(ranks > 4", "never closed", 1, "add )");
  expect_error("ranks > 4)", "expected && or ||, found ')'", 10, "put strings");
  expect_error("ranks >", "expected a value for 'ranks'", 8, "e.g.");
  expect_error("ranks", "expected an operator", 6, "operators are");
  expect_error("ranks > 4 &&", "the text ends", 13, "a condition is");
  expect_error("algorithm == 'ring", "never closed", 14, "add another");
  expect_error("causal == maybe", "is true or false", 11, "write true or false");
  expect_error("ranks == 1 ranks == 2", "expected && or ||", 12, "put strings");
  EXPECT_NE(usage_error([] { parse_filter(std::string(100000, '(')); }).find("too deeply"),
            std::string::npos);
  EXPECT_NE(usage_error([] { parse_filter(std::string(100000, '!')); }).find("too deeply"),
            std::string::npos);
}

// Random expressions, with the answer computed beside the text.
struct Sample {
  std::string text;
  std::function<bool(const Point&)> truth;
};

Sample random_condition(std::mt19937& random) {
  const int64_t n = int64_t{1} << (10 + random() % 6);
  switch (random() % 5) {
    case 0:
      return {concat("seq_len<=", n),
              [n](const Point& p) { return p.params.problem.seq_len <= n; }};
    case 1:
      return {concat("seq_len > ", n / 1024, "K"),
              [n](const Point& p) { return p.params.problem.seq_len > n; }};
    case 2:
      return {"algorithm == ring", [](const Point& p) { return p.params.algorithm == "ring"; }};
    case 3:
      return {"ranks!=2", [](const Point& p) { return p.params.ranks != 2; }};
    default:
      return {"causal", [](const Point& p) { return p.params.problem.causal; }};
  }
}

Sample random_expression(std::mt19937& random, int depth) {
  if (depth == 0 || random() % 5 == 0) return random_condition(random);
  const Sample a = random_expression(random, depth - 1);
  if (random() % 4 == 0)
    return {concat("!(", a.text, ")"), [a](const Point& p) { return !a.truth(p); }};
  const Sample b = random_expression(random, depth - 1);
  if (random() % 2 == 0)
    return {concat("(", a.text, ") && (", b.text, ")"),
            [a, b](const Point& p) { return a.truth(p) && b.truth(p); }};
  return {concat("(", a.text, ")||(", b.text, ")"),
          [a, b](const Point& p) { return a.truth(p) || b.truth(p); }};
}

TEST(Filter, AgreesWithDirectEvaluation) {
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    const Sample sample = random_expression(random, 4);
    const Filter filter = parse_filter(sample.text);
    for (int k = 0; k < 20; ++k) {
      const Point p = point(random() % 2 ? "ring" : "dilated", int64_t{1} << (9 + random() % 8),
                            int(1 + random() % 4), random() % 2);
      EXPECT_EQ(filter(p), sample.truth(p)) << sample.text;
    }
  }
}

TEST(Filter, NeverCrashesOnNoise) {
  std::mt19937 random(9);
  const std::string alphabet = "ranks seq_len==!=<>&&||()'\"causal 8K1Mring\t.-+:@";
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (size_t n = random() % 30; n > 0; --n) text += alphabet[random() % alphabet.size()];
    try {
      parse_filter(text)(point("ring", 8, 1));
    } catch (const UsageError&) {
    }
  }
}

TEST(Filter, OptionsOfAlgorithmsAreKeys) {
  Point p = point("usp", 8, 4);
  p.params.layout = LayoutKind::kZigzag;
  p.params.collective = "pairwise";
  p.params.options.ulysses_degree = 2;
  p.params.options.ring_inner = 3;
  p.params.options.head_slice = 4;
  EXPECT_TRUE(matches("layout == zigzag && collective == pairwise && ulysses_degree == 2", p));
  EXPECT_TRUE(matches("ring_inner > 2 && head_slice >= 4", p));
  EXPECT_FALSE(matches("collective != pairwise || ulysses_degree == 0", p));
}

TEST(Filter, ValuesOutsideTheKnownOnesAreMistakes) {
  const KnownNames known{.names = {{"algorithm", {"dilated", "ring"}}, {"kernel", {}}}};
  const auto error = [&](const std::string& text) {
    return usage_error([&] { parse_filter(text, known); });
  };
  EXPECT_EQ(error("algorithm != 'ring' || kernel == x || id == y"), "");
  EXPECT_EQ(error("algorithm == dilted"),
            "filter, column 14: no algorithm is named 'dilted'\n    algorithm == dilted\n    "
            "             ^\n  hint: did you mean 'dilated'?");
  EXPECT_NE(error("algorithm == xyzzy").find("known: dilated, ring"), std::string::npos);
}

TEST(Filter, EveryKeyIsUsable) {
  for (const std::string& key : filter_keys()) {
    bool parsed = false;
    for (const char* value : {"x", "1", "true", "real", "world", "fp32", "paper", "lse", "dense",
                              "forward", "zigzag", "attention", "xpos", "none"}) {
      try {
        parse_filter(concat(key, " == ", value));
        parsed = true;
      } catch (const UsageError&) {
      }
    }
    EXPECT_TRUE(parsed) << key;
  }
}

}  // namespace
}  // namespace longnet
