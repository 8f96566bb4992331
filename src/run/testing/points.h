// For tests: points and plans of a few rows.
#pragma once
#include <string>

#include "run/plan_point.h"

namespace longnet {

// Four heads of 16, two sequences, fp32; dilated ones with the branches {64, 1} and {N, 4}.
inline Point small_point(const std::string& algorithm, int ranks, int64_t seq_len = 256) {
  Point point{.id = "0123abcd"};
  PointParams& p = point.params;
  p.algorithm = algorithm;
  p.problem = {.seq_len = seq_len, .num_heads = 4, .num_kv_heads = 4, .head_dim = 16, .batch = 2};
  p.pattern = dense_pattern(seq_len);
  if (algorithm == "dilated") p.pattern = {.branches = {{64, 1}, {seq_len, 4}}};
  p.ranks = ranks;
  return point;
}

inline PointPlan small_plan(const std::string& algorithm, int ranks, int64_t seq_len = 256) {
  return plan_point(small_point(algorithm, ranks, seq_len), {}, 1, ranks);
}

}  // namespace longnet
