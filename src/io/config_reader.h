// Reading a config key by key (json/json_reader.h): whole numbers, tokens and axes.
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
#include "json/json_reader.h"

namespace longnet {

// What the numbers of an axis or of a single value are.
struct IntRule {
  int64_t min = 1;
  int64_t max = std::numeric_limits<int64_t>::max();
  int64_t multiple_of = 1;
  bool tokens = false;     // "8K" and the like are legal
  bool world = false;      // "world" is legal
  bool divisors = false;   // "divisors" is legal
  bool automatic = false;  // "auto" is legal
};

// A reader that knows what configs are made of: tokens, axes.
class ObjectReader : public JsonReader {
 public:
  using JsonReader::JsonReader;

  // Tokens, or `keyword` for nothing.
  void tokens_or(std::string_view key, std::string_view keyword, std::optional<int64_t>& out);
  void integer(std::string_view key, int64_t& out, const IntRule& rule);
  void axis(std::string_view key, IntAxis& out, const IntRule& rule);
};

// The integer that `node` holds, by `rule`; reports a problem and returns false otherwise.
bool read_integer(const JsonNode& node, const std::string& path, const IntRule& rule,
                  Problems& problems, int64_t& out);

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
