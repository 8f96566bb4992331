// Records between struct and JSON tree.
#pragma once
#include "io/result.h"
#include "json/json_tree.h"

namespace longnet {

JsonNode record_to_node(const PointRecord& record);
PointRecord record_from_node(const JsonNode& node);
JsonNode environment_to_node(const Environment& env);
Environment environment_from_node(const JsonNode& node);
JsonNode build_to_node(const BuildInfo& build);
BuildInfo build_from_node(const JsonNode& node);

template <class T>
JsonNode to_array(const std::vector<T>& values) {
  JsonNode list = JsonNode::array();
  for (const T& v : values) list.push(JsonNode(v));
  return list;
}

// Calls f on each item of the list or object `key`; nothing when absent.
template <class F>
void for_each_item(const JsonNode& node, std::string_view key, F f) {
  if (const JsonNode* list = node.find(key))
    for (const JsonNode& item : list->items) f(item);
}

}  // namespace longnet
