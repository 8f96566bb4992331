#include "io/axes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

namespace longnet {
namespace {

// A value of the right type that is not the default.
Value other_value(const Axis& axis) {
  Value value = axis.standard;
  if (auto* number = std::get_if<int64_t>(&value)) *number += 8;
  if (auto* flag = std::get_if<bool>(&value)) *flag = true;
  if (auto* text = std::get_if<std::string>(&value)) {
    const std::vector<std::string>& words = axis.field.words;
    *text = words.empty() ? "another" : words[0] == *text ? words[1] : words[0];
  }
  return value;
}

TEST(Axes, EachNamesAMemberOfItsOwn) {
  std::set<std::string_view> keys;
  for (const Axis& axis : axes()) {
    EXPECT_TRUE(keys.insert(axis.key).second) << axis.key;
    EXPECT_EQ(find_axis(axis.key), &axis);
    EXPECT_FALSE(axis.help.empty()) << axis.key;
    PointParams p = standard_params();
    EXPECT_TRUE(axis.is_standard(p)) << axis.key;
    axis.member.set(p, other_value(axis));
    EXPECT_EQ(axis.member.get(p), other_value(axis)) << axis.key;
    for (const Axis& others : axes())
      EXPECT_EQ(others.is_standard(p), &others != &axis) << axis.key << ", " << others.key;
  }
  EXPECT_EQ(find_axis("id"), nullptr);
}

TEST(Axes, ReadersAreOfAPatternOrByName) {
  const KnownNames known{.algorithms = {{"local", {.one_rank_only = true}}}};
  const auto readers = [&](const char* key, const std::string& collective = "native",
                           Pass pass = Pass::kForward) {
    std::vector<std::string> names;
    for (const char* name : {"local", "ring", "usp", "dilated", "sparse"}) {
      PointParams p = standard_params();
      p.algorithm = name;
      p.collective = collective;
      p.pass = pass;
      if (reads(*find_axis(key), find_axis(key)->standard, p, known)) names.push_back(name);
    }
    return names;
  };
  using testing::ElementsAre;
  EXPECT_EQ(readers("seq_len").size(), 5u);
  EXPECT_THAT(readers("layout"), ElementsAre("ring", "usp"));
  EXPECT_THAT(readers("mix"), ElementsAre("dilated"));
  EXPECT_THAT(readers("ulysses_degree"), ElementsAre("usp"));
  EXPECT_THAT(readers("node_size"), ElementsAre());
  EXPECT_EQ(readers("node_size", "hierarchical").size(), 5u);
  EXPECT_THAT(readers("keep_gathered"), ElementsAre());
  for (const Pass pass : {Pass::kBackward, Pass::kForwardBackward, Pass::kStep})
    EXPECT_THAT(readers("keep_gathered", "native", pass), ElementsAre("dilated", "sparse"));
}

TEST(Axes, TextsNameWhatIsNotTheDefault) {
  PointParams p = standard_params();
  p.algorithm = "usp";
  EXPECT_EQ(options_text(p), "");
  EXPECT_EQ(series_name(p), "usp threads cpu ranks=1");
  p.layout = LayoutKind::kZigzag;
  p.problem.causal = true;
  p.problem.num_kv_heads = p.problem.num_heads;  // as many as heads: the default
  p.options.ulysses_degree = 2;
  EXPECT_EQ(options_text(p), "zigzag Pu=2 causal");
  EXPECT_EQ(options_text(p, /*with_sections=*/false), "zigzag Pu=2");
  p.problem.num_kv_heads = 4;
  p.mode = Mode::kVirtual;
  EXPECT_EQ(options_text(p), "zigzag Pu=2 G=4 causal");
  EXPECT_EQ(series_name(p),
            "usp virtual cpu layout=zigzag kv_heads=4 causal=true ranks=1 ulysses_degree=2");
}

// Labels that are no key: "Pu=", "rows kept".
TEST(Axes, EachLabelIsExplained) {
  std::ifstream page(LONGNET_SOURCE_DIR "/docs/commands.md");
  std::vector<std::string> rows;
  for (std::string line; std::getline(page, line);) rows.push_back(line);
  for (const Axis& axis : axes()) {
    const std::string label(axis.use.label.value_or(""));
    if (label.empty() || label.starts_with(axis.key)) continue;
    EXPECT_TRUE(std::ranges::any_of(rows,
                                    [&](const std::string& row) {
                                      return row.starts_with("| `") &&
                                             row.find(label) != std::string::npos &&
                                             row.find(concat("`", axis.key, "`")) !=
                                                 std::string::npos;
                                    }))
        << label << " of " << axis.key;
  }
}

}  // namespace
}  // namespace longnet
