// For tests: a small model, its ranks and its options, and the program of its training step.
#pragma once
#include <string>
#include <vector>

#include "core/check.h"
#include "model/model_program.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"

namespace longnet {

struct ModelCase {
  std::string algorithm = "dilated";
  int ranks = 1;  // per sequence
  int replicas = 1, head_groups = 1;
  AttentionProblem problem = {
      .seq_len = 24, .num_heads = 4, .num_kv_heads = 2, .head_dim = 8, .batch = 2, .causal = true};
  std::vector<DilatedBranch> branches = {{8, 1}, {24, 2}};
  ModelShape shape = {.layers = 2, .ffn_width = 40, .vocabulary = 19};
  StepOptions options = {.logits_values = 19 * 11};
  LayoutKind layout = LayoutKind::kContiguous;
  bool keep_gathered = false;
  std::string kernel = "reference";
  int threads = 1;
};

inline std::string describe(const ModelCase& c) {
  return concat(c.algorithm, " P=", c.ranks, " replicas=", c.replicas, " heads/", c.head_groups,
                " ", to_string(c.shape.recompute), " ", to_string(c.layout),
                c.shape.shard_optimizer ? " sharded " : " ", c.keep_gathered ? "rows kept " : "",
                c.kernel);
}

inline DilatedPattern pattern_of(const ModelCase& c) {
  const PatternKind kind = find_algorithm(c.algorithm).pattern;
  return kind == PatternKind::kDilated  ? DilatedPattern{.branches = c.branches}
         : kind == PatternKind::kSparse ? sparse_pattern(8, 4)
                                        : dense_pattern(c.problem.seq_len);
}

// The training step, or another pass of it, lowered.
inline Schedule program_of(const ModelCase& c, Pass pass = Pass::kStep) {
  const AlgorithmInfo& algorithm = find_algorithm(c.algorithm);
  ShardedProblem s{c.problem, pattern_of(c), {c.problem.seq_len, c.ranks, c.layout}};
  s.options.keep_gathered = c.keep_gathered;
  s.problem.batch /= c.replicas;
  s.problem.num_heads /= c.head_groups, s.problem.num_kv_heads /= c.head_groups;
  StepOptions options = c.options;
  options.pass = pass, options.replicas = c.replicas, options.head_groups = c.head_groups;
  return lower_collectives(training_step(c.shape, make_schedule(algorithm, s, Pass::kForward),
                                         make_schedule(algorithm, s, Pass::kBackward), options),
                           {});
}

}  // namespace longnet
