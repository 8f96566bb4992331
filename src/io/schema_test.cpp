// The schemas of configs, results and published measurements are generated from the table of axes
// and the lists of fields. Their other parts (descriptions, patterns, $defs) are written in the
// files by hand and kept. After a change of a table or list:
//
//   LONGNET_WRITE_SCHEMAS=1 build/release/bin/io_tests --gtest_filter='Schema.*'
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "io/axes.h"
#include "io/config.h"
#include "io/field.h"
#include "io/record.h"
#include "json/json_reader.h"

namespace longnet {
namespace {

constexpr size_t kWidth = 100;

// Objects and lists on one line where they fit.
std::string pretty(const JsonNode& node, size_t indent = 0, bool one_line = false) {
  if (node.items.empty()) return dump_json(node);
  if (!one_line) {
    const std::string line = pretty(node, 0, true);
    if (indent + line.size() <= kWidth) return line;
  }
  const std::string edge = one_line ? "" : "\n" + std::string(indent, ' ');
  std::string text = node.is_object() ? "{" : "[";
  for (size_t i = 0; i < node.items.size(); ++i) {
    text += i == 0 ? "" : one_line ? ", " : ",";
    if (!one_line) text += edge + "  ";
    if (node.is_object()) text += concat("\"", node.keys[i], "\": ");
    text += pretty(node.items[i], indent + 2, one_line);
  }
  return concat(text, edge, node.is_object() ? "}" : "]");
}

JsonNode object(std::initializer_list<std::pair<const char*, JsonNode>> members) {
  JsonNode n = JsonNode::object();
  for (const auto& [key, value] : members) n.set(key, value);
  return n;
}

JsonNode list(std::initializer_list<JsonNode> items) {
  JsonNode n = JsonNode::array();
  for (const JsonNode& item : items) n.push(item);
  return n;
}

JsonNode reference(std::string_view name) { return object({{"$ref", concat("#/$defs/", name)}}); }

JsonNode either(std::initializer_list<JsonNode> choices) {
  return object({{"anyOf", list(choices)}});
}

JsonNode type(const char* name, bool or_null) {
  return object({{"type", or_null ? list({name, "null"}) : JsonNode(name)}});
}

JsonNode words(const Field& field) { return object({{"enum", to_json(field.words)}}); }

JsonNode number(JsonNode n, const Field& field, bool integer) {
  const auto bound = [&](double v) { return integer ? JsonNode(int64_t(v)) : JsonNode(v); };
  const double least = integer ? std::max(0.0, field.min) : field.min;
  if (std::isfinite(least))
    n.set(field.min_excluded ? "exclusiveMinimum" : "minimum", bound(least));
  if (std::isfinite(field.max)) n.set("maximum", bound(field.max));
  if (field.multiple_of > 1) n.set("multipleOf", field.multiple_of);
  return n;
}

// The kind of file: in a config "8K" and the words of a number are legal; in results numbers may be
// null.
enum class File { kOfConfig, kOfResult };

JsonNode whole_number(const Field& field, File file, bool or_null = false) {
  JsonNode n = number(type("integer", or_null), field, true);
  if (file == File::kOfResult) return n;
  if (field.unit == Unit::kBytes) n = reference("bytes");
  if (field.unit == Unit::kTokens) n = reference(field.min > 0 ? "tokens" : "tokens_or_zero");
  return field.words.empty() ? n : either({words(field), n});
}

JsonNode text(const Field& field) {
  if (!field.words.empty()) return words(field);
  JsonNode n = type("string", field.null);
  return field.min > 0 ? n.set("minLength", 1) : n;
}

template <class T>
JsonNode object_schema(File file);

template <class T>
JsonNode value_schema(const Field& field, File file, bool or_null = false) {
  if constexpr (std::is_enum_v<T>) {
    return words({.words = field.words.empty() ? enum_names<T>() : field.words});
  } else if constexpr (std::is_same_v<T, bool>) {
    return type("boolean", false);
  } else if constexpr (std::is_same_v<T, double>) {
    return number(type("number", file == File::kOfResult), field, false);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return reference("digest");
  } else if constexpr (std::is_integral_v<T>) {
    return whole_number(field, file, or_null);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return text(field);
  } else if constexpr (IsOptional<T>) {
    return value_schema<typename T::value_type>(field, file,
                                                file == File::kOfResult && !field.omit);
  } else if constexpr (IsList<T>) {
    JsonNode item = value_schema<typename T::value_type>(field, file);
    JsonNode items = object({{"type", "array"}, {"items", item}});
    return file == File::kOfResult ? items : either({item, items.set("minItems", 1)});
  } else if constexpr (IsMap<T>) {
    return object({{"type", "object"},
                   {"additionalProperties", value_schema<typename T::mapped_type>(field, file)}});
  } else if constexpr (HasFields<T>) {
    return object_schema<T>(file);
  } else {
    return JsonNode::object();  // a type with a schema written by hand
  }
}

JsonNode axis_value(const Axis& axis, File file) {
  if (std::holds_alternative<bool>(axis.standard)) return type("boolean", false);
  if (std::holds_alternative<std::string>(axis.standard)) return text(axis.field);
  Field field = axis.field;
  if (file == File::kOfResult) field.max = std::numeric_limits<double>::infinity();
  return whole_number(field, file);
}

// A value, a list of them, or a range.
JsonNode axis_values_schema(const Axis& axis) {
  const JsonNode one = axis_value(axis, File::kOfConfig);
  const JsonNode several = object({{"type", "array"}, {"items", one}, {"minItems", 1}});
  if (!std::holds_alternative<int64_t>(axis.standard)) return either({one, several});
  Field from = axis.field, to = axis.field;
  from.words.clear();
  std::erase_if(to.words, [](const std::string& word) { return word != kWorld; });
  return either(
      {one, several,
       object({{"type", "object"},
               {"properties", object({{"from", whole_number(from, File::kOfConfig)},
                                      {"to", whole_number(to, File::kOfConfig)},
                                      {"factor", reference("factor")},
                                      {"step", whole_number({.min = 1, .unit = axis.field.unit},
                                                            File::kOfConfig)}})},
               {"required", list({"from", "to"})},
               {"oneOf", list({object({{"required", list({"factor"})}}),
                               object({{"required", list({"step"})}})})},
               {"additionalProperties", false}})});
}

// With the default that holds where a config does not say the key.
JsonNode with_default(JsonNode schema, const Axis& axis) {
  if (axis.standard != Value(0) || !(axis.field.min > 0))  // 0 is no value: required, or follows
    schema.set("default", to_json(axis.standard));
  return schema;
}

JsonNode described(JsonNode schema, std::string_view help) {
  JsonNode n = JsonNode::object();
  if (!help.empty()) n.set("description", help);
  for (size_t i = 0; i < schema.keys.size(); ++i) n.set(schema.keys[i], schema.items[i]);
  return n;
}

// Adds properties to `properties`, and the keys that are always there to `required`.
template <class T>
void add_fields(File file, JsonNode& properties, JsonNode& required) {
  T value{};
  T::fields(value, [&](std::string_view key, auto& member, const Field& field = {}) {
    using Type = std::remove_cvref_t<decltype(member)>;
    JsonNode schema =
        field.schema.empty() ? value_schema<Type>(field, file) : reference(field.schema);
    if constexpr (std::is_arithmetic_v<Type> || std::is_enum_v<Type> || IsOptional<Type>)
      if (file == File::kOfConfig && to_json(member, field).kind != JsonNode::Kind::kNull)
        schema.set("default", to_json(member, field));
    properties.set(std::string(key), schema);
    const bool always = std::is_same_v<Type, std::string> && field.min > 0 && field.words.empty();
    if (!field.omit && !field.later && (file == File::kOfResult || always))
      required.push(JsonNode(key));
  });
}

template <class T>
JsonNode object_schema(File file) {
  JsonNode properties = JsonNode::object(), required = JsonNode::array();
  add_fields<T>(file, properties, required);
  JsonNode n = object({{"type", "object"}, {"properties", properties}});
  if (!required.items.empty()) n.set("required", required);
  return file == File::kOfConfig ? n.set("additionalProperties", false) : n;
}

JsonNode params_schema() {
  JsonNode properties = JsonNode::object(), required = JsonNode::array();
  JsonNode how = JsonNode::array();  // read by scripts/report
  for (const Axis& axis : axes()) {
    JsonNode property = described(axis_value(axis, File::kOfResult), axis.help);
    if (std::holds_alternative<bool>(axis.standard) && axis.use.label)
      property.set("label", *axis.use.label);
    properties.set(std::string(axis.key), property);
    if (axis.use.how) how.push(JsonNode(axis.key));
    if (!axis.field.omit && axis.use.in_id) required.push(JsonNode(axis.key));  // in all results
  }
  properties.set("branches", reference("branches"));
  properties.set("cluster",
                 object({{"description", "Simulated points: the cluster's name and changes."},
                         {"type", "string"},
                         {"minLength", 1}}));
  required.push("branches");
  return object(
      {{"type", "object"}, {"properties", properties}, {"required", required}, {"how", how}});
}

// Descriptions that `old` has and `made` has not, at the same places.
JsonNode with_descriptions(const JsonNode& made, const JsonNode& old) {
  JsonNode n = made;
  for (size_t i = 0; i < made.keys.size(); ++i)
    if (const JsonNode* before = old.find(made.keys[i]))
      n.items[i] = with_descriptions(made.items[i], *before);
  const JsonNode* text = old.find("description");
  return text && text->is_string() && made.is_object() && !made.find("description")
             ? described(n, text->string)
             : n;
}

// Replaces what is made from tables, keeps descriptions and what else stands there.
void update(JsonNode& old, const JsonNode& made) {
  for (size_t i = 0; i < made.keys.size(); ++i) {
    const JsonNode* before = old.find(made.keys[i]);
    old.set(made.keys[i], before ? with_descriptions(made.items[i], *before) : made.items[i]);
  }
}

void expect_descriptions(const JsonNode& node, const std::string& path) {
  const JsonNode* properties = node.find("properties");
  for (size_t i = 0; properties && i < properties->keys.size(); ++i) {
    const JsonNode& property = properties->items[i];
    const std::string here = concat(path, ".", properties->keys[i]);
    EXPECT_TRUE(property.find("description") || property.find("$ref"))
        << here << " needs a description in the schema";
    expect_descriptions(property, here);
    if (const JsonNode* items = property.find("items")) expect_descriptions(*items, here + "[]");
  }
}

void update_config(JsonNode& root) {
  JsonNode& properties = *root.find("properties");
  const auto section = [&]<class... Parts>(const std::string& key, Parts*...) {
    JsonNode own = JsonNode::object(), required = JsonNode::array();
    (add_fields<Parts>(File::kOfConfig, own, required), ...);
    for (const Axis& axis : axes())
      if (axis.use.section == key) {
        Axis one = axis;
        if (std::holds_alternative<int64_t>(axis.standard)) one.field.words.clear();
        own.set(std::string(axis.key),
                described(with_default(axis_value(one, File::kOfConfig), axis), axis.help));
      }
    update(*properties.find(key), object({{"properties", own}}));
  };
  section("model");
  section("dilated", static_cast<DilatedConfig*>(nullptr));
  section("sparse", static_cast<SparseConfig*>(nullptr));
  section("run", static_cast<RunConfig*>(nullptr));
  section("measure", static_cast<MeasureConfig*>(nullptr));
  section("check", static_cast<CheckConfig*>(nullptr));
  section("memory", static_cast<MemoryConfig*>(nullptr));
  section("virtual", static_cast<VirtualConfig*>(nullptr));
  section("cluster", static_cast<ClusterConfig*>(nullptr));
  section("train", static_cast<TrainConfig*>(nullptr));
  JsonNode sweep = JsonNode::object();
  for (const Axis& axis : axes()) {
    if (!axis.use.swept) continue;
    const bool own_default = axis.use.section.empty() && axis.key != "algorithm";
    const JsonNode values = axis_values_schema(axis);
    sweep.set(std::string(axis.key),
              described(own_default ? with_default(values, axis) : values, axis.help));
  }
  update(*properties.find("sweep"),
         object({{"properties", sweep.set("batch", reference("batch"))}}));
  update(*properties.find("exclude"),
         object({{"items", object_schema<ExcludeRule>(File::kOfConfig)}}));
  expect_descriptions(root, "config");
}

void update_result(JsonNode& root) {
  JsonNode& point = *root.find("$defs")->find("point");
  update(point, object_schema<PointRecord>(File::kOfResult));
  update(*point.find("properties")->find("params"), params_schema());
  update(*root.find("$defs")->find("timeline"),
         object({{"items", object_schema<TimelineEntry>(File::kOfResult)}}));
  expect_descriptions(point, "point");
}

// A setup is the parameters of a point, or an operation with its bytes, which stand there by hand.
void update_published(JsonNode& root) {
  JsonNode& setup = *root.find("$defs")->find("setup");
  JsonNode own = JsonNode::object();
  for (const char* key : {"operation", "bytes"}) own.set(key, *setup.find("properties")->find(key));
  for (const Axis& axis : axes())
    own.set(std::string(axis.key), described(axis_value(axis, File::kOfResult), axis.help));
  update(setup, object({{"properties", own}}));
  expect_descriptions(setup, "setup");
}

void expect_up_to_date(const std::string& name, void (*update_schema)(JsonNode&)) {
  const std::string path = concat(LONGNET_SOURCE_DIR, "/configs/schema/", name);
  const std::string before = read_file_text(path, "");
  JsonNode root = parse_json(before, path);
  update_schema(root);
  const std::string after = pretty(root) + "\n";
  if (std::getenv("LONGNET_WRITE_SCHEMAS"))
    std::ofstream(path, std::ios::binary) << after;
  else
    EXPECT_TRUE(before == after)
        << path << " is not what the tables say: run io_tests with LONGNET_WRITE_SCHEMAS=1";
}

TEST(Schema, OfConfigsFollowsTheTables) { expect_up_to_date("config.schema.json", update_config); }

TEST(Schema, OfResultsFollowsTheTables) { expect_up_to_date("result.schema.json", update_result); }

TEST(Schema, OfPublishedMeasurementsFollowsTheTables) {
  expect_up_to_date("published.schema.json", update_published);
}

}  // namespace
}  // namespace longnet
