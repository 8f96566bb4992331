// Params between struct and JSON tree.
#pragma once
#include "io/field.h"
#include "io/point.h"
#include "json/json_tree.h"

namespace longnet {

JsonNode to_json(const PointParams& params, const Field& field = {});
// Lenient on absent keys; throws UsageError on bad names. Results of before there were modes say
// "virtual" or "simulated" in place of a transport.
void from_json(const JsonNode& node, PointParams& out, const Field& field = {});

// The canonical JSON of params (sorted keys, neither mode nor transport) and the id: first 8 hex
// digits of its SHA-256.
std::string canonical_params_json(const PointParams& params);
std::string point_id(const PointParams& params);

}  // namespace longnet
