// One field of a struct that is read from JSON or written to it. A struct lists its fields once:
//
//   struct CheckConfig {
//     int64_t sampled_queries = 64;
//     static void fields(auto& c, auto&& visit) {
//       visit("sampled_queries", c.sampled_queries, {.min = 1});
//     }
//   };
//
// Visitors: FieldReader (io/config_reader.h) reads configs strictly, write_fields and read_fields
// (below) write and read results, journals and resolved configs; schema_test.cpp makes the Schemas.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/check.h"
#include "json/json_tree.h"
#include "json/text.h"

namespace longnet {

// "8K" and "8GiB" are numbers of tokens and bytes. A count is whole, but may pass 2^63.
enum class Unit { kNone, kTokens, kBytes, kCount };

// Integers are never negative, whatever `min` says.
struct Field {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_excluded = false;
  int64_t multiple_of = 1;
  Unit unit = Unit::kNone;
  // For a text or an enum: its legal values (none: any text). For a number: words in place of it.
  std::vector<std::string> words{};
  bool omit = false;   // left out where it is empty, zero, or (of an axis) at its default
  bool null = false;   // an empty text is null
  bool later = false;  // absent in older results
  double null_is = std::numeric_limits<double>::quiet_NaN();  // a double that is written as null
  std::string_view schema{};  // written by hand: a name in the schema's $defs
};

struct AnyVisitor {
  void operator()(std::string_view, auto&, const Field& = {}) const {}
};
template <class T>
concept HasFields = requires(T& t) {
  T::fields(t, AnyVisitor{});
};

template <class T>
concept IsOptional = requires(T& t) {
  t.has_value();
};
// A text -> value map.
template <class T>
concept IsMap = requires {
  typename T::mapped_type;
};
// A vector or a set.
template <class T>
concept IsList = !IsMap<T> && !std::is_same_v<T, std::string> && requires(T & t) {
  t.insert(t.end(), typename T::value_type{});
};

// ---- structs with a list of fields to JSON and back ----
//
//   timing.median_s of NaN <-> null      a uint64_t digest <-> 16 hex digits
//   an empty optional <-> null; where the field says so, an empty text is null, or no key
//   "cpu.model" is the key "model" of the object "cpu"

template <class T>
JsonNode write_fields(const T& value, JsonNode node = JsonNode::object());
template <class T>
void read_fields(const JsonNode& node, T& out);

// A type with a JSON form of its own says it by overloading these two.
template <class T>
JsonNode to_json(const T& v, const Field& field = {}) {
  if constexpr (std::is_enum_v<T>) {
    return JsonNode(to_string(v));
  } else if constexpr (std::is_same_v<T, double>) {
    // Counts without ".0" as long as a double holds them exactly.
    const bool whole = std::isfinite(v) && v == std::floor(v) && std::abs(v) < 0x1p53;
    return whole && field.unit == Unit::kCount ? JsonNode(int64_t(v)) : JsonNode(v);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return JsonNode(to_hex(v));
  } else if constexpr (std::is_same_v<T, std::string>) {
    return v.empty() && field.null ? JsonNode() : JsonNode(v);
  } else if constexpr (requires { v.index(); }) {  // a std::variant
    return std::visit([&](const auto& held) { return to_json(held, field); }, v);
  } else if constexpr (IsOptional<T>) {
    if (!v && !field.words.empty()) return JsonNode(field.words[0]);
    return v ? to_json(*v) : JsonNode();
  } else if constexpr (IsList<T>) {
    JsonNode list = JsonNode::array();
    for (const auto& item : v) list.push(to_json(item));
    return list;
  } else if constexpr (IsMap<T>) {
    JsonNode object = JsonNode::object();
    for (const auto& [key, item] : v) object.set(key, to_json(item));
    return object;
  } else if constexpr (HasFields<T>) {
    return write_fields(v);
  } else {
    return JsonNode(v);
  }
}

template <class T>
void from_json(const JsonNode& n, T& out, const Field& field = {}) {
  using Kind = JsonNode::Kind;
  if constexpr (std::is_same_v<T, JsonNode>) {
    out = n;
  } else if constexpr (std::is_enum_v<T>) {
    out = parse_enum<T>(n.string);
  } else if constexpr (std::is_same_v<T, double>) {
    out = n.is_number() ? n.number : field.null_is;
  } else if constexpr (std::is_same_v<T, bool>) {
    out = n.kind == Kind::kBool ? n.boolean : out;
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    out = from_hex(n.string);
  } else if constexpr (std::is_integral_v<T>) {
    if (n.kind == Kind::kInteger) out = T(n.integer);
  } else if constexpr (std::is_same_v<T, std::string>) {
    out = n.string;
  } else if constexpr (IsOptional<T>) {
    if (n.is_null()) return out.reset();
    from_json(n, out.emplace());
  } else if constexpr (IsList<T>) {
    out.clear();
    for (const JsonNode& item : n.items) {
      typename T::value_type value{};
      from_json(item, value);
      out.insert(out.end(), std::move(value));
    }
  } else if constexpr (IsMap<T>) {
    for (size_t i = 0; i < n.keys.size(); ++i) from_json(n.items[i], out[n.keys[i]]);
  } else {
    read_fields(n, out);
  }
}

template <class T>
bool is_zero(const T& value) {
  if constexpr (requires { value.empty(); })
    return value.empty();
  else if constexpr (IsOptional<T>)
    return !value.has_value();
  else if constexpr (std::is_same_v<T, JsonNode>)
    return value.is_null();
  else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>)
    return value == T{};
  else
    return false;
}

