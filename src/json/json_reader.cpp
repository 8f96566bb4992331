#include "json/json_reader.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/check.h"
#include "json/text.h"

namespace longnet {
namespace {

const JsonNode& empty_object() {
  static const JsonNode kEmpty = JsonNode::object();
  return kEmpty;
}

}  // namespace

std::string shown(const JsonNode& node) {
  const std::string text = dump_json(node);
  return text.size() <= 40 ? text : text.substr(0, 37) + "...";
}

void Problems::add(const JsonNode& where, std::string_view path, std::string_view what,
                   std::string_view hint) {
  if (problems_.size() >= kMost) {
    ++more_;
    return;
  }
  const Problem problem{
      concat(where.where(), ": ", path.empty() ? "" : path, path.empty() ? "" : ": ", what),
      std::string(hint)};
  if (std::ranges::find(problems_, problem) == problems_.end()) problems_.push_back(problem);
}

void Problems::throw_if_any() const {
  if (problems_.empty()) return;
  std::string text;
  for (size_t i = 0; i < problems_.size(); ++i) {
    const auto& [what, hint] = problems_[i];
    const bool said_below = i + 1 < problems_.size() && problems_[i + 1].hint == hint;
    text += concat(i > 0 ? "\n" : "", what);
    if (!hint.empty() && !said_below) text += concat("\n  hint: ", hint);
  }
  throw UsageError(text, more_ > 0 ? concat("\n... and ", more_, " more problems") : "");
}

bool read_json(const JsonNode& node, const std::string& path, Problems& problems, std::string& out,
               const std::vector<std::string>& known) {
  if (!node.is_string() || node.string.empty()) {
    problems.add(node, path, concat("must be a name, is ", shown(node)),
                 known.empty() ? "write it in double quotes" : "known: " + join(known, ", "));
    return false;
  }
  if (!known.empty() && std::find(known.begin(), known.end(), node.string) == known.end()) {
    problems.add(node, path, concat("'", node.string, "' is not known"),
                 name_hint(node.string, known));
    return false;
  }
  out = node.string;
  return true;
}

std::vector<const JsonNode*> as_list(const JsonNode& node, const std::string& path,
                                     Problems& problems) {
  if (!node.is_array()) return {&node};
  std::vector<const JsonNode*> items;
  for (const JsonNode& item : node.items) items.push_back(&item);
  if (items.empty())
    problems.add(node, path, "is an empty list, so there is nothing to run",
                 "name at least one value, or leave the key out");
  return items;
}

JsonReader::JsonReader(const JsonNode* node, std::string path, Problems& problems)
    : node_(node ? node : &empty_object()), path_(std::move(path)), problems_(problems) {
  if (!node_->is_object()) {
    problems_.add(*node_, path_, concat("must be an object, is ", node_->kind_name()),
                  "write { \"key\": value, ... }");
    node_ = &empty_object();
  }
}

const JsonNode* JsonReader::take(std::string_view key) {
  known_.emplace_back(key);
  return node_->find(key);
}

std::string JsonReader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : concat(path_, ".", key);
}

bool read_json(const JsonNode& node, const std::string& path, Problems& problems,
               std::string& out) {
  if (node.is_string())
    out = node.string;
  else
    problems.add(node, path, concat("must be a string, is ", shown(node)),
                 "put it in double quotes");
  return node.is_string();
}

bool read_json(const JsonNode& node, const std::string& path, Problems& problems, bool& out) {
  const bool good = node.kind == JsonNode::Kind::kBool;
  if (good)
    out = node.boolean;
  else
    problems.add(node, path, concat("must be true or false, is ", shown(node)),
                 node.is_array() ? "lists belong into sweep" : "write it without quotes");
  return good;
}

bool read_json(const JsonNode& node, const std::string& path, Problems& problems, double& out,
               const Limits& limits) {
  const bool inside = node.is_number() && node.number <= limits.max &&
                      (limits.min_excluded ? node.number > limits.min : node.number >= limits.min);
  if (inside) {
    out = node.number;
    return true;
  }
  std::string range = concat(limits.min_excluded ? "greater than " : "at least ", limits.min);
  if (std::isfinite(limits.max)) range += concat(" and at most ", limits.max);
  problems.add(node, path, concat("must be a number ", range, ", is ", shown(node)),
               node.is_number() ? concat("use a number ", range) : "write it without quotes");
  return false;
}

void JsonReader::unknown_keys() {
  for (size_t i = 0; i < node_->keys.size(); ++i) {
    const std::string& key = node_->keys[i];
    if (std::find(known_.begin(), known_.end(), key) == known_.end())
      problems_.add(node_->items[i], path_of(key), "unknown key", name_hint(key, known_));
  }
}

std::string read_file_text(const std::string& path, std::string_view hint) {
  std::error_code error;
  std::ostringstream text;
  if (std::filesystem::is_regular_file(path, error)) {
    std::ifstream file(path, std::ios::binary);
    if (file && (file.peek() == std::ifstream::traits_type::eof() || text << file.rdbuf()))
      return text.str();
  }
  throw UsageError("cannot read '", path, "'",
                   std::filesystem::is_other(path, error) ? ": it is no regular file" : "",
                   "\n  hint: ", hint);
}

}  // namespace longnet
