// Number of layers until every token can have heard from every other, from the pattern alone.
//
// In one layer a query hears from every key that some head sees in some branch (the output
// projection mixes the heads) and keeps what it had (the residual connection). So tokens are the
// vertices of a graph, "some group holds both" its edges, where a group is (branch, segment,
// offset), and the depth is its diameter; with a causal mask edges point forward only and later
// tokens alone must hear.
//
//   N = 8, branches {4, 1} and {8, 4}, one head: the second joins tokens 0 and 4. From 1 to 5 it
//   takes 1 -> 0 -> 4 -> 5: three layers. Causal: 3 can never inform 4, whatever the depth.
//
// The paper (arXiv 2307.02486, section 2.4) estimates log_a(N (a - 1) / w_0) for segments w_0 a^i.
#pragma once
#include <cstdint>
#include <functional>

#include "core/problem.h"
#include "pattern/dilated_pattern.h"

namespace longnet {

struct DependencyDepth {
  static constexpr int64_t kNever = -1;    // some token never hears from some other
  static constexpr int64_t kUnknown = -2;  // past the limits of DepthOptions
  int64_t layers = kUnknown;
  // The largest number of layers between two tokens one of which does reach the other: `layers`
  // unless that is kNever; at least 1 if there are two tokens. Unknown with a causal mask and
  // kNever.
  int64_t reachable_layers = kUnknown;
  bool operator==(const DependencyDepth&) const = default;
};

using DepthProgress = std::function<void(double done)>;  // share of the sources, in (0, 1]

struct DepthOptions {
  // Limits of effort: a few seconds of one core and about 1 GB. Beyond them are irregular patterns:
  // many short segments that do not nest, or rates that do not divide them on many levels.
  int64_t max_intervals = int64_t{1} << 22;  // pieces into which segments cut the sequence
  int64_t max_steps = int64_t{3000} << 20;   // visits of a group by 256 sources at once
  DepthProgress progress{};
};

// Uses seq_len, num_heads and causal of `problem`. Throws UsageError as check_pattern does.
DependencyDepth dependency_depth(const AttentionProblem& problem, const DilatedPattern& pattern,
                                 const DepthOptions& options = {});

// The paper's estimate, log_a(N (a - 1) / w_0), at least one layer: a is the mean ratio of the
// distinct segment lengths (clipped to N), (w_last / w_0)^(1 / (count - 1)). NaN for less than two
// lengths and for summary branches, where it is not defined.
//   w = 2048, 4096, ..., 32768 = N: a = 2 and log_2(16) = 4 layers.
double paper_depth_bound(const DilatedPattern& pattern, int64_t seq_len);

}  // namespace longnet
