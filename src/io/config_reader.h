// Reading a JSON object key by key: types, limits and unknown keys, collecting every problem before
// it throws.
//
//   quick.json:12: measure.warmup: must be at least 0, is -3
//     hint: runs before the first sample; 0 is allowed
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/config.h"
#include "io/json_tree.h"

namespace longnet {

class Problems {
 public:
  // `where` gives file and line.
  void add(const JsonNode& where, std::string_view path, std::string_view what,
           std::string_view hint);
  bool empty() const { return texts_.empty(); }
  void throw_if_any() const;  // UsageError with all of them

 private:
  std::vector<std::string> texts_;
};

struct Limits {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_excluded = false;
};

// What the numbers of an axis or of a single value are.
struct IntRule {
  int64_t min = 1;
  int64_t max = std::numeric_limits<int64_t>::max();
  int64_t multiple_of = 1;
  bool tokens = false;    // "8K" and the like are legal
  bool world = false;     // "world" is legal
  bool divisors = false;  // "divisors" is legal
};

class ObjectReader {
 public:
  // A node that is no object is a problem, and then reads as an empty one. `node` may be null.
  ObjectReader(const JsonNode* node, std::string path, Problems& problems);
  ~ObjectReader() = default;

  const JsonNode* take(std::string_view key);  // marks the key as known; null when absent
  std::string path_of(std::string_view key) const;
  Problems& problems() { return problems_; }
  const JsonNode& node() const { return *node_; }

  // Each leaves `out` as it is when the key is absent or wrong.
  void text(std::string_view key, std::string& out);
  void boolean(std::string_view key, bool& out);
  // Tokens, or `keyword` for nothing.
  void tokens_or(std::string_view key, std::string_view keyword, std::optional<int64_t>& out);
  void integer(std::string_view key, int64_t& out, const IntRule& rule);
  void real(std::string_view key, double& out, const Limits& limits);
  void choice(std::string_view key, std::string& out, std::span<const std::string> names);
  void axis(std::string_view key, IntAxis& out, const IntRule& rule);
  void names(std::string_view key, std::vector<std::string>& out,
             std::span<const std::string> known);  // scalar or list; known empty: any
  void booleans(std::string_view key, std::vector<bool>& out);
  void unknown_keys();  // reports what nobody took; last

 private:
  const JsonNode* node_;
  std::string path_;
  Problems& problems_;
  std::vector<std::string> known_;
};

// The integer that `node` holds, by `rule`; reports a problem and returns false otherwise.
bool read_integer(const JsonNode& node, const std::string& path, const IntRule& rule,
                  Problems& problems, int64_t& out);
bool read_name(const JsonNode& node, const std::string& path, std::span<const std::string> known,
               Problems& problems, std::string& out);

// The items of a list, or the value itself as the only one. An empty list is a problem.
std::vector<const JsonNode*> as_list(const JsonNode& node, const std::string& path,
                                     Problems& problems);

// The file as one tree: `extends` merged in, overrides applied (config_load.cpp).
JsonNode load_config_tree(std::string_view text, const std::string& path,
                          std::span<const std::string> overrides);
// Rules that need more than one key (config_check.cpp).
void check_config(const Config& config, const JsonNode& root, Problems& problems);

const std::vector<std::string>& ratio_rule_names();  // in the order of the enum, as are the next
const std::vector<std::string>& phase_names();
const std::vector<std::string>& offset_names();
const std::vector<std::string>& mix_names();
const std::vector<std::string>& dtype_names();
const std::vector<std::string>& gather_scope_names();

}  // namespace longnet
