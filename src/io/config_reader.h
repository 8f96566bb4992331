// Reading a config key by key (json/json_reader.h), as its fields and axes say.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "io/config.h"
#include "json/json_reader.h"

namespace longnet {

// A value of the type of `out`; for a number also one of the field's words. False: a problem, and
// `out` as it was.
bool read_value(const JsonNode& node, const std::string& path, const Field& field,
                Problems& problems, Value& out);

// A visitor of fields: reads each key that the object has.
class FieldReader : public JsonReader {
 public:
  using JsonReader::JsonReader;

  template <class T>
  void operator()(std::string_view key, T& out, const Field& field = {}) {
    const JsonNode* n = take(key);
    if (n) read(*n, path_of(key), field, out);
  }
  // The values of an axis in `sweep`: a list, one value, or a range.
  void axis(const Axis& axis, const KnownNames& known, SweepConfig& out);
  // The one value of an axis in a section.
  void value(const Axis& axis, const KnownNames& known, PointParams& out);

 private:
  template <class T>
  void read(const JsonNode& n, const std::string& path, const Field& field, T& out) {
    if constexpr (IsOptional<T>) {
      Value word = 0;
      typename T::value_type value{};
      if (field.words.empty()) {
        if (read_one(n, path, field, value)) out = value;
      } else if (read_value(n, path, field, problems(), word)) {
        out.reset();
        if (const auto* number = std::get_if<int64_t>(&word)) out = *number;
      }
    } else if constexpr (IsList<T>) {
      T items;
      for (const JsonNode* item : as_list(n, path, problems()))
        if (typename T::value_type value{}; read_one(*item, path, field, value))
          items.push_back(value);
      out = items;
    } else {
      read_one(n, path, field, out);
    }
  }

  template <class T>
  bool read_one(const JsonNode& n, const std::string& path, const Field& of, T& out) {
    if constexpr (std::is_same_v<T, Value>) {
      return read_value(n, path, of, problems(), out);
    } else if constexpr (std::is_same_v<T, double>) {
      return read_json(n, path, problems(), out, {of.min, of.max, of.min_excluded});
    } else {
      Value value = to_value(out);
      if constexpr (std::is_enum_v<T>) {
        Field named = of;
        if (named.words.empty()) named.words = enum_names<T>();
        if (!read_value(n, path, named, problems(), value)) return false;
      } else if (!read_value(n, path, of, problems(), value)) {
        return false;
      }
      assign(out, value);
      return true;
    }
  }
};

// The file as one tree: `extends` merged in, overrides applied.
JsonNode load_config_tree(std::string_view text, const std::string& path,
                          std::span<const std::string> overrides);
// Rules that need more than one key.
void check_config(const Config& config, const JsonNode& root, Problems& problems);

}  // namespace longnet
