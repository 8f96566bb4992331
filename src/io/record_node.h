// Records between struct and JSON tree.
#pragma once
#include "io/record.h"
#include "json/json_tree.h"

namespace longnet {

JsonNode record_to_node(const PointRecord& record);
PointRecord record_from_node(const JsonNode& node);

}  // namespace longnet
