// The suite's own cases load and can all be predicted; errors and orders of made-up ones.
#include "run/published.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/check.h"

namespace longnet {
namespace {

const std::string kFolder = LONGNET_SOURCE_DIR "/configs/published";

TEST(Published, EveryCaseOfTheSuiteIsOneThatTheSimulatorCanPredict) {
  const std::vector<PublishedCase> cases = load_published(kFolder);
  EXPECT_GE(cases.size(), 300u);  // without the loss of a file of many
  for (const PublishedCase& c : cases) {
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(kFolder) / c.file)) << c.file;
    EXPECT_EQ(c.setup.whole("ranks", 1), c.params.ranks) << c.id;
    const JsonNode* layout = c.setup.find("layout");
    EXPECT_EQ(layout ? layout->string : "contiguous", to_string(c.params.layout)) << c.id;
    EXPECT_GT(c.published_s, 0) << c.id;
    EXPECT_GT(c.tolerance, 0) << c.id;
    if (c.params.ranks > 8) continue;
    const Prediction p = predict(c);
    EXPECT_EQ(p.reason, "") << c.id;
    EXPECT_GT(p.seconds, 0) << c.id;
    EXPECT_LE(p.low_s, p.seconds) << c.id;
    EXPECT_GE(p.high_s, p.seconds) << c.id;
  }
}

PublishedCase made_up(const std::string& algorithm, double published_s, bool held_out) {
  PublishedCase c{.id = algorithm, .source = "test"};
  c.params.algorithm = algorithm;
  c.params.problem = {.seq_len = 65536};
  c.params.ranks = 8;
  c.published_s = published_s;
  c.held_out = held_out;
  return c;
}

TEST(Published, ErrorsAreRelativeAndPairsOrderedFromFivePercentOn) {
  const std::vector<PublishedCase> cases{made_up("ring", 1, true), made_up("usp", 2, false),
                                         made_up("ulysses", 2.04, true)};
  const std::vector<Prediction> predictions{
      {.seconds = 1.1, .low_s = 0.9, .high_s = 1.2}, {.seconds = 1}, {.seconds = 4.08}};
  const std::vector<PublishedErrors> errors = errors_of(cases, predictions);
  ASSERT_EQ(errors[0].name, "attention");
  EXPECT_EQ(errors[0].cases, 3);
  EXPECT_DOUBLE_EQ(errors[0].median, 0.5);
  EXPECT_EQ(errors[0].inside, 1);
  EXPECT_NEAR(errors[0].bias, std::cbrt(1.1 * 0.5 * 2) - 1, 1e-12);
  ASSERT_EQ(errors[1].name, "attention, held out");
  EXPECT_NEAR(errors[1].median, 0.55, 1e-12);
  ASSERT_EQ(errors[2].name, "rings");
  EXPECT_EQ(errors[2].cases, 1);
  ASSERT_EQ(errors[3].name, "gathers and all-to-alls");
  EXPECT_EQ(errors[3].cases, 2);
  // ring before ulysses is right, ring before usp is not; usp and ulysses are 2 % apart.
  const PublishedOrder order = order_of(cases, predictions);
  EXPECT_EQ(order.pairs, 2);
  EXPECT_EQ(order.right, 1);
  std::vector<PublishedCase> elsewhere = cases;
  elsewhere[0].how.cluster.name = "another";
  EXPECT_EQ(order_of(elsewhere, predictions).pairs, 0);
}

TEST(Published, BlindCasesHaveGroupsOfTheirOwn) {
  std::vector<PublishedCase> cases{made_up("ring", 1, true), made_up("ring", 1, true)};
  cases[1].blind = true;
  const std::vector<PublishedErrors> errors = errors_of(cases, {{.seconds = 1.01}, {.seconds = 2}});
  ASSERT_GE(errors.size(), 4u);
  EXPECT_EQ(errors[0].name, "attention");
  EXPECT_EQ(errors[0].cases, 1);
  EXPECT_EQ(errors[1].name, "attention, blind");
  EXPECT_DOUBLE_EQ(errors[1].median, 1);
  EXPECT_EQ(errors[2].name, "attention, held out");
  EXPECT_EQ(errors[2].cases, 1);
  EXPECT_EQ(errors[3].name, "rings");
  EXPECT_EQ(errors[3].cases, 1);
  EXPECT_EQ(errors[errors.size() - 2].name, kDevelopment);
  EXPECT_EQ(errors.back().name, kBlind);
  EXPECT_EQ(errors.back().cases, 1);

  cases[0].params.algorithm = "ulysses";
  cases[0].published_s = 2 * cases[1].published_s;
  EXPECT_EQ(order_of(cases, {{.seconds = 2}, {.seconds = 1}}).pairs, 0);
  cases[1].blind = false;
  EXPECT_EQ(order_of(cases, {{.seconds = 2}, {.seconds = 1}}).pairs, 1);
}

// A training step is no attention, whose goals it would join.
TEST(Published, TrainingStepsHaveGroupsOfTheirOwn) {
  std::vector<PublishedCase> cases{made_up("ring", 1, true), made_up("ring", 1, true)};
  cases[1].params.scope = Scope::kModel;
  std::vector<std::string> names;
  for (const PublishedErrors& e : errors_of(cases, {{.seconds = 1}, {.seconds = 2}})) {
    EXPECT_EQ(e.cases, e.name == "test" || e.name == kDevelopment ? 2 : 1) << e.name;
    names.push_back(e.name);
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"attention", "training steps", "rings", "models"}));
}

