// For tests: schedules with one rank's program changed, and the ops to change.
#pragma once
#include <utility>
#include <variant>

#include "core/check.h"
#include "schedule/program.h"

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

}  // namespace longnet
