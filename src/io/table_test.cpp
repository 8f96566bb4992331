#include "io/table.h"

#include <gtest/gtest.h>

#include <sstream>

#include "core/testing/test_support.h"
#include "json/json_tree.h"

namespace longnet {
namespace {

struct TableRow {
  int ranks;
  double seconds;
  std::string options, note;
};

std::vector<Column<TableRow>> test_columns() {
  return {{"ranks", "", Shown::kNumber, 5, 0, [](const TableRow& r) { return r.ranks; }},
          {"median_s", "time", Shown::kSeconds, 8, 0, [](const TableRow& r) { return r.seconds; }},
          {"ci_low_s", "low", Shown::kSeconds, 80, 3, [](const TableRow&) { return 0.5; }},
          {"options", "", Shown::kText, 10, 0, [](const TableRow& r) { return r.options; }},
          {"note", "", Shown::kNote, 80, 0, [](const TableRow& r) { return r.note; }}};
}

const std::vector<TableRow> kRows{
    {2, 0.00123, "", ""}, {16, NAN, "d=128, \"bf16\"", "a|b"}, {32, 7300, "", "a|b"}};

std::string written(TableStyle style, const std::vector<TableRow>& rows = kRows,
                    std::string* notes = nullptr) {
  std::ostringstream out, aside;
  style.out = &out;
  style.notes = &aside;
  Table<TableRow> table(test_columns(), style);
  table.note("hello");
  for (const TableRow& row : rows) table.add(row);
  table.finish();
  if (notes) *notes = aside.str();
  return out.str();
}

TEST(Table, TextHasHumanUnitsAndNotes) {
  EXPECT_EQ(written({}),
            "# hello\n"
            "# ranks     time options\n"
            "      2  1.23 ms -\n"
            "     16        - d=128, \"bf16\"  # a|b\n"
            "     32 2 h 1 min -  # as above\n");
}

TEST(Table, SignedSharesSayPlusAndRatiosX) {
  EXPECT_EQ(human(1.842, Shown::kRatio), "x1.84");
  EXPECT_EQ(human(0.0451, Shown::kSignedPercent), "+4.51 %");
  EXPECT_EQ(human(-0.5, Shown::kSignedPercent), "-50 %");
  EXPECT_EQ(human(0.0451, Shown::kPercent), "4.51 %");
}

TEST(Table, CsvHasAllColumnsAndRawValues) {
  std::string notes;
  EXPECT_EQ(written({.format = TableFormat::kCsv}, kRows, &notes),
            "ranks,median_s,ci_low_s,options,note\n"
            "2,0.00123,0.5,,\n"
            "16,,0.5,\"d=128, \"\"bf16\"\"\",a|b\n"
            "32,7300.0,0.5,,a|b\n");
  EXPECT_EQ(notes, "# hello\n");
}

TEST(Table, MarkdownEscapesItsBars) {
  EXPECT_EQ(written({.format = TableFormat::kMarkdown}, {kRows[1]}),
            "| ranks | time | options | note |\n"
            "|---:|---:|---|---|\n"
            "| 16 | - | d=128, \"bf16\" | a\\|b |\n");
}

TEST(Table, JsonIsClosedWhereAnErrorEndsTheCommand) {
  std::ostringstream out;
  EXPECT_THROW(
      {
        Table<TableRow> table(test_columns(), {.format = TableFormat::kJson, .out = &out});
        table.add(kRows[0]);
        throw std::runtime_error("disk full");
      },
      std::runtime_error);
  EXPECT_EQ(parse_json(out.str(), "test").items.size(), 1U);
}

TEST(Table, JsonIsOneValue) {
  const JsonNode all = parse_json(written({.format = TableFormat::kJson}), "test");
  ASSERT_EQ(all.items.size(), 3U);
  EXPECT_EQ(all.items[0].real("median_s"), 0.00123);
  EXPECT_TRUE(all.items[1].find("median_s")->is_null());
  EXPECT_EQ(all.items[1].text("options"), "d=128, \"bf16\"");
  EXPECT_TRUE(parse_json(written({.format = TableFormat::kJson}, {}), "test").items.empty());
  std::istringstream lines(written({.format = TableFormat::kJsonLines}));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) parse_json(line, "test");
  EXPECT_EQ(count, 3);
}

TEST(Table, WideShowsAllOnOneLine) {
  const std::string text = written({.wide = true}, {{2, 1, std::string(90, 'x'), "why"}});
  EXPECT_NE(text.find("low"), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
}

TEST(Table, TextLeavesColumnsOut) {
  const std::set<std::string> left_out{"options"};
  EXPECT_EQ(written({.left_out = left_out}).find("options"), std::string::npos);
  for (const TableStyle& all : {TableStyle{.wide = true, .left_out = left_out},
                                TableStyle{.format = TableFormat::kCsv, .left_out = left_out}})
    EXPECT_NE(written(all).find("options"), std::string::npos);
  EXPECT_EQ(written({}).find("low"), std::string::npos);
  EXPECT_NE(written({.width = 120}).find("low"), std::string::npos);
}

TEST(Table, ColumnsAreAsWideAsTheirWidestCell) {
  EXPECT_EQ(written({.widest = {{"median_s", 12}}}, {kRows[0]}),
            "# hello\n"
            "# ranks         time options\n"
            "      2      1.23 ms -\n");
  // Room for options is that of columns of priority 2 or more, of which "low" is one.
  EXPECT_NE(written({.width = 120, .widest = {{"options", 22}}}).find("low"), std::string::npos);
  EXPECT_EQ(written({.width = 120, .widest = {{"options", 24}}}).find("low"), std::string::npos);
}

TEST(Table, ColumnsLeftOutTakeNoRoom) {
  for (const bool is_left_out : {false, true}) {
    std::ostringstream out;
    const auto value = [](int) { return 1; };
    TableStyle style{.out = &out};
    if (is_left_out) style.left_out = {"one"};
    Table<int>({{"one", "", Shown::kNumber, 40, 0, value},
                {"two", "", Shown::kNumber, 40, 1, value},
                {"three", "", Shown::kNumber, 30, 0, value}},
               style)
        .add(1);
    EXPECT_EQ(out.str().find("two") != std::string::npos, is_left_out);
  }
}

TEST(Table, WordsThatFitStayOnTheRow) {
  EXPECT_EQ(written({.width = 34}, {{2, 1, "forward_backward rows kept", ""}}),
            "# hello\n"
            "# ranks     time options\n"
            "      2      1 s ...\n"
            "#      forward_backward rows kept\n");
  EXPECT_EQ(written({.width = 40}, {{2, 1, "forward_backward rows kept", ""}}),
            "# hello\n"
            "# ranks     time options\n"
            "      2      1 s forward_backward ...\n"
            "#      rows kept\n");
}

// Whatever the cells hold, what is too long stands below its row.
TEST(Table, NoLineIsLongerThanAHundred) {
  const std::string reason =
      "needs 3 GiB per rank, 2 GiB are allowed on this machine of ours; "
      "fits with batch=2, which is the cheapest change that there is";
  const std::string text = written({}, {{2, 1, std::string(90, 'x'), reason}, {4, 1, "", reason}});
  std::istringstream lines(text);
  std::vector<std::string> all;
  for (std::string line; std::getline(lines, line);) all.push_back(line);
  ASSERT_EQ(all.size(), 7U) << text;
  for (const std::string& line : all) EXPECT_LE(line.size(), 100U) << line;
  EXPECT_EQ(all[2].substr(all[2].size() - 4), " ...");
  EXPECT_EQ(all[3], "#      " + std::string(90, 'x'));
  EXPECT_EQ(all[4].substr(0, 20), "#      needs 3 GiB p");
  EXPECT_NE(all[6].find("# as above"), std::string::npos);
}

TEST(Table, NotesHaveNoControlCharacters) {
  for (const bool wide : {false, true}) {
    std::ostringstream out;
    Table<TableRow>(test_columns(), {.wide = wide, .out = &out}).note("a\x1b[2Jb");
    EXPECT_EQ(out.str().substr(0, 12), "# a\uFFFD[2Jb\n");
  }
}

TEST(Table, LinesBeginOnAClearedLine) {
  std::ostringstream out;
  Table<TableRow> table(test_columns(), {.out = &out, .before_line = [&] { out << "<"; }});
  table.add(kRows[0]);
  table.note("x");
  EXPECT_EQ(out.str(), "<# ranks     time options\n<      2  1.23 ms -\n<# x\n");
}

}  // namespace
}  // namespace longnet
