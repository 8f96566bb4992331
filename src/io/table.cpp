#include "io/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "io/units.h"
#include "json/text.h"

namespace longnet {
namespace {

constexpr std::string_view kBelow = "#      ";  // before what does not fit a row

bool is_left(Shown shown) { return shown == Shown::kText || shown >= Shown::kSummary; }

std::string significant(double value) {
  std::array<char, 32> text{};
  const bool whole = std::abs(value) >= 999.5 && std::abs(value) < 1e6;
  std::snprintf(text.data(), text.size(), whole ? "%.0f" : "%.3g", value);
  return text.data();
}

std::string csv_cell(const JsonNode& value) {
  if (value.is_null()) return "";
  std::string text = value.is_string() ? value.string : dump_json(value);
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string markdown_cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.insert(at, 1, '\\');
  return text;
}

}  // namespace

std::string human(const JsonNode& value, Shown shown) {
  if (value.is_null() || (value.is_string() && value.string.empty())) return "-";
  if (value.is_string()) return value.string;
  if (value.kind == JsonNode::Kind::kBool) return value.boolean ? "yes" : "no";
  if (!value.is_number()) return dump_json(value);
  switch (shown) {
    case Shown::kTokens:
      return format_tokens(value.integer);
    case Shown::kSeconds:
      return format_seconds(value.number);
    case Shown::kBytes:
      return format_bytes(value.number);
    case Shown::kCount:
      return format_si(value.number, "");
    case Shown::kPercent:
      return significant(100 * value.number) + " %";
    case Shown::kSignedPercent:
      return (value.number > 0 ? "+" : "") + significant(100 * value.number) + " %";
    case Shown::kRatio:
      return "x" + significant(value.number);
    default:
      return value.kind == JsonNode::Kind::kInteger ? std::to_string(value.integer)
                                                    : significant(value.number);
  }
}

TableWriter::TableWriter(std::vector<ColumnHead> heads, TableStyle style)
    : heads_(std::move(heads)), style_(std::move(style)) {
  int rest = 0;  // excess of the last column's widest cell: it can stand below its row
  for (size_t i = 0; i < heads_.size(); ++i) {
    ColumnHead& head = heads_[i];
    if (head.title.empty()) head.title = head.name;
    head.width = std::max(head.width, int(head.title.size()) + (i == 0 ? 2 : 0));
    if (head.shown != Shown::kNote) {
      rest = std::max(0, style_.widest[head.name] - head.width);
      head.width += rest;
    }
    if (head.shown != Shown::kNote || style_.format != TableFormat::kText) columns_.push_back(i);
  }
  const bool all =
      style_.wide || style_.format == TableFormat::kCsv || style_.format >= TableFormat::kJson;
  const auto is_left_out = [&](size_t i) { return style_.left_out.contains(heads_[i].name); };
  const auto width = [&](bool least) {  // without the rest and columns left out
    return std::transform_reduce(
        columns_.begin(), columns_.end(), least ? -rest : 0, std::plus<>(), [&](size_t i) {
          const bool note = heads_[i].shown == Shown::kNote;  // has any length
          return note || (least && is_left_out(i)) ? 0 : heads_[i].width + 1;
        });
  };
  while (!all) {  // the last one of lowest priority
    const auto next = std::ranges::max_element(
        columns_, {}, [&](size_t i) { return std::pair(heads_[i].priority, i); });
    const int priority = heads_[*next].priority;
    if (priority == 0 || width(priority == 1) <= int(style_.width) + 1) break;
    columns_.erase(next);
  }
  if (!all) std::erase_if(columns_, is_left_out);
}

std::ostream& TableWriter::line() {
  if (style_.before_line) style_.before_line();
  return *style_.out;
}

void TableWriter::note(std::string_view said) {
  const std::string text = printable(said);
  std::ostream& out = line();
  if (style_.format == TableFormat::kText && !style_.wide)
    out << wrapped(text, style_.width, "# ", "#   ") << "\n";
  else
    (style_.format == TableFormat::kText ? out : *style_.notes) << "# " << text << "\n";
  out << std::flush;
}

// Columns begin where those of the head do; a longer cell takes the room of the next ones.
std::string TableWriter::aligned(const std::vector<std::string>& cells) const {
  std::string text;
  size_t begin = 0;
  for (const size_t i : columns_) {
    const size_t width = size_t(heads_[i].width);
    size_t at = begin;
    if (!is_left(heads_[i].shown) && cells[i].size() < width) at += width - cells[i].size();
    text.resize(std::max(at, text.size() + (text.empty() ? 0 : 1)), ' ');
    text += cells[i];
    begin += width + 1;
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

void TableWriter::head() {
  if (has_head_) return;
  has_head_ = true;
  if (!style_.above.empty()) note(style_.above);
  std::ostream& out = line();
  std::vector<std::string> titles;
  for (const ColumnHead& head : heads_)
    titles.push_back(style_.format == TableFormat::kCsv ? csv_cell(head.name) : head.title);
  if (style_.format == TableFormat::kText) {
    const ColumnHead& first = heads_[columns_[0]];  // its title stands by the '#'
    const size_t before = is_left(first.shown) ? 0 : size_t(first.width) - 2 - first.title.size();
    titles[columns_[0]].insert(0, "# " + std::string(before, ' '));
    out << aligned(titles);
  } else if (style_.format == TableFormat::kCsv) {
    for (const size_t i : columns_) out << (i == columns_[0] ? "" : ",") << titles[i];
  } else if (style_.format == TableFormat::kMarkdown) {
    for (const size_t i : columns_) out << "| " << titles[i] << " ";
    out << "|\n";
    for (const size_t i : columns_) out << (is_left(heads_[i].shown) ? "|---" : "|---:");
    out << "|";
  } else {
    out << (style_.format == TableFormat::kJson ? "[" : "");
    return;
  }
  out << "\n" << std::flush;
}

void TableWriter::text_row(const std::vector<JsonNode>& cells, std::string_view colour) {
  std::vector<std::string> shown, below;
  std::string note;
  for (size_t i = 0; i < heads_.size(); ++i) {
    shown.push_back(human(cells[i], heads_[i].shown));
    if (heads_[i].shown == Shown::kNote && shown[i] != "-") note = shown[i];
  }
  std::string text = aligned(shown);
  const size_t last = columns_.back();
  if (!style_.wide && text.size() > style_.width) {
    if (heads_[last].shown == Shown::kSummary) {
      text = text.substr(0, style_.width - 3) + "...";
    } else if (is_left(heads_[last].shown)) {
      const std::string whole = shown[last];
      const size_t room = whole.size() + style_.width - text.size(), dots = 4;  // " ..."
      const size_t cut = room < dots ? whole.npos : whole.rfind(' ', room - dots);
      below.push_back(cut == whole.npos ? whole : whole.substr(cut + 1));
      shown[last] = cut == whole.npos ? "..." : whole.substr(0, cut) + " ...";
      text = aligned(shown);
    }
  }
  if (!note.empty()) {
    const std::string said = note == last_note_ && !style_.wide ? "as above" : note;
    if (style_.wide || text.size() + said.size() + 4 <= style_.width)
      text += "  # " + said;
    else
      below.push_back(said);
  }
  last_note_ = note;
  std::ostream& out = line();
  out << (colour.empty() ? text : concat("\x1b[", colour, "m", text, "\x1b[0m")) << "\n";
  for (const std::string& more : below) out << wrapped(more, style_.width, kBelow, kBelow) << "\n";
  out << std::flush;
}

void TableWriter::row(const std::vector<JsonNode>& cells, std::string_view colour) {
  head();
  if (style_.format == TableFormat::kText) return text_row(cells, colour);
  std::ostream& out = line();
  if (style_.format == TableFormat::kCsv) {
    for (const size_t i : columns_) out << (i == columns_[0] ? "" : ",") << csv_cell(cells[i]);
  } else if (style_.format == TableFormat::kMarkdown) {
    for (const size_t i : columns_)
      out << "| " << markdown_cell(human(cells[i], heads_[i].shown)) << " ";
    out << "|";
  } else {
    JsonNode object = JsonNode::object();
    for (const size_t i : columns_) object.set(heads_[i].name, cells[i]);
    if (style_.format == TableFormat::kJson) out << (has_row_ ? ",\n" : "\n");
    out << dump_json(object);
  }
  has_row_ = true;
  out << (style_.format == TableFormat::kJson ? "" : "\n") << std::flush;
}

void TableWriter::finish() {
  head();
  is_finished_ = true;
  if (style_.format == TableFormat::kJson) line() << (has_row_ ? "\n]\n" : "]\n") << std::flush;
}

}  // namespace longnet
