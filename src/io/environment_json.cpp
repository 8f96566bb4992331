#include "io/environment.h"
#include "io/record_node.h"

namespace longnet {
namespace {

JsonNode text_or_null(const std::string& text) {
  return text.empty() ? JsonNode() : JsonNode(text);
}

JsonNode texts_node(const std::map<std::string, std::string>& texts) {
  JsonNode n = JsonNode::object();
  for (const auto& [name, value] : texts) n.set(name, value);
  return n;
}

std::map<std::string, std::string> texts_from(const JsonNode& n, const char* key) {
  std::map<std::string, std::string> texts;
  if (const JsonNode* node = n.find(key))
    for (const std::string& name : node->keys) texts[name] = node->text(name);
  return texts;
}

}  // namespace

JsonNode build_to_node(const BuildInfo& b) {
  JsonNode n = JsonNode::object();
  n.set("version", b.version).set("revision", b.revision).set("compiler", b.compiler);
  n.set("flags", b.flags).set("build_type", b.build_type);
  return n.set("sanitizer", text_or_null(b.sanitizer));
}

BuildInfo build_from_node(const JsonNode& n) {
  return {.version = n.text("version"),
          .revision = n.text("revision"),
          .compiler = n.text("compiler"),
          .flags = n.text("flags"),
          .build_type = n.text("build_type"),
          .sanitizer = n.text("sanitizer")};
}

JsonNode environment_to_node(const Environment& e) {
  JsonNode cpu = JsonNode::object(), memory = JsonNode::object(), n = JsonNode::object();
  cpu.set("model", e.cpu_model).set("packages", e.packages).set("cores", e.cores);
  cpu.set("threads", e.threads).set("usable_threads", e.usable_threads);
  cpu.set("numa_nodes", e.numa_nodes).set("l1d_bytes", e.l1d_bytes).set("l2_bytes", e.l2_bytes);
  cpu.set("l3_bytes", e.l3_bytes).set("governor", text_or_null(e.governor));
  cpu.set("turbo", text_or_null(e.turbo));
  memory.set("total_bytes", e.memory_bytes).set("limit_bytes", e.memory_limit_bytes);
  n.set("hostname", e.hostname).set("captured_utc", e.captured_utc).set("os", e.os);
  n.set("kernel", e.kernel).set("cpu", cpu).set("memory", memory);
  n.set("busy_share", e.busy_share);
  n.set("load_average", to_array(e.load_average)).set("mpi_version", text_or_null(e.mpi_version));
  n.set("devices", to_array(e.devices));
  if (!e.device_software.empty()) n.set("device_software", texts_node(e.device_software));
  return n.set("variables", texts_node(e.variables));
}

Environment environment_from_node(const JsonNode& n) {
  Environment e;
  const JsonNode none = JsonNode::object();
  const JsonNode& cpu = n.find("cpu") ? *n.find("cpu") : none;
  const JsonNode& memory = n.find("memory") ? *n.find("memory") : none;
  e.hostname = n.text("hostname");
  e.captured_utc = n.text("captured_utc");
  e.os = n.text("os");
  e.kernel = n.text("kernel");
  e.cpu_model = cpu.text("model");
  e.packages = int(cpu.whole("packages"));
  e.cores = int(cpu.whole("cores"));
  e.threads = int(cpu.whole("threads"));
  e.usable_threads = int(cpu.whole("usable_threads"));
  e.numa_nodes = int(cpu.whole("numa_nodes"));
  e.l1d_bytes = cpu.whole("l1d_bytes");
  e.l2_bytes = cpu.whole("l2_bytes");
  e.l3_bytes = cpu.whole("l3_bytes");
  e.governor = cpu.text("governor");
  e.turbo = cpu.text("turbo");
  e.memory_bytes = memory.whole("total_bytes");
  e.memory_limit_bytes = memory.whole("limit_bytes");
  for_each_item(n, "load_average", [&](const JsonNode& x) { e.load_average.push_back(x.number); });
  e.busy_share = n.real("busy_share");
  e.mpi_version = n.text("mpi_version");
  for_each_item(n, "devices", [&](const JsonNode& x) { e.devices.push_back(x.string); });
  e.device_software = texts_from(n, "device_software");
  e.variables = texts_from(n, "variables");
  return e;
}

std::string environment_to_json(const Environment& env, int indent) {
  return dump_json(environment_to_node(env), indent);
}
Environment environment_from_json(std::string_view text) {
  return environment_from_node(parse_json(text, "environment"));
}
std::string build_to_json(const BuildInfo& build, int indent) {
  return dump_json(build_to_node(build), indent);
}
BuildInfo build_from_json(std::string_view text) {
  return build_from_node(parse_json(text, "build"));
}

}  // namespace longnet
