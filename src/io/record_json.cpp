#include "core/check.h"
#include "io/field_json.h"
#include "io/point_json.h"
#include "io/record.h"
#include "io/record_node.h"

namespace longnet {

JsonNode record_to_node(const PointRecord& record) { return write_fields(record); }

PointRecord record_from_node(const JsonNode& n) {
  if (!n.is_object() || n.text("id").empty() || !n.find("params"))
    throw UsageError(
        concat(n.where(), ": this is no point of a result: it has no id or no params"));
  PointRecord r;
  read_fields(n, r);
  return r;
}

std::string record_to_json(const PointRecord& record, int indent) {
  return dump_json(record_to_node(record), indent);
}

PointRecord record_from_json(std::string_view text) {
  return record_from_node(parse_json(text, "record"));
}

}  // namespace longnet
