// Params between struct and JSON tree.
#pragma once
#include "io/point.h"
#include "json/json_tree.h"

namespace longnet {

JsonNode params_to_node(const PointParams& params);
PointParams params_from_node(
    const JsonNode& node);  // lenient on absent keys; throws UsageError on bad names

}  // namespace longnet
