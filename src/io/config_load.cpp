// From a file and its `extends` and --set to one tree.
#include <algorithm>
#include <filesystem>
#include <sstream>

#include "core/check.h"
#include "io/config_reader.h"

namespace longnet {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path, const JsonNode* asked_by) {
  if (!asked_by)
    return read_file_text(path.string(), "configs/ holds the suite's own, e.g. configs/quick.json");
  try {
    return read_file_text(path.string(),
                          "the path counts from the folder of the file that extends");
  } catch (const UsageError& e) {
    throw UsageError(concat(asked_by->where(), ": extends: ", e.what()));
  }
}

// A range or a batch is one value: keys of two of them mixed would mean something nobody wrote.
bool is_value(const JsonNode& object) { return object.find("from") || object.find("rule"); }

void merge(JsonNode& base, JsonNode over) {
  for (size_t i = 0; i < over.keys.size(); ++i) {
    JsonNode* old = base.find(over.keys[i]);
    if (old && old->is_object() && over.items[i].is_object() && !is_value(over.items[i])) {
      merge(*old, std::move(over.items[i]));
    } else {
      base.set(over.keys[i], std::move(over.items[i]));
    }
  }
  base.line = over.line;
  base.file = over.file;
}

JsonNode load_tree(std::string_view text, const std::string& path,
                   std::vector<std::string>& chain) {
  const std::string self = fs::weakly_canonical(path).string();
  JsonNode node = parse_json(text, path);
  if (!node.is_object())
    throw UsageError(concat(node.where(), ": a config is an object, this is ", node.kind_name(),
                            "\n  hint: start with {"));
  const JsonNode* extends = node.find("extends");
  if (!extends) return node;
  if (!extends->is_string())
    throw UsageError(concat(extends->where(), ": extends: must be a string, is ",
                            extends->kind_name(), "\n  hint: name one file"));
  chain.push_back(self);
  const fs::path base_path = fs::path(path).parent_path() / extends->string;
  const std::string base_self = fs::weakly_canonical(base_path).string();
  if (std::find(chain.begin(), chain.end(), base_self) != chain.end())
    throw UsageError(
        concat(extends->where(), ": extends: '", extends->string,
               "' leads back to itself\n  hint: a file cannot extend one that extends it"));
  JsonNode base = load_tree(read_text(base_path, extends), base_path.string(), chain);
  merge(base, std::move(node));
  return base;
}

void relabel(JsonNode& node, const std::shared_ptr<const std::string>& file) {
  node.file = file;
  node.line = 0;
  for (JsonNode& item : node.items) relabel(item, file);
}

JsonNode parse_loosely(const std::string& text) {
  try {
    return parse_json(text, "--set");
  } catch (const UsageError&) {
    return JsonNode(text);
  }
}

// JSON, else a list at commas, else a string.
JsonNode override_value(const std::string& text) {
  JsonNode whole = parse_loosely(text);
  if (!whole.is_string() || whole.string != text || text.find(',') == std::string::npos)
    return whole;
  JsonNode list = JsonNode::array();
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto first = part.find_first_not_of(' ');
    const auto last = part.find_last_not_of(' ');
    if (first != std::string::npos) list.push(parse_loosely(part.substr(first, last - first + 1)));
  }
  return list;
}

void apply_override(JsonNode& root, const std::string& text) {
  const auto label = std::make_shared<const std::string>("--set " + text);
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw UsageError(concat(*label, ": needs the form KEY=VALUE\n  hint: --set sweep.ranks=1,2,4"));
  JsonNode value = override_value(text.substr(equals + 1));
  relabel(value, label);

  JsonNode* at = &root;
  std::istringstream path(text.substr(0, equals));
  std::vector<std::string> keys;
  for (std::string key; std::getline(path, key, '.');) keys.push_back(key);
  std::string walked;
  for (size_t i = 0; i + 1 < keys.size(); ++i) {
    walked += (i > 0 ? "." : "") + keys[i];
    if (!at->find(keys[i])) {
      JsonNode fresh = JsonNode::object();
      relabel(fresh, label);
      at->set(keys[i], fresh);
    }
    at = at->find(keys[i]);
    if (!at->is_object())
      throw UsageError(concat(*label, ": ", walked, " is ", at->kind_name(), ", it has no key '",
                              keys[i + 1], "'\n  hint: replace the whole of ", walked));
  }
  at->set(keys.back(), std::move(value));
}

}  // namespace

JsonNode load_config_tree(std::string_view text, const std::string& path,
                          std::span<const std::string> overrides) {
  std::vector<std::string> chain;
  JsonNode root = load_tree(text, path, chain);
  for (const std::string& o : overrides) apply_override(root, o);
  return root;
}

Config load_config(const std::string& path, const LoadOptions& options) {
  return parse_config(read_text(path, nullptr), path, options);
}

}  // namespace longnet
