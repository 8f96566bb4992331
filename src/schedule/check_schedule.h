// Proof that a schedule is right, without data and hardware.
//
// Runs all programs symbolically, in the order of the executors (each rank in program order, a
// communication completes when both sides have posted it) and verifies that
//   - no rank waits for ever;
//   - the expected rows arrive, and every slot holds the rows that each op claims and has room for
//     them;
//   - two ops that touch the same rows of a slot, one of them writing, are ordered by dependencies;
//   - every row of the output is initialised once, and each (query, key, head) pair is attended
//     exactly as often as the pattern says;
//   - of a backward pass: dQ of every own query has each of its keys once, dK and dV of every own
//     key, summed over all ranks, each query that sees it once.
#pragma once
#include <string>
#include <vector>

#include "schedule/program.h"

namespace longnet {

// Empty when the schedule is right; else one line per fault (the first `limit`): rank, op, fault.
std::vector<std::string> check_schedule(const Schedule& schedule, int limit = 10);

// Throws Error with the faults when there are any.
void require_correct(const Schedule& schedule);

}  // namespace longnet
