// Reads a JSON object key by key: types, limits and unknown keys, collecting every problem before
// it throws. The keys of one kind of file belong to its loader (io: configs; simulate: clusters).
//
//   quick.json:12: measure.warmup: must be at least 0, is -3
//     hint: runs before the first sample; 0 is allowed
#pragma once
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "json/json_tree.h"

namespace longnet {

class Problems {
 public:
  // `where` gives file and line. A hint that several in a row share stands below the last.
  void add(const JsonNode& where, std::string_view path, std::string_view what,
           std::string_view hint);
  bool empty() const { return problems_.empty(); }
  void throw_if_any() const;  // UsageError with the first 20

 private:
  static constexpr size_t kMost = 20;  // errors: a file of another program has many more
  struct Problem {
    std::string what, hint;
    bool operator==(const Problem&) const = default;
  };
  std::vector<Problem> problems_;
  int64_t more_ = 0;
};

struct Limits {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_excluded = false;
};

// Each reports a problem and leaves `out` as it is when `node` is something else.
bool read_json(const JsonNode& node, const std::string& path, Problems& problems, std::string& out);
bool read_json(const JsonNode& node, const std::string& path, Problems& problems, bool& out);
bool read_json(const JsonNode& node, const std::string& path, Problems& problems, double& out,
               const Limits& limits);
bool read_json(const JsonNode& node, const std::string& path, Problems& problems, std::string& out,
               const std::vector<std::string>& known);

class JsonReader {
 public:
  // A node that is no object is a problem, and then reads as an empty one. `node` may be null.
  JsonReader(const JsonNode* node, std::string path, Problems& problems);

  const JsonNode* take(std::string_view key);  // marks the key as known; null when absent
  std::string path_of(std::string_view key) const;
  Problems& problems() { return problems_; }
  const JsonNode& node() const { return *node_; }

  // Each leaves `out` as it is when the key is absent or wrong.
  template <class T>
  void field(std::string_view key, T& out) {
    if (const JsonNode* n = take(key)) read_json(*n, path_of(key), problems_, out);
  }
  template <class T, class Rule = Limits>  // a number's limits, or a text's legal values
  void field(std::string_view key, T& out, const Rule& rule) {
    if (const JsonNode* n = take(key)) read_json(*n, path_of(key), problems_, out, rule);
  }
  void unknown_keys();  // reports the keys that were not taken; call it last

 private:
  const JsonNode* node_;
  std::string path_;
  Problems& problems_;
  std::vector<std::string> known_;
};

// The items of a list, or the value itself as the only one. An empty list is a problem.
std::vector<const JsonNode*> as_list(const JsonNode& node, const std::string& path,
                                     Problems& problems);

// The text of a value, short enough for a message.
std::string shown(const JsonNode& node);

// The text of a regular file (a pipe or a device may never end). Throws UsageError with `hint`.
std::string read_file_text(const std::string& path, std::string_view hint);

}  // namespace longnet
