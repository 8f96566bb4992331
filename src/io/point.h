// One point of a sweep: everything that decides what is run, and nothing of how long it took.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "core/model_shape.h"
#include "core/problem.h"
#include "core/rank_group.h"
#include "io/field.h"
#include "pattern/dilated_pattern.h"

namespace longnet {

enum class PointStatus {
  kOk,
  kSkippedMemory,
  kSkippedExcluded,
  kSkippedUnsupported,
  kOom,
  kTimeout,
  kCheckFailed,
  kError
};
constexpr auto texts_of(PointStatus) {
  return texts("ok", "skipped_memory", "skipped_excluded", "skipped_unsupported", "oom", "timeout",
               "check_failed", "error");
}
// The point was wrong or broke.
constexpr bool is_failure(PointStatus s) { return s >= PointStatus::kOom; }

// Ranks that run at once; one device in their place, one after another; a modelled cluster.
enum class Mode { kReal, kVirtual, kSimulated };
constexpr auto texts_of(Mode) { return texts("real", "virtual", "simulated"); }

// io/axes.cpp has a row for each of these but the branches and the cluster.
struct PointParams {
  std::string algorithm;  // a name of the schedule registry
  Mode mode = Mode::kReal;
  std::string transport = "threads";  // moves bytes between ranks; "" where nothing does
  std::string kernel = "cpu";
  LayoutKind layout = LayoutKind::kContiguous;
  GatherScope gather_scope = GatherScope::kSegmentGroup;
  AttentionProblem problem;
  DilatedPattern pattern;  // resolved branches; the dense branch for exact algorithms
  int ranks = 1;
  std::string collective = "native";  // or a lowering
  AlgorithmOptions options;
  int node_size = 0;  // collective hierarchical: ranks of a node; 0: near the root of the group
  // Groups of ranks, each with its share of the batch, which do the same; in models they exchange
  // gradients of weights, else nothing.
  int replicas = 1;
  // Ranks of a model with the same tokens, which split heads and the feed-forward network.
  int head_groups = 1;
  Pass pass = Pass::kForward;
  Scope scope = Scope::kAttention;
  ModelShape model;
  int threads = 1;        // OpenMP threads per rank
  std::string cluster{};  // simulated: its name and what was changed, "h100-ndr400 bandwidth=0.5"

  // Ranks with the same heads and sequences of one group: 8 ranks, 64 sequences, 4 replicas -> 2
  // ranks, 16 sequences. At least 1, whether or not `replicas` divides (expand() reports where it
  // does not).
  int group_ranks() const { return std::max(1, ranks / replicas / head_groups); }
  int64_t group_batch() const { return std::max<int64_t>(1, problem.batch / replicas); }
  // Ranks that exchange messages: all of a model, one group of attention alone.
  int program_ranks() const { return has_layers(scope) ? ranks : group_ranks(); }
  // Name for display: the transport of a real run, else the mode.
  std::string way() const { return mode == Mode::kReal ? transport : std::string(to_string(mode)); }
};

struct Point {
  std::string id{};  // 8 hex digits: a hash of the canonical JSON of `params` (point_id)
  PointParams params{};
  PointStatus status = PointStatus::kOk;  // kSkippedExcluded when the config excludes it
  std::string reason{};                   // why, of any status but ok
};

// Sets the status of a point or of its record.
void set_status(auto& of, PointStatus status, std::string reason) {
  of.status = status;
  of.reason = std::move(reason);
}

JsonNode to_json(const PointParams& params, const Field& field = {});
// Lenient on absent keys; throws UsageError on bad names. In old results a mode is a transport.
void from_json(const JsonNode& node, PointParams& out, const Field& field = {});

// The canonical JSON of params (sorted keys, neither mode nor transport) and the id: first 8 hex
// digits of its SHA-256.
std::string canonical_params_json(const PointParams& params);
std::string point_id(const PointParams& params);

}  // namespace longnet