// Returns the error of load_published for a file with one case of this setup and these further
// lines; empty: it has none.
const std::string kHead =
    R"({"schema_version": 1, "source": "x", "url": "u", "title": "t", "verified": "no", "cluster": "h100",
             "tolerance": {"value": 0.1, "source": "s"},)";

std::string refusal_of(const std::string& setup, const std::string& more = "",
                       const std::string& head = kHead) {
  namespace fs = std::filesystem;
  // Tests run beside each other, each in a process of its own.
  const fs::path folder =
      fs::path(testing::TempDir()) / concat("published_test_", ::getpid()) / "cases";
  fs::create_directories(folder);
  std::ofstream(folder / "a.json") << head << more << R"(
             "cases": [{"id": "a", "unit": "ms", "setup": )"
                                   << setup << R"(, "value": 1}]})";
  std::string refusal;
  try {
    load_published(folder.string());
  } catch (const UsageError& e) {
    refusal = e.what();
  }
  fs::remove_all(folder.parent_path());
  return refusal;
}

TEST(Published, AFileWithAnUnknownKeyIsRefused) {
  EXPECT_EQ(refusal_of(R"({"algorithm": "ring"})"), "");
  EXPECT_THAT(refusal_of(R"({"algoritm": "ring"})"), testing::HasSubstr("algoritm"));
  EXPECT_THROW(load_published("/nowhere"), UsageError);
}

// It would be predicted with a dense pattern, which is not what was published.
TEST(Published, ASetupOfDilatedAttentionIsRefused) {
  for (const char* setup : {R"({"algorithm": "dilated"})", R"({"algorithm": "sparse"})", "{}"})
    EXPECT_THAT(refusal_of(setup),
                testing::AllOf(testing::HasSubstr("a.json"), testing::HasSubstr("hint: name"),
                               testing::HasSubstr("cases[0].setup.algorithm")))
        << setup;
}

TEST(Published, WhatACaseRestsOnMustBeStated) {
  const std::string ring = R"({"algorithm": "ring"})";
  const auto without = [&](std::string_view part, std::string_view instead = "") {
    std::string head = kHead;
    head.replace(head.find(part), part.size(), instead);
    return refusal_of(ring, "", head);
  };
  using testing::HasSubstr;
  EXPECT_THAT(without(R"("schema_version": 1,)"),
              HasSubstr("a.json:1: schema_version: is missing"));
  EXPECT_THAT(without("\"schema_version\": 1", "\"schema_version\": 2"),
              HasSubstr("schema_version"));
  EXPECT_THAT(without(R"("source": "x",)"), HasSubstr("source: is missing"));
  EXPECT_THAT(without(R"("source": "x")", R"("source": "")"), HasSubstr("source: is empty"));
  EXPECT_THAT(without(R"(, "source": "s")"), HasSubstr("tolerance.source: is missing"));
  EXPECT_THAT(without(R"("cluster": "h100",)"), HasSubstr("cluster: is missing"));
  EXPECT_THAT(without("h100", "h1000"), HasSubstr("a.json: cluster"));
  EXPECT_THAT(refusal_of(ring + R"(, "value": 1}, {"id": "a", "unit": "s", "setup": )" + ring),
              HasSubstr("two cases are named a"));
}

TEST(Published, WhatInformsTheModelIsNotBlind) {
  const std::string ring = R"({"algorithm": "ring"})", blind = R"("blind": true,)";
  EXPECT_EQ(refusal_of(ring, blind), "");
  EXPECT_EQ(refusal_of(ring, blind + R"("informs": [],)"), "");
  EXPECT_EQ(refusal_of(ring, R"("blind": false, "informs": ["a rule"],)"), "");
  EXPECT_THAT(refusal_of(ring, blind + R"("informs": ["a rule"],)"),
              testing::AllOf(testing::HasSubstr("a.json:2: informs: "),
                             testing::HasSubstr("hint: leave \"blind\" out")));
}

TEST(Published, EveryGoalCanBeMissed) {
  const std::vector<PublishedErrors> good{
      {.name = "attention", .cases = 10, .median = 0.04, .p95 = 0.14, .inside = 8},
      {.name = "rings", .bias = -0.04},
      {.name = "gathers and all-to-alls", .bias = 0.04},
      {.name = "messages, 16 MB and more", .median = 0.09},
      {.name = "messages, below 16 MB", .median = 0.29}};
  const PublishedOrder order{.pairs = 20, .right = 19};
  const auto reached = [](const auto& errors, const PublishedOrder& found) {
    return std::ranges::all_of(goals_of(errors, found), &PublishedGoal::reached);
  };
  EXPECT_TRUE(reached(good, order));
  EXPECT_FALSE(reached(good, PublishedOrder{.pairs = 20, .right = 18}));
  const auto missed = [&](size_t group, auto&& worsen) {
    std::vector<PublishedErrors> errors = good;
    worsen(errors[group]);
    return !reached(errors, order);
  };
  EXPECT_TRUE(missed(0, [](PublishedErrors& e) { e.median = 0.06; }));
  EXPECT_TRUE(missed(0, [](PublishedErrors& e) { e.p95 = 0.16; }));
  EXPECT_TRUE(missed(0, [](PublishedErrors& e) { e.inside = 7; }));
  EXPECT_TRUE(missed(1, [](PublishedErrors& e) { e.bias = -0.06; }));
  EXPECT_TRUE(missed(2, [](PublishedErrors& e) { e.bias = 0.06; }));
  EXPECT_TRUE(missed(3, [](PublishedErrors& e) { e.median = 0.11; }));
  EXPECT_TRUE(missed(4, [](PublishedErrors& e) { e.median = 0.31; }));
}

}  // namespace
}  // namespace longnet
