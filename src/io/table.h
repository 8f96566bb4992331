// A table whose rows come one at a time: aligned text for people, or CSV, Markdown and JSON. A
// command gives columns and rows; what is shown of them, and how, is decided here.
//
//   Table<Row> table({{"ranks", "", Shown::kNumber, 5, 0, [](const Row& r) { return r.p; }},
//                     {"median_s", "time", Shown::kSeconds, 8, 0, ...}},
//                    {.format = TableFormat::kText, .out = &std::cout, .notes = &std::cout});
//   table.note("two points");
//   table.add(row);
//   table.finish();
//
//   # two points              ranks,median_s         | ranks | time |       [{"ranks":2,
//   # ranks     time          2,0.0012               |---:|---:|              "median_s":0.0012}]
//         2   1.2 ms                                 | 2 | 1.2 ms |
//
// Text and Markdown take human units and the columns of highest priority that fit into a line;
// CSV and JSON take all, in the units of their names. Text begins all but rows with '#'.
#pragma once
#include <functional>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/field.h"

namespace longnet {

enum class TableFormat { kText, kCsv, kMarkdown, kJson, kJsonLines };
constexpr auto texts_of(TableFormat) { return texts("text", "csv", "md", "json", "jsonl"); }

// Kind of a value, by which it is formatted for people. A summary is cut where a line ends; a note
// is no column of text: it stands behind its row, or below it.
enum class Shown {
  kText,
  kNumber,
  kTokens,
  kSeconds,
  kBytes,
  kCount,    // FLOPs, messages: "1.2 T"
  kPercent,  // a share of 1
  kSignedPercent,
  kRatio,  // "x1.8"
  kSummary,
  kNote
};

// "1.23 ms", "7.9 GiB", "64K"; "-" for null and "".
std::string human(const JsonNode& value, Shown shown);

struct ColumnHead {
  std::string name;     // in CSV and JSON, with its unit: "median_s"
  std::string title{};  // in text and Markdown; "": the name
  Shown shown = Shown::kText;
  int width = 0;     // in text, at least the title's and, but of the last one, the widest cell's
  int priority = 0;  // 0: always shown; the greater, the earlier it is left out
};

struct TableStyle {
  TableFormat format = TableFormat::kText;
  bool wide = false;                    // all columns, notes on their rows
  size_t width = 100;                   // characters of a line, unless `wide`
  std::set<std::string> left_out{};     // columns, unless all are shown
  std::map<std::string, int> widest{};  // characters of a column's widest cell, where it is known
  std::string above{};                  // a note above the names of columns
  std::ostream* out = nullptr;          // rows
  std::ostream* notes = nullptr;        // notes of formats other than text
  std::function<void()> before_line{};  // e.g. clears a line of progress
};

class TableWriter {
 public:
  TableWriter(std::vector<ColumnHead> heads, TableStyle style);
  TableWriter(const TableWriter&) = delete;
  ~TableWriter() {  // completes the JSON of a command that an error ends
    if (has_head_ && !is_finished_) finish();
  }
  void note(std::string_view text);  // no row: "# text", of text on lines of `width`
  void head();                       // names of columns; the first row does it otherwise
  // `cells`: one per column. `colour`: "31" and the like, of a row of text.
  void row(const std::vector<JsonNode>& cells, std::string_view colour = "");
  void finish();  // closes what a format must close

 private:
  void text_row(const std::vector<JsonNode>& cells, std::string_view colour);
  std::string aligned(const std::vector<std::string>& cells) const;
  std::ostream& line();

  std::vector<ColumnHead> heads_;
  TableStyle style_;
  std::vector<size_t> columns_;  // that are shown, notes left out
  bool has_head_ = false, has_row_ = false, is_finished_ = false;
  std::string last_note_;
};

template <class Row>
struct Column : ColumnHead {
  std::function<JsonNode(const Row&)> value;
};

template <class Row>
class Table : public TableWriter {
 public:
  Table(std::vector<Column<Row>> columns, TableStyle style)
      : TableWriter({columns.begin(), columns.end()}, std::move(style)),
        columns_(std::move(columns)) {}
  void add(const Row& row, std::string_view colour = "") {
    std::vector<JsonNode> cells;
    for (const Column<Row>& column : columns_) cells.push_back(column.value(row));
    this->row(cells, colour);
  }

 private:
  std::vector<Column<Row>> columns_;
};

}  // namespace longnet
