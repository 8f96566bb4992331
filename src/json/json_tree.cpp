#include "json/json_tree.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ranges>

#include "core/check.h"
#include "json/text.h"

namespace longnet {
namespace {

using Kind = JsonNode::Kind;

// Counts lines while the library's lexer consumes characters: its parse events carry no position.
struct Cursor {
  int line = 1;
  char last = 0;
};

// Every reader recurses into the tree, and looks keys up one by one.
constexpr size_t kMaxDepth = 100, kMaxKeys = 10000;

// Builds the tree from parse events.
class TreeBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(const Cursor& cursor, std::string_view file, size_t size)
      : cursor_(cursor), file_(std::make_shared<const std::string>(file)), size_(size) {}

  JsonNode take() { return std::move(root_); }

  bool null() override { return add(JsonNode(), cursor_.line); }
  bool boolean(bool v) override { return add(JsonNode(v), cursor_.line); }
  bool number_integer(number_integer_t v) override { return add(JsonNode(v), number_line()); }
  bool number_unsigned(number_unsigned_t v) override {
    if (v > uint64_t(std::numeric_limits<int64_t>::max()))
      return add(JsonNode(double(v)), number_line());
    return add(JsonNode(int64_t(v)), number_line());
  }
  bool number_float(number_float_t v, const string_t&) override {
    return add(JsonNode(double(v)), number_line());
  }
  bool string(string_t& v) override { return add(JsonNode(printable(v)), cursor_.line); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(JsonNode::object()); }
  bool start_array(std::size_t) override { return open(JsonNode::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& v) override {
    v = printable(v);
    if (stack_.back()->keys.size() >= kMaxKeys)
      refuse("an object of more than ", kMaxKeys, " keys");
    if (const JsonNode* first = stack_.back()->find(v))
      throw UsageError(*file_, ":", cursor_.line, ": key '", v,
                       "' occurs twice in one object\n  hint: the first stands in line ",
                       first->line, "; keep one of them");
    stack_.back()->keys.push_back(v);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& e) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: ..."
    std::string what = e.what();
    if (const auto colon = what.find(": "); colon != std::string::npos) what.erase(0, colon + 2);
    throw UsageError(
        *file_, ":", number_line(), ": not valid JSON: ", what,
        position > size_
            ? "\n  hint: the file is cut off, or a quote or bracket is not closed"
            : "\n  hint: look for a missing or extra comma, quote or bracket just before");
  }

 private:
  // A number ends with the character after it, which the lexer has consumed already.
  int number_line() const { return cursor_.last == '\n' ? cursor_.line - 1 : cursor_.line; }

  JsonNode* place(JsonNode node, int line) {
    node.line = line;
    node.file = file_;
    if (stack_.empty()) {
      root_ = std::move(node);
      return &root_;
    }
    stack_.back()->items.push_back(std::move(node));
    return &stack_.back()->items.back();
  }
  bool add(JsonNode node, int line) {
    place(std::move(node), line);
    return true;
  }
  template <class... Text>
  [[noreturn]] void refuse(const Text&... what) const {
    throw UsageError(*file_, ":", cursor_.line, ": ", what...,
                     "\n  hint: no file of the suite has them; is it one?");
  }
  // Pointers on the stack stay valid: a parent's items grow only after its child is closed.
  bool open(JsonNode node) {
    if (stack_.size() >= kMaxDepth) refuse("nested deeper than ", kMaxDepth, " levels");
    stack_.push_back(place(std::move(node), cursor_.line));
    return true;
  }
  bool close() {
    stack_.pop_back();
    return true;
  }

