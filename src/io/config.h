// Config: one JSON file (with comments) that describes a sweep, checked key by key. configs/schema
// holds the schema, which is generated from the fields below and the table of axes.
//
//   Config c = load_config("configs/quick.json",
//                          {.overrides = {"sweep.ranks=1,2,4"}, .known = {...}});
//   for (const Point& p : expand(c, {.world_size = 4})) ...      // io/expand.h
//
// The initialisers below are the defaults, with those of the table of axes. `extends` names a file
// relative to the one that holds it: objects merge, arrays and scalars replace. An override K=V is
// a dotted path and a value that is read as JSON, else as a comma-separated list, else as a string.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/transports.h"
#include "io/axes.h"

namespace longnet {

// Values of one axis: a list, or from, from * factor (or + step), ... up to and including `to`.
struct AxisValues {
  // Among them words: kWorld, kDivisors, kMostReplicas; empty for a range.
  std::vector<Value> values{};
  bool is_range = false;
  int64_t from = 0;
  Value to = 0;       // kWorld, too
  double factor = 0;  // > 1, results are rounded; 0: step is used
  int64_t step = 0;
};

inline constexpr int64_t kMaxAxisValues = 10000, kMaxCombinations = 100000;

enum class RatioRule { kGeometric, kSqrt, kList, kCapped };
constexpr auto texts_of(RatioRule) { return texts("geometric", "sqrt", "list", "capped"); }
// Where the selection restarts: at each segment, or at each rank's shard as well.
enum class DilationPhase { kSegment, kShard };
constexpr auto texts_of(DilationPhase) { return texts("segment", "shard"); }

// Words in place of a segment length: ceil(N / P) tokens, and all N of them.
inline const std::string kPerRank = "per_rank", kSequence = "sequence";

// With gather_scope, offset and mix of the table of axes.
struct DilatedConfig {
  std::vector<Value> segments{2048, kPerRank, kSequence};
  RatioRule ratio_rule = RatioRule::kGeometric;
  std::vector<int64_t> ratios;  // for kList only, one per segment
  DilationPhase phase = DilationPhase::kSegment;
  static void fields(auto& d, auto&& visit) {
    visit("segments", d.segments,
          {.min = 1,
           .max = kMaxSeqLen,
           .unit = Unit::kTokens,
           .words = {kPerRank, kSequence},
           .schema = "segments"});
    visit("ratio_rule", d.ratio_rule);
    visit("ratios", d.ratios, {.min = 1, .max = kMaxSeqLen, .omit = true});
    visit("phase", d.phase);
  }
};

// The Sparse Transformer's fixed pattern, for algorithms that compute it.
struct SparseConfig {
  std::optional<int64_t> segment{};  // tokens; nothing: "sqrt", sqrt(N) to the nearest power of two
  std::optional<int64_t> summary{};  // tokens; nothing: "match_dilated", as many pairs as `dilated`
  static void fields(auto& s, auto&& visit) {
    visit("segment", s.segment,
          {.min = 1, .max = kMaxSeqLen, .unit = Unit::kTokens, .words = {"sqrt"}});
    visit("summary", s.summary,
          {.min = 1, .max = kMaxSeqLen, .unit = Unit::kTokens, .words = {"match_dilated"}});
  }
};

struct BatchConfig {
  bool constant_tokens = false;  // rule: "constant_tokens", else "fixed"
  int64_t size = 1;              // "fixed": sequences
  int64_t tokens_per_batch = 0;  // "constant_tokens": batch = max(1, this / seq_len)
  // "device": as many as one holds, which only a machine knows; until it says, kTokensOfNoDevice.
  bool tokens_of_device = false;
  static constexpr int64_t kTokensOfNoDevice = int64_t{8} << 20;
};

// The sweep is the product of all axes. Those without values here take the config's defaults.
struct SweepConfig {
  std::map<std::string, AxisValues, std::less<>> axes{};  // algorithm and seq_len are required
  BatchConfig batch{};
  const AxisValues* find(std::string_view key) const {
    const auto found = axes.find(key);
    return found == axes.end() ? nullptr : &found->second;
  }
};

// With kernel and threads of the table of axes.
struct RunConfig {
  Mode mode = Mode::kReal;
  std::string transport = "auto";  // the launcher's, else threads; or one between GPUs
  static void fields(auto& r, auto&& visit) {
    visit("mode", r.mode, {.words = {"real", "virtual"}, .omit = true});
    visit("transport", r.transport, {.words = enum_names<DeviceTransportKind>()});
  }
};

// Options of the mode virtual, in which one device runs all ranks one after another.
struct VirtualConfig {
  // Exact algorithms run this share of their pairs and are extrapolated; 1: all.
  double sample_share = 1;
  // Exact algorithms that are estimated at more seconds run the share that takes so long; 0: all.
  double exact_point_s = 0;
  // Latency and bandwidth of links, to model a replayed rank's communication; unset: no model.
  std::optional<double> latency_s{}, bytes_per_s{};
  static void fields(auto& v, auto&& visit) {
    visit("sample_share", v.sample_share, {.min = 0, .max = 1, .min_excluded = true});
    visit("exact_point_s", v.exact_point_s, {.min = 0});
    visit("latency_s", v.latency_s, {.min = 0, .omit = true});
    visit("bytes_per_s", v.bytes_per_s, {.min = 0, .min_excluded = true, .omit = true});
  }
};

// Settings of `lnbench simulate`; every other command ignores them.
struct ClusterConfig {
  std::string file{};                  // "": the command line names one
  std::vector<std::string> what_if{};  // each makes points of its own: "", "inter_bandwidth=0.25"
  static void fields(auto& c, auto&& visit) {
    visit("file", c.file, {.min = 1, .omit = true});
    visit("what_if", c.what_if, {.omit = true, .schema = "what_if_list"});
  }
};

// Settings of `lnbench train`, which trains a model around the attention of the config's one point;
// every other command ignores them.
struct TrainConfig {
  std::vector<std::string> text{};  // files, or folders of text files; none: see run/train_text.h
  int64_t steps = 1000, warmup_steps = 50;
  double learning_rate = 2e-3;
  double final_learning_rate = 0.1;  // share of learning_rate that the last step has
  double decay = 0.1, clip_norm = 1;
  double held_out = 0.05;       // share of the text
  int64_t evaluate_every = 50;  // steps
  int64_t evaluate_batches = 4;
  int64_t checkpoint_every = 50;
  static void fields(auto& t, auto&& visit) {
    constexpr double kMost = 1 << 24;
    visit("text", t.text, {.omit = true});
    visit("steps", t.steps, {.min = 1, .max = kMost});
    visit("warmup_steps", t.warmup_steps, {.max = kMost});
    visit("learning_rate", t.learning_rate, {.min = 0, .max = 1});
    visit("final_learning_rate", t.final_learning_rate, {.min = 0, .max = 1});
    visit("decay", t.decay, {.min = 0, .max = 1});
    visit("clip_norm", t.clip_norm, {.min = 0, .min_excluded = true});
    visit("held_out", t.held_out, {.min = 0, .max = 0.5});
    visit("evaluate_every", t.evaluate_every, {.min = 1, .max = kMost});
    visit("evaluate_batches", t.evaluate_batches, {.min = 1, .max = kMost});
    visit("checkpoint_every", t.checkpoint_every, {.min = 1, .max = kMost});
  }
};

struct ExcludeRule {
  std::string where{};   // a filter expression (io/filter.h)
  std::string reason{};  // shown in place of a number
  bool omit = false;     // the combination makes no point at all, e.g. two names for one thing
  static void fields(auto& e, auto&& visit) {
    visit("where", e.where, {.min = 1});
    visit("reason", e.reason, {.min = 1});
    visit("omit", e.omit);
  }
};

struct MeasureConfig {
  int64_t warmup = 3;
  int64_t min_samples = 10;
  int64_t max_samples = 50;
  double target_ci = 0.025;
  double point_timeout_s = 600;
  double disturbed_budget = 0.2;  // share of a run's time for measuring disturbed points again
  static void fields(auto& m, auto&& visit) {
    visit("warmup", m.warmup, {.max = 1e6});
    visit("min_samples", m.min_samples, {.min = 1, .max = 1e6});
    visit("max_samples", m.max_samples, {.min = 1, .max = 1e6});
    visit("target_ci", m.target_ci, {.min = 0, .max = 1});
    visit("point_timeout_s", m.point_timeout_s, {.min = 0, .min_excluded = true});
    visit("disturbed_budget", m.disturbed_budget, {.min = 0, .max = 100});
  }
};

struct CheckConfig {
  int64_t max_seq_len = 65536;  // `lnbench check` leaves longer points out; `run` checks all
  int64_t sampled_queries = 64;
  int64_t max_queries = 2048;  // with those that strata need
  double tolerance = 0;        // relative; 0: the kernel's own for its dtype
  static constexpr double kMostQueries = 1 << 30;
  static void fields(auto& c, auto&& visit) {
    visit("max_seq_len", c.max_seq_len, {.unit = Unit::kTokens});
    visit("sampled_queries", c.sampled_queries, {.min = 1, .max = kMostQueries});
    visit("max_queries", c.max_queries, {.min = 1, .max = kMostQueries});
    visit("tolerance", c.tolerance, {.min = 0});
  }
};

struct MemoryConfig {
  double limit_fraction = 0.9;           // share of the machine's (or cgroup's) memory
  std::optional<int64_t> limit_bytes{};  // replaces what the machine has
  std::string on_exceed = "skip";
  static void fields(auto& m, auto&& visit) {
    visit("limit_fraction", m.limit_fraction, {.min = 0, .max = 1, .min_excluded = true});
    visit("limit_bytes", m.limit_bytes,
          {.min = 1, .max = 0x1p60, .unit = Unit::kBytes, .omit = true});
    visit("on_exceed", m.on_exceed, {.words = {"skip", "fail"}});
  }
};

struct Config {
  std::string name;  // default: the file's name without ".json"
  std::string description;
  // Values from `model`, `dilated` and `run` of the axes that the sweep does not name.
  PointParams defaults = standard_params();
  DilatedConfig dilated;
  SparseConfig sparse;
  SweepConfig sweep;
  RunConfig run;
  std::vector<ExcludeRule> exclude;
  MeasureConfig measure;
  CheckConfig check;
  MemoryConfig memory;
  VirtualConfig virtual_ranks;  // "virtual"
  ClusterConfig cluster;
  std::optional<TrainConfig> train;
  std::string path;  // as the user gave it

  // Distinct values of an axis, ascending for ranges and divisors; kMostReplicas is 0.
  std::vector<Value> values_of(const Axis& axis, int64_t world_size, int64_t ranks = 1) const;
};

// Calls error(key, what, hint) for an axis without end, or a sweep of too many combinations.
void check_combinations(const Config& config, int64_t world_size,
                        const std::function<void(const std::string& key, const std::string& what,
                                                 const std::string& hint)>& error);

struct LoadOptions {
  std::vector<std::string> overrides{};  // "sweep.ranks=1,2,4"
  KnownNames known{};
};

// Throw UsageError that lists every problem: file, line, JSON path, what is wrong, what to do.
Config load_config(const std::string& path, const LoadOptions& options = {});
Config parse_config(std::string_view text, const std::string& path,
                    const LoadOptions& options = {});

// Every key, with defaults and `extends` resolved; parses back to the same points.
JsonNode resolved_config(const Config& config);
std::string config_sha256(const Config& config);  // the canonical resolved text's

}  // namespace longnet
