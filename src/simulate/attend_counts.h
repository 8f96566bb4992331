// Counts of an attend whose queries are taken block by block, each against one list of keys: what
// AttendModel (cluster.h) prices.
//
//   Causal, N = 4096, one head, blocks of 2048: queries 4096, pairs 4096 * 4097 / 2; the first
//   block packs the keys 0 .. 2047, the second one all: blocks 2, key rows 2048 + 4096.
#pragma once
#include "schedule/program.h"
#include "simulate/cluster.h"

namespace longnet {

struct AttendCounts {
  double blocks = 0, queries = 0;
  double key_rows = 0;  // keys of all blocks
  double pairs = 0;     // (query, key) pairs that the mask lets through
  bool masked = false;  // by causality: not all queries see all keys
};
// From averages in closed form: exact where all runs of queries of the op are equally long.
AttendCounts count_attend(const ShardedProblem& sharded, const Attend& op, double block_rows);

// The model for `problem`, interpolated in head_dim and held at the ends; `masked` chooses among
// causal ones. Null when the device has none for its dtype.
const AttendModel* find_attend_model(const DeviceSpec& device, const AttentionProblem& problem,
                                     bool masked, AttendModel& interpolated);
double attend_seconds(const AttendModel& model, const AttendCounts& counts);

// The value at x of the line through (x0, y0) and (x1, y1); y0 when x0 = x1.
inline double interpolate(double x, double x0, double y0, double x1, double y1) {
  return x1 == x0 ? y0 : y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

}  // namespace longnet
