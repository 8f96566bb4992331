// One point of a sweep: everything that decides what is run, and nothing of how long it took.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/problem.h"
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
std::string_view to_string(PointStatus s);  // "ok", "skipped_memory", ... as in results

struct PointParams {
  std::string algorithm;  // a name of the schedule registry: "local", "dilated", "ring", ...
  // "threads" or "mpi", as launched; "virtual": one device in the place of all ranks; "simulated"
  // on a modelled cluster.
  std::string transport = "threads";
  std::string kernel = "cpu";
  std::string layout = "contiguous";           // order of tokens over ranks
  std::string gather_scope = "segment_group";  // or "world"
  AttentionProblem problem;
  DilatedPattern pattern;  // resolved branches; the dense branch for exact algorithms
  int ranks = 1;
  std::string collective = "native";  // or a lowering: ring, recursive_doubling, bruck, ...
  int ulysses_degree = 0;             // usp: Pu; 0: not resolved, or another algorithm
  int ring_inner = 0;                 // double_ring: Pi; likewise
  int64_t head_slice = 0;             // all_gather: K/V heads gathered at a time; 0: all
  int node_size = 0;  // collective hierarchical: ranks of a node; 0: near the root of the group
  // Groups of ranks, each with its share of the batch; they do the same and exchange nothing.
  int replicas = 1;
  int threads = 1;        // OpenMP threads per rank
  std::string cluster{};  // simulated: its name and what was changed, "h100-ndr400 bandwidth=0.5"

  // Of one group: 8 ranks, 64 sequences, 4 replicas -> 2 ranks, 16 sequences. At least 1, whether
  // or not `replicas` divides (expand() says where it does not).
  int group_ranks() const { return std::max(1, ranks / replicas); }
  int64_t group_batch() const { return std::max<int64_t>(1, problem.batch / replicas); }
};

struct Point {
  std::string id{};  // 8 hex digits: a hash of the canonical JSON of `params` without transport
  PointParams params{};
  PointStatus status = PointStatus::kOk;  // kSkippedExcluded when the config excludes it
  std::string reason{};                   // of anything but ok
};

}  // namespace longnet
