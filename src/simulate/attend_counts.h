// What an attend consists of where queries are taken block by block, each against one list of keys:
// the counts that AttendModel (cluster.h) prices.
//
//   Causal, N = 4096, one head, blocks of 2048: queries 4096, pairs 4096 * 4097 / 2; the first
//   block packs the keys 0 .. 2047, the second one all: blocks 2, key rows 2048 + 4096.
#pragma once
#include "schedule/program.h"
#include "simulate/cluster.h"

namespace longnet {

// `key_rows`: keys of all blocks; `pairs`: what queries see of them.
struct AttendCounts {
  double blocks = 0, queries = 0, key_rows = 0, pairs = 0;
  bool masked = false;  // by causality: not all queries see all keys
};
// From averages in closed form: exact where all runs of queries of the op are equally long.
AttendCounts count_attend(const ShardedProblem& sharded, const Attend& op, double block_rows);

// The model for `problem`, interpolated in head_dim and held at the ends; `masked` chooses among
// causal ones. Null when the device has none for its dtype.
const AttendModel* find_attend_model(const DeviceSpec& device, const AttentionProblem& problem,
                                     bool masked, AttendModel& interpolated);
double attend_seconds(const AttendModel& model, const AttendCounts& counts);

}  // namespace longnet
