#include "simulate/attend_counts.h"

#include <algorithm>
#include <cmath>

#include "schedule/accounting.h"
#include "schedule/row_map.h"

namespace longnet {
namespace {

// Runs of queries of one head: the executor starts a new block with each owner, range and segment.
double count_runs(const ShardedProblem& s, const Attend& op) {
  const BranchRows rows(s.pattern, op.branch, s.problem);
  double runs = 0;
  for_each_query_range(s, op, [&](const TokenRange& q) {
    runs += double(rows.segment_of(q.last()) - rows.segment_of(q.first) + 1);
  });
  return runs;
}

}  // namespace

AttendCounts count_attend(const ShardedProblem& s, const Attend& op, double block_rows) {
  AttendCounts c{.queries = attended_queries(s, op), .pairs = attended_pairs(s, op)};
  if (c.pairs == 0) return {};
  // Runs of all (sequence, head) pairs; heads whose offset selects nothing make this an average.
  const double runs = count_runs(s, op) * double(op.heads.count) * double(s.problem.batch);
  const double per_run = c.queries / runs;
  c.blocks = runs * std::ceil(std::max(1.0, per_run) / block_rows);
  const double per_block = c.queries / c.blocks;
  double keys = c.pairs / c.queries;  // of a block
  if (s.problem.causal) {
    ShardedProblem unmasked = s;
    unmasked.problem.causal = false;
    const double most = attended_pairs(unmasked, op) / c.queries;
    c.masked = c.pairs < most * c.queries;
    // A block needs the keys that its last query sees: half a block more than the mean.
    if (c.masked) keys = std::min(most, keys + (per_block - 1) / 2);
  }
  c.key_rows = c.blocks * keys;
  return c;
}

const AttendModel* find_attend_model(const DeviceSpec& device, const AttentionProblem& p,
                                     bool masked, AttendModel& interpolated) {
  const double d = double(p.head_dim);
  const AttendModel *below = nullptr, *above = nullptr;
  for (const AttendModel& m : device.attend_model) {
    if (m.dtype != p.dtype || m.causal != masked) continue;
    if (m.head_dim <= d && (!below || m.head_dim > below->head_dim)) below = &m;
    if (m.head_dim >= d && (!above || m.head_dim < above->head_dim)) above = &m;
  }
  if (!below || !above) return below ? below : above;
  if (below == above) return below;
  interpolated = *below;
  const auto mix = [&](double AttendModel::*part) {
    interpolated.*part =
        interpolate(d, below->head_dim, below->*part, above->head_dim, above->*part);
  };
  mix(&AttendModel::block_s), mix(&AttendModel::query_s);
  mix(&AttendModel::key_s), mix(&AttendModel::pair_s);
  interpolated.head_dim = d;
  return &interpolated;
}

double attend_seconds(const AttendModel& m, const AttendCounts& c) {
  return c.blocks * m.block_s + c.queries * m.query_s + c.key_rows * m.key_s + c.pairs * m.pair_s;
}

}  // namespace longnet