template <class T>
JsonNode write_fields(const T& value, JsonNode node) {
  T::fields(value, [&](std::string_view key, const auto& member, const Field& field = {}) {
    if (field.omit && is_zero(member)) return;
    const size_t dot = key.find('.');
    if (dot == std::string_view::npos) {
      node.set(std::string(key), to_json(member, field));
    } else {
      const std::string group(key.substr(0, dot));
      if (!node.find(group)) node.set(group, JsonNode::object());
      node.find(group)->set(std::string(key.substr(dot + 1)), to_json(member, field));
    }
  });
  return node;
}

// Null stands for a missing value of any kind.
template <class T>
bool has_kind(const JsonNode& n) {
  if (n.is_null() || std::is_same_v<T, JsonNode>) return true;
  if constexpr (std::is_same_v<T, uint64_t>)
    return n.is_string() || n.is_number();
  else if constexpr (std::is_enum_v<T> || std::is_same_v<T, std::string>)
    return n.is_string();
  else if constexpr (std::is_same_v<T, bool>)
    return n.kind == JsonNode::Kind::kBool;
  else if constexpr (std::is_arithmetic_v<T>)
    return n.is_number();
  else if constexpr (IsOptional<T>)
    return has_kind<typename T::value_type>(n);
  else if constexpr (IsList<T>)
    return n.is_array() && std::ranges::all_of(n.items, has_kind<typename T::value_type>);
  else
    return n.is_object();
}

// A key that is absent leaves the member as it is; a value of another kind is a UsageError.
template <class T>
void read_fields(const JsonNode& node, T& out) {
  T::fields(out, [&](std::string_view key, auto& member, const Field& field = {}) {
    const size_t dot = key.find('.');
    const JsonNode* n = node.find(key.substr(0, dot));
    if (n && dot != std::string_view::npos) n = n->find(key.substr(dot + 1));
    if (!n) return;
    if (!has_kind<std::decay_t<decltype(member)>>(*n))
      throw UsageError(
          n->where(), ": ", key, ": ", n->kind_name(),
          " cannot stand here\n  hint: the file is damaged; docs/results.md lists its fields");
    from_json(*n, member, field);
  });
}

}  // namespace longnet
