// One field of a struct that is read from JSON or written to it. A struct lists its fields once:
//
//   struct CheckConfig {
//     int64_t sampled_queries = 64;
//     static void fields(auto& c, auto&& visit) {
//       visit("sampled_queries", c.sampled_queries, {.min = 1});
//     }
//   };
//
// Visitors: FieldReader (io/config_reader.h) reads a config strictly, write_fields and read_fields
// (io/field_json.h) write and read results, schema_test.cpp makes the JSON Schemas.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/check.h"
#include "json/text.h"
#include "pattern/dilated_pattern.h"

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
  // For a text or an enum: its legal values; empty: any text. For a number: words that may replace
  // it.
  std::vector<std::string> words{};
  bool omit = false;   // left out where it is empty or its type's zero, else always written
  bool null = false;   // an empty text is null
  bool later = false;  // absent in older results
  double null_is = std::numeric_limits<double>::quiet_NaN();  // a double that is written as null
  std::string_view schema{};  // written by hand: a name in the schema's $defs
};

// The last value of each enum that has names.
constexpr DType last_value(DType) { return DType::kBFloat16; }
constexpr OffsetRule last_value(OffsetRule) { return OffsetRule::kNone; }
constexpr PatternKind last_value(PatternKind) { return PatternKind::kSparse; }
constexpr MixRule last_value(MixRule) { return MixRule::kSum; }

// In the order of the enum.
template <class Enum>
std::vector<std::string> enum_names() {
  std::vector<std::string> names;
  for (int i = 0; i <= int(last_value(Enum{})); ++i) names.emplace_back(to_string(Enum(i)));
  return names;
}

// Throws UsageError on a name that the enum does not have.
template <class Enum>
Enum parse_enum(std::string_view name) {
  for (int i = 0; i <= int(last_value(Enum{})); ++i)
    if (to_string(Enum(i)) == name) return Enum(i);
  throw UsageError(concat("unknown name '", name, "': ", name_hint(name, enum_names<Enum>())));
}

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
template <class T>
concept IsVector = requires(T& t) {
  t.emplace_back();
};
// A text -> value map.
template <class T>
concept IsMap = requires {
  typename T::mapped_type;
};

}  // namespace longnet