  const Cursor& cursor_;
  std::shared_ptr<const std::string> file_;
  size_t size_;  // bytes of text
  JsonNode root_;
  std::vector<JsonNode*> stack_;
};

bool nests(const JsonNode& n) { return n.is_object() || n.is_array(); }

// A key, or a value that holds no others, as the library writes it.
std::string plain_text(const JsonNode& n) {
  nlohmann::json value;
  if (n.kind == Kind::kBool) value = n.boolean;
  if (n.kind == Kind::kInteger) value = n.integer;
  if (n.kind == Kind::kNumber) value = n.number;
  if (n.kind == Kind::kString) value = n.string;
  // Bytes that are no UTF-8 (a stray environment variable) become U+FFFD instead of an exception.
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void write(std::string& out, const JsonNode& n, int indent, bool sort_keys, int depth = 0) {
  if (!nests(n)) {
    out += plain_text(n);
    return;
  }
  const bool object = n.is_object();
  const bool lines =
      indent >= 0 && (object ? !n.items.empty() : std::ranges::any_of(n.items, nests));
  const std::string edge = lines ? "\n" + std::string(size_t(indent * depth), ' ') : "";
  const std::string margin = lines ? edge + std::string(size_t(indent), ' ') : "";
  std::vector<size_t> order(n.items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (object && sort_keys)
    std::ranges::sort(order, [&](size_t a, size_t b) { return n.keys[a] < n.keys[b]; });
  out += object ? "{" : "[";
  for (size_t i = 0; i < order.size(); ++i) {
    out += (i > 0 ? "," : "") + margin;
    if (object) out += plain_text(n.keys[order[i]]) + (lines ? ": " : ":");
    write(out, n.items[order[i]], object ? indent : -1, sort_keys, depth + 1);
  }
  out += edge + (object ? "}" : "]");
}

}  // namespace

JsonNode::JsonNode(double v) {
  if (!std::isfinite(v)) return;
  number = v;
  kind = Kind::kNumber;
}

JsonNode JsonNode::array() {
  JsonNode n;
  n.kind = Kind::kArray;
  return n;
}

JsonNode JsonNode::object(std::initializer_list<std::pair<std::string, JsonNode>> members) {
  JsonNode n;
  n.kind = Kind::kObject;
  for (const auto& [key, value] : members) n.set(key, value);
  return n;
}

std::string_view JsonNode::kind_name() const {
  constexpr std::string_view kNames[] = {"null",     "a boolean", "an integer", "a number",
                                         "a string", "a list",    "an object"};
  return kNames[size_t(kind)];
}

const JsonNode* JsonNode::find(std::string_view key) const {
  if (kind != Kind::kObject) return nullptr;
  for (size_t i = 0; i < keys.size() && i < items.size(); ++i)
    if (keys[i] == key) return &items[i];
  return nullptr;
}

JsonNode* JsonNode::find(std::string_view key) {
  return const_cast<JsonNode*>(std::as_const(*this).find(key));
}

JsonNode& JsonNode::set(std::string key, JsonNode value) {
  check(kind == Kind::kObject, "set('", key, "') on ", kind_name());
  if (JsonNode* old = find(key)) {
    *old = std::move(value);
  } else {
    keys.push_back(std::move(key));
    items.push_back(std::move(value));
  }
  return *this;
}

JsonNode& JsonNode::push(JsonNode value) {
  check(kind == Kind::kArray, "push on ", kind_name());
  items.push_back(std::move(value));
  return *this;
}

JsonNode JsonNode::take(std::string_view key) {
  JsonNode taken;
  if (const auto at = std::ranges::find(keys, key); at != keys.end()) {
    const auto item = items.begin() + (at - keys.begin());
    taken = std::move(*item);
    items.erase(item);
    keys.erase(at);
  }
  return taken;
}

std::string JsonNode::where() const {
  if (!file) return "?";
  return line > 0 ? concat(*file, ":", line) : *file;
}

JsonNode parse_json(std::string_view text, std::string_view file) {
  Cursor cursor;
  TreeBuilder builder(cursor, file, text.size());
  const auto counted = std::views::transform(text, [&cursor](char c) {
    if (c == '\n') ++cursor.line;
    return cursor.last = c;
  });
  nlohmann::json::sax_parse(counted.begin(), counted.end(), &builder,
                            nlohmann::json::input_format_t::json, true, true);
  return builder.take();
}

std::string dump_json(const JsonNode& node, int indent, bool sort_keys) {
  std::string out;
  write(out, node, sort_keys ? -1 : indent, sort_keys);
  return out;
}

}  // namespace longnet
