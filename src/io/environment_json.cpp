#include "io/environment.h"
#include "io/field_json.h"

namespace longnet {
namespace {

template <class T>
T parsed(std::string_view text, std::string_view what) {
  T value;
  read_fields(parse_json(text, what), value);
  return value;
}

}  // namespace

std::string environment_to_json(const Environment& env, int indent) {
  return dump_json(write_fields(env), indent);
}
Environment environment_from_json(std::string_view text) {
  return parsed<Environment>(text, "environment");
}
std::string build_to_json(const BuildInfo& build, int indent) {
  return dump_json(write_fields(build), indent);
}
BuildInfo build_from_json(std::string_view text) { return parsed<BuildInfo>(text, "build"); }

}  // namespace longnet
