// Each error that is too large fails its section.
#include "run/validation.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/check.h"

namespace longnet {
namespace {

TEST(Validation, ClosedFormsAllowTheLastDigitsOnly) {
  const ClosedFormTime right{"a", "", 2, 2 * (1 + 1e-10)};
  const ClosedFormTime wrong{"b", "", 2, 2 * (1 + 1e-8)};
  const ClosedFormTime none{"c", "", 2, std::numeric_limits<double>::quiet_NaN()};
  EXPECT_TRUE(judge_closed_forms({right}).good);
  EXPECT_FALSE(judge_closed_forms({none, right}).good);
  const ValidationSection s = judge_closed_forms({wrong, right});
  EXPECT_FALSE(s.good);
  EXPECT_NEAR(s.node.real("max_rel_error"), 1e-8, 1e-12);
  EXPECT_EQ(s.node.find("cases")->items.size(), 2u);
}

TEST(Validation, SimGridAllowsMoreUnderContention) {
  const auto section = [](double alone, double shared) {
    return judge_simgrid(JsonNode::object(
        {{"uncontended", JsonNode::object({{"cases", 3}, {"max_rel_error", alone}})},
         {"contended", JsonNode::object({{"cases", 4}, {"max_rel_error", shared}})},
         {"cases", JsonNode::array()}}));
  };
  EXPECT_TRUE(section(1e-7, 0.019).good);
  EXPECT_FALSE(section(1e-5, 0.019).good);
  EXPECT_FALSE(section(1e-7, 0.021).good);
  EXPECT_EQ(section(1e-7, 0.019).node.whole("contended_cases"), 4);
}

TEST(Validation, RealRunsHaveTwoLimits) {
  JsonNode compared = JsonNode::object({{"points", 9},
                                        {"median_rel_error", 0.04},
                                        {"p95_rel_error", 0.14},
                                        {"goal_median_rel_error", 0.05},
                                        {"goal_p95_rel_error", 0.15}});
  EXPECT_THROW(judge_real(compared), UsageError);
  compared.set("cases", JsonNode::array().push(JsonNode::object()));
  EXPECT_TRUE(judge_real(compared).good);
  EXPECT_FALSE(judge_real(JsonNode(compared).set("median_rel_error", 0.06)).good);
  EXPECT_FALSE(judge_real(JsonNode(compared).set("p95_rel_error", 0.16)).good);
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, JsonNode>>{
           {"points", 0}, {"median_rel_error", "small"}, {"goal_p95_rel_error", -1}, {"cases", 3}})
    EXPECT_THROW(judge_real(JsonNode(compared).set(key, value)), UsageError) << key;
}

TEST(Validation, PublishedCasesWithoutAPredictionHaveNoError) {
  const PublishedCase c{.id = "a",
                        .source = "s",
                        .file = "a.json",
                        .setup = JsonNode::object({{"operation", "all_gather"}, {"ranks", 8}}),
                        .how = {.cluster = {.name = "c", .device = {.name = "d"}},
                                .what_if = parse_what_if("merge=eager")},
                        .operation = CommOperation::kAllGather,
                        .published_s = 2};
  const ValidationSection s = judge_published(
      {c, c, c}, {{.seconds = 3, .low_s = 2.5, .high_s = 4}, {.reason = "too large"}, {3, 2, 4}});
  const std::vector<JsonNode>& cases = s.node.find("cases")->items;
  EXPECT_EQ(cases[0].real("error"), 0.5);
  EXPECT_EQ(cases[0].text("family"), "all_gather");
  EXPECT_EQ(cases[0].text("file") + cases[0].text("cluster") + cases[0].text("device"), "a.jsoncd");
  EXPECT_EQ(cases[0].text("what_if"), "merge=eager");
  EXPECT_EQ(cases[0].find("setup")->whole("ranks"), 8);
  EXPECT_TRUE(cases[1].find("error")->is_null());
  EXPECT_TRUE(cases[1].find("inside")->is_null());
  EXPECT_EQ(cases[1].text("reason"), "too large");
  EXPECT_FALSE(cases[0].find("inside")->boolean);
  EXPECT_TRUE(cases[2].find("inside")->boolean);  // 2 s, the end of its interval
  EXPECT_EQ(s.node.find("groups")->items[0].real("median_rel_error"), 0.5);
  EXPECT_FALSE(s.good);  // small messages may be off by 30 %
}

}  // namespace
}  // namespace longnet
