#include "run/point_schedule.h"

#include "schedule/registry.h"

namespace longnet {

bool is_virtual(const PointParams& p) { return p.mode == Mode::kVirtual; }

void resolve_options(PointParams& p) {
  p.options = find_algorithm(p.algorithm).effective_options(sharded_problem(p));
}

ShardedProblem sharded_problem(const PointParams& p) {
  AttentionProblem problem = p.problem;
  problem.batch = p.group_batch();
  return {problem,
          p.pattern,
          {p.problem.seq_len, p.group_ranks(), parse_layout(p.layout)},
          p.gather_scope == "world" ? GatherScope::kWholeWorld : GatherScope::kSegmentGroup,
          p.options};
}

CollectiveChoice collective_choice(const PointParams& p) {
  CollectiveChoice choice = parse_collective(p.collective);
  choice.node_size = p.node_size;
  return choice;
}

Schedule make_schedule(const PointParams& p) {
  return lower_collectives(find_algorithm(p.algorithm).make(sharded_problem(p)),
                           collective_choice(p));
}

AttendOptions attend_options(const PointParams& p) {
  return {.head_dim = p.problem.head_dim, .dtype = p.problem.dtype, .causal = p.problem.causal};
}

}  // namespace longnet
