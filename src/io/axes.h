// The parameters of a point, one row each. From this table come keys of a config (`sweep`, `model`,
// `dilated`, `run`), the expansion of a sweep, filters, the params of a result, names of series,
// columns and words of tables, and parts of the JSON Schemas.
//
//   {"ulysses_degree", 0, member<&PointParams::options, &AlgorithmOptions::ulysses_degree>(),
//    "Ranks that share an all-to-all.", {.words = {"divisors"}}, {.algorithms = {"usp"}},
//    {.label = "Pu="}}
//
// usp reads it, `sweep.ulysses_degree` takes numbers and "divisors", tables show "Pu=4".
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/point.h"
#include "json/json_tree.h"

namespace longnet {

// Value of a parameter. An enum is stored as its name.
using Value = std::variant<int64_t, bool, std::string>;
std::string to_text(const Value& value);

// Words for numbers: all ranks; each divisor of a point's ranks; gcd of the batch and the ranks.
inline const std::string kWorld = "world", kDivisors = "divisors", kMostReplicas = "auto";
// Longer sequences overflow what counts their bytes and pairs.
inline constexpr int64_t kMaxSeqLen = int64_t{1} << 40;

// The algorithms that read a parameter: those of a pattern, those named, or those that run on
// several ranks; all where nothing is said. For the others it keeps its default.
struct Readers {
  std::optional<PatternKind> pattern{};
  std::vector<std::string_view> algorithms{};
  bool several_ranks = false;
  std::string_view collective{};    // and only with this one
  Scope scope = Scope::kAttention;  // points of this scope, and of those that hold it
  bool backward = false;            // points with a backward pass alone
};

// The form of an axis in the name of a series: absent, its value, key=value, or key=value where it
// is not the default.
enum class Naming { kNever, kValue, kAlways, kChanged };

// A member of PointParams.
struct Member {
  Value (*get)(const PointParams&);
  void (*set)(PointParams&, const Value&);
};

struct AxisUse {
  // "model", "dilated" or "run": where a config holds the one value of all points; "": nowhere.
  std::string_view section{};
  bool swept = true;  // `sweep` takes a list of values
  Naming naming = Naming::kChanged;
  std::optional<std::string_view> label{};  // before a value in tables, which show no default
  int width = 0;                            // its own column in tables has so many characters
  int priority = 0;                         // that column's (ColumnHead)
  bool in_id = true;
  // How a point is computed, not what: points of models that differ in such axes alone have the
  // same loss.
  bool how = false;
};

struct Axis {
  std::string_view key;  // in configs, filters and results
  Value standard;        // its default; also its type
  Member member;
  std::string_view help;  // description in the schemas
  Field field;
  Readers readers;
  AxisUse use;

  bool is_standard(const PointParams& params) const;
};

// Returns the axes in the order in which a sweep nests them, the last one fastest.
std::span<const Axis> axes();
const Axis* find_axis(std::string_view key);  // null when there is none
PointParams standard_params();                // every parameter at its default

// Properties of one algorithm in the registry.
struct KnownAlgorithm {
  PatternKind pattern = PatternKind::kDense;
  bool one_rank_only = false;
  std::vector<std::string> collectives{};  // that change its program, apart from "native"
};

// Names that other rooms own; io only compares.
struct KnownNames {
  using Names = std::map<std::string, std::vector<std::string>, std::less<>>;
  Names names{};  // legal values by key: algorithm, kernel, collective; absent: any
  std::map<std::string, KnownAlgorithm, std::less<>>
      algorithms{};  // empty: all collectives for each
  // Returns the reason why a cluster.what_if is invalid, "" when it is valid. Empty: no check.
  std::function<std::string(const std::string&)> why_bad_what_if{};

  // One that is not listed computes the pattern of its name, else the dense one.
  KnownAlgorithm algorithm(std::string_view name) const {
    if (const auto found = algorithms.find(name); found != algorithms.end()) return found->second;
    for (const PatternKind kind : enum_values<PatternKind>())
      if (to_string(kind) == name) return {.pattern = kind};
    return {};
  }
  std::vector<std::string> values_of(const Axis& axis) const {  // empty: any
    const auto found = names.find(axis.key);
    return found == names.end() ? axis.field.words : found->second;
  }
};

// True when the point's algorithm reads this value: it may have some collectives and not others.
bool reads(const Axis& axis, const Value& value, const PointParams& params,
           const KnownNames& known);

// "zigzag Pu=2": what is not as usual; without `with_sections`, of the algorithm alone.
std::string options_text(const PointParams& params, bool with_sections = true);
std::string describe(const PointParams& params);     // "usp Pu=2 bf16 N=8K P=2 batch=2"
std::string series_name(const PointParams& params);  // a curve's name: what its points share

template <class T>
Value to_value(const T& member) {
  if constexpr (std::is_enum_v<T>)
    return std::string(to_string(member));
  else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
    return int64_t(member);
  else
    return member;
}

// Throws UsageError on a name that the enum does not have.
template <class T>
void assign(T& member, const Value& value) {
  if constexpr (std::is_enum_v<T>) {
    member = parse_enum<T>(std::get<std::string>(value));
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    member = T(std::get<int64_t>(value));
  } else {
    member = std::get<T>(value);
  }
}

// The member at the end of a path: member<&PointParams::problem, &AttentionProblem::causal>().
template <auto... path>
constexpr Member member() {
  return {[](const PointParams& p) -> Value { return to_value((p.*....*path)); },
          [](PointParams& p, const Value& v) { assign((p.*....*path), v); }};
}

}  // namespace longnet
