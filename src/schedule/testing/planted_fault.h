// For tests: schedules with one rank's program changed, the ops to change, and one to change.
#pragma once
#include <string_view>
#include <utility>
#include <variant>

#include "core/check.h"
#include "schedule/program.h"
#include "schedule/registry.h"

namespace longnet {

// The schedule with rank `victim`'s program changed.
template <class Change>
Schedule with_fault(Schedule schedule, Rank victim, Change change) {
  auto program = std::move(schedule.program);
  schedule.program = [program, victim, change](Rank r) {
    RankProgram p = program(r);
    if (r == victim) change(p);
    return p;
  };
  return schedule;
}

// The first op of that kind, after `skip` others.
template <class Action>
Op& first_op(RankProgram& p, int skip = 0) {
  for (Op& op : p.ops)
    if (std::holds_alternative<Action>(op.what) && skip-- == 0) return op;
  throw Error("no such op");
}
template <class Action>
Action& first(RankProgram& p, int skip = 0) {
  return std::get<Action>(first_op<Action>(p, skip).what);
}

// The backward programs of two heads of 64 tokens.
inline Schedule backward_of(std::string_view name, int ranks) {
  const AlgorithmInfo& algorithm = find_algorithm(name);
  ShardedProblem s{
      {.seq_len = 64, .num_heads = 2, .num_kv_heads = 2}, dense_pattern(64), {64, ranks}};
  if (algorithm.pattern == PatternKind::kDilated) s.pattern = {.branches = {{16, 1}, {64, 2}}};
  if (algorithm.pattern == PatternKind::kSparse) s.pattern = sparse_pattern(11, 3);
  return algorithm.make(s, Pass::kBackward);
}

}  // namespace longnet
