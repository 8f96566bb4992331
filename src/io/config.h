// What a user asks for: one JSON file (with comments), checked key by key. configs/schema holds the
// schema.
//
//   Config c = load_config("configs/quick.json", {.overrides = {"sweep.ranks=1,2,4"}, .known =
//   {...}}); for (const Point& p : expand(c, {.world_size = 4})) ...                      //
//   io/expand.h
//
// The initialisers below are the defaults; nothing else sets any. `extends` names a file relative
// to the one that holds it: objects merge, arrays and scalars replace. An override K=V is a dotted
// path and a value that is read as JSON, else as a comma-separated list, else as a string.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/problem.h"
#include "pattern/dilated_pattern.h"

namespace longnet {

// Longer sequences overflow what counts their bytes and pairs.
inline constexpr int64_t kMaxSeqLen = int64_t{1} << 40;
// "world" where a number of ranks is expected.
inline constexpr int64_t kWorld = -1;
// "divisors" where a part of a point's ranks is expected: each divisor of them is a value.
inline constexpr int64_t kDivisors = -2;
// "auto" where a number of replicas is expected: as many as divide both the batch and the ranks.
inline constexpr int64_t kMostReplicas = -3;

// Values of one axis: a list, or from, from * factor (or + step), ... up to and including `to`.
struct IntAxis {
  // kWorld is legal in an axis of ranks, kDivisors in one of parts of them, kMostReplicas in one of
  // replicas; empty for a range
  std::vector<int64_t> values{};
  bool is_range = false;
  int64_t from = 0, to = 0;  // to may be kWorld
  double factor = 0;         // > 1, results are rounded; 0: step is used
  int64_t step = 0;
  bool operator==(const IntAxis&) const = default;
};
// Ascending for ranges and divisors, no duplicates. kMostReplicas stays: it depends on the batch as
// well.
std::vector<int64_t> axis_values(const IntAxis& axis, int64_t world_size, int64_t ranks = 1);

struct ModelConfig {
  int64_t heads = 12;    // the paper's base model
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 64;
  DType dtype = DType::kFloat32;
  bool causal = false;
  int64_t seed = 1;
};

enum class RatioRule { kGeometric, kSqrt, kList, kCapped };
enum class DilationPhase {
  kSegment,
  kShard
};  // where the selection restarts: each segment, or each rank as well

// A segment length that may depend on the point.
struct SegmentSpec {
  enum class Kind { kTokens, kPerRank, kSequence };
  Kind kind = Kind::kTokens;
  int64_t tokens = 0;  // of kTokens
  bool operator==(const SegmentSpec&) const = default;
};

struct DilatedConfig {
  std::vector<SegmentSpec> segments{{SegmentSpec::Kind::kTokens, 2048},
                                    {SegmentSpec::Kind::kPerRank, 0},
                                    {SegmentSpec::Kind::kSequence, 0}};
  RatioRule ratio_rule = RatioRule::kGeometric;
  std::vector<int64_t> ratios;  // for kList only, one per segment
  OffsetRule offset = OffsetRule::kPaper;
  DilationPhase phase = DilationPhase::kSegment;
  std::string gather_scope = "segment_group";  // or "world"
  MixRule mix = MixRule::kLse;
};

// The Sparse Transformer's fixed pattern, for algorithms in KnownNames::sparse_algorithms.
struct SparseConfig {
  std::optional<int64_t> segment{};  // tokens; nothing: "sqrt", sqrt(N) to the nearest power of two
  std::optional<int64_t> summary{};  // tokens; nothing: "match_dilated", as many pairs as `dilated`
};

struct BatchConfig {
  bool constant_tokens = false;  // rule: "constant_tokens", else "fixed"
  int64_t size = 1;              // of "fixed"
  int64_t tokens_per_batch = 0;  // of "constant_tokens": batch = max(1, tokens_per_batch / seq_len)
  // "device": as many as one holds, which only a machine knows; until it says, kTokensOfNoDevice.
  bool tokens_of_device = false;
  static constexpr int64_t kTokensOfNoDevice = int64_t{8} << 20;
};

// Every axis is a scalar or a list; the sweep is their product. Axes left empty take the model's or
// run's value.
struct SweepConfig {
  std::vector<std::string> algorithm;  // required
  IntAxis seq_len;                     // required
  IntAxis ranks{.values = {1}};
  BatchConfig batch;
  IntAxis heads, kv_heads, head_dim, seed, threads;
  std::vector<DType> dtype;
  std::vector<bool> causal;
  std::vector<std::string> kernel;
  // Each applies only to the algorithms that it concerns (KnownNames); empty: the default.
  std::vector<std::string> layout, collective;  // "contiguous", "native"
  IntAxis ulysses_degree, ring_inner, head_slice, node_size;
  IntAxis replicas;  // groups of ranks that share the batch; for `lnbench simulate`
};

struct RunConfig {
  std::string kernel = "cpu";
  std::string transport = "auto";  // mpi under a launcher, else threads; or "virtual"
  int64_t threads = 0;             // OpenMP threads per rank; 0: the launcher decides
};

// Of the virtual transport: one device walks all ranks.
struct VirtualConfig {
  // Exact algorithms run this share of their pairs and are extrapolated; 1: all.
  double sample_share = 1;
  // Exact algorithms that are estimated at more seconds run the share that takes so long; 0: all.
  double exact_point_s = 0;
  // Of the links that a replayed rank's communication is modelled with; unset: not modelled.
  std::optional<double> latency_s{}, bytes_per_s{};
};

// For `lnbench simulate`; every other command ignores it.
struct ClusterConfig {
  std::string file{};                  // "": the command line names one
  std::vector<std::string> what_if{};  // each makes points of its own: "", "inter_bandwidth=0.25"
};

struct ExcludeRule {
  std::string where{};   // a filter expression (io/filter.h)
  std::string reason{};  // shown in place of a number
  bool omit = false;     // the combination makes no point at all, e.g. two names for one thing
};

struct MeasureConfig {
  int64_t warmup = 3;
  int64_t min_samples = 10;
  int64_t max_samples = 50;
  double target_ci = 0.025;
  double point_timeout_s = 600;
};

struct CheckConfig {
  int64_t max_seq_len =
      65536;  // `lnbench check` leaves longer points out; `run` checks every point
  int64_t sampled_queries = 64;
  double tolerance = 0;  // relative; 0: the kernel's own for its dtype
};

struct MemoryConfig {
  double limit_fraction = 0.9;         // of what the machine (or cgroup) has
  std::optional<int64_t> limit_bytes;  // replaces what the machine has
  std::string on_exceed = "skip";
};

struct Config {
  std::string name;  // default: the file's name without ".json"
  std::string description;
  ModelConfig model;
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
  std::string path;  // as the user gave it
};

// Names that other modules own; io only compares. An empty list means "do not check".
struct KnownNames {
  std::vector<std::string> algorithms{}, kernels{}, layouts{}, collectives{};
  // Which pattern an algorithm computes; the others get the dense one.
  std::vector<std::string> dilated_algorithms{"dilated"}, sparse_algorithms{"sparse"};
  // Which algorithms an axis concerns. Layouts: all dense ones but these.
  std::vector<std::string> contiguous_algorithms{"local"};
  std::vector<std::string> ulysses_degree_algorithms{"usp"};
  std::vector<std::string> ring_inner_algorithms{"double_ring"};
  std::vector<std::string> head_slice_algorithms{"all_gather"};
  // Algorithm -> collectives that change its program, apart from "native". Empty: all for each.
  std::map<std::string, std::vector<std::string>> collectives_of{};
  // What is wrong with a cluster.what_if, "" when nothing is. Empty: do not check.
  std::function<std::string(const std::string&)> why_bad_what_if{};
};
// For filters: the names above and the fixed ones (dtype, offset, mix, ...) by key.
std::map<std::string, std::vector<std::string>, std::less<>> known_values(const KnownNames& known);

struct LoadOptions {
  std::vector<std::string> overrides{};  // "sweep.ranks=1,2,4"
  KnownNames known{};
};

// Throw UsageError that lists every problem: file, line, JSON path, what is wrong, what to do.
Config load_config(const std::string& path, const LoadOptions& options = {});
Config parse_config(std::string_view text, const std::string& path,
                    const LoadOptions& options = {});

// Every key with its value, defaults included and `extends` resolved; parses back to the same
// points.
std::string resolved_config_json(const Config& config, int indent = 2);
std::string config_sha256(const Config& config);  // of the canonical resolved text

}  // namespace longnet
