// A JSON value with the place where it was written, so that an error can name file and line.
//
//   parse_json(R"({ "sweep": { "ranks": [1, 2] } })", "quick.json")
//   -> find("sweep")->find("ranks")->items[1]:  integer 2, file "quick.json", line 1
//
// Only json_tree.cpp uses the JSON library.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace longnet {

struct JsonNode {
  enum class Kind { kNull, kBool, kInteger, kNumber, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;  // value of kInteger
  double number = 0;    // value of kInteger and kNumber
  std::string string;
  std::vector<std::string> keys;  // keys of an object, parallel to items, in the order written
  std::vector<JsonNode> items;    // items of an array, values of an object
  int line = 0;                   // 0: made by the program
  std::shared_ptr<const std::string> file;

  JsonNode() = default;
  JsonNode(bool v) : kind(Kind::kBool), boolean(v) {}  // NOLINT: implicit
  template <class T>
  requires(std::is_integral_v<T> && !std::is_same_v<T, bool>) JsonNode(T v)
      : kind(Kind::kInteger), integer(int64_t(v)), number(double(v)) {}  // NOLINT: implicit
  JsonNode(double v);  // NOLINT: not finite = null
  JsonNode(std::string v) : kind(Kind::kString), string(std::move(v)) {}  // NOLINT: implicit
  JsonNode(std::string_view v) : JsonNode(std::string(v)) {}              // NOLINT: implicit
  JsonNode(const char* v) : JsonNode(std::string(v)) {}                   // NOLINT: implicit
  static JsonNode array();
  static JsonNode object(std::initializer_list<std::pair<std::string, JsonNode>> members = {});

  bool is_null() const { return kind == Kind::kNull; }
  bool is_object() const { return kind == Kind::kObject; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_number() const { return kind == Kind::kInteger || kind == Kind::kNumber; }
  std::string_view kind_name() const;  // "an object", "a string", ...

  const JsonNode* find(std::string_view key) const;  // null when absent or not an object
  JsonNode* find(std::string_view key);
  JsonNode& set(std::string key, JsonNode value);  // adds or replaces; returns *this
  JsonNode& push(JsonNode value);                  // to an array; returns *this
  JsonNode take(std::string_view key);             // removes it; null when absent

  // For files of the suite itself: absent, null or of another kind gives "", NaN, `other`, false or
  // no items.
  std::string text(std::string_view key) const {
    const JsonNode* n = find(key);
    return n ? n->string : "";
  }
  double real(std::string_view key) const {
    const JsonNode* n = find(key);
    return n && n->is_number() ? n->number : std::numeric_limits<double>::quiet_NaN();
  }
  int64_t whole(std::string_view key, int64_t other = 0) const {
    const JsonNode* n = find(key);
    return n && n->kind == Kind::kInteger ? n->integer : other;
  }
  bool flag(std::string_view key) const {
    const JsonNode* n = find(key);
    return n && n->boolean;
  }
  std::span<const JsonNode> list(std::string_view key) const {
    const JsonNode* n = find(key);
    return n ? std::span<const JsonNode>(n->items) : std::span<const JsonNode>();
  }

  std::string where() const;  // "quick.json:12", "--set sweep.ranks=1"
};

// Strict JSON plus // and /* */ comments. Throws UsageError with file, line and column on a syntax
// error, on nesting beyond 100 levels and objects of more than 10000 keys, and with both lines on a
// key that occurs twice. Control characters in strings are replaced (`printable`).
JsonNode parse_json(std::string_view text, std::string_view file);

// indent < 0: one line. Else a line for each member of an object and for each item of an array,
// whatever the item holds; an array of plain values is one line:
//   {
//    "ranks": [1,2],
//    "points": [
//     {"id":"9c41d07b","params":{"seq_len":8192}},
//     {"id":"0b965848","params":{"seq_len":16384}}
//    ]
//   }
// sort_keys: canonical text for hashing, one line.
std::string dump_json(const JsonNode& node, int indent = -1, bool sort_keys = false);

}  // namespace longnet
