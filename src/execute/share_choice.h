// Chooses the ops of a program to run when only a share of its pairs is wanted: whole attends
// spread over the program (the steps of a ring) and, where that is not fine enough, tasks spread
// over an attend.
//
//   ring, 64 steps of 8 tasks, share 1/100: 5.12 tasks, so one attend (ceil of 0.64), and of its 8
//   tasks as many as make 0.64 of it, in rounds of `at_once`; the receives that fill its keys, and
//   the merge that follows it.
#pragma once
#include <vector>

#include "execute/bound_program.h"

namespace longnet {

// Seconds of what was run stand for those of everything, kind by kind.
struct WalkShare {
  double pairs = 0, all_pairs = 0;
  int64_t merges = 0, all_merges = 0;
  // The forward pass, had everything been run.
  double forward_s(double attend_s, double merge_s, double pack_s) const;
};

struct ShareChoice {
  std::vector<bool> runs;                        // by op
  std::vector<std::vector<AttendGrid>> attends;  // by op: what to run of an attend that runs
  WalkShare share;
};

// `at_once`: pieces of tasks that the device works on together; a round of them is never cut.
ShareChoice choose_share(const BoundProgram& bound, double share, int at_once);

}  // namespace longnet
