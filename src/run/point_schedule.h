// From the parameters of a point to its problem, its options and the programs of its ranks.
//
// ring, N = 16, P = 4, batch 4, replicas 2: shards of 8 tokens, two ranks and two sequences in each
// group, and the ring's program for ranks 0 and 1.
#pragma once
#include "io/point.h"
#include "kernels/attention_kernel.h"
#include "schedule/lower_collectives.h"
#include "schedule/program.h"

namespace longnet {

bool is_virtual(const PointParams& params);
// Replaces options that the algorithm chooses or limits itself by their actual values.
void resolve_options(PointParams& params);
// Returns the problem of one group of ranks (PointParams::replicas): their batch and shards.
ShardedProblem sharded_problem(const PointParams& params);
CollectiveChoice collective_choice(const PointParams& params);
Schedule make_schedule(const PointParams& params);
AttendOptions attend_options(const PointParams& params);

}  // namespace longnet
