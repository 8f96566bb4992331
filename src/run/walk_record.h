// From the journal of a walk to the record of its point.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "io/shard_journal.h"
#include "run/walk_point.h"
#include "run/walk_units.h"

namespace longnet {

struct WalkData {
  const PointPlan& plan;
  const RunnerOptions& options;
  const VirtualRun& run;
  const UnitPlan& units;
  int walks;
  const ShardedProblem& sharded;  // with the whole batch
  const std::vector<ShardLine>& lines;
  int64_t resumed_units;  // the first lines, which an earlier process wrote
  bool on_gpu;
  Tolerance tolerance;                         // of sampled rows
  std::map<std::string, int64_t> held_by_tag;  // peaks of this process
  int warmup() const { return int(options.measure.warmup); }
};

// Timing, content, check, memory and metrics; also the source, and a status that is not ok when
// something contradicts the prediction or the reference.
void fill_walk_record(const WalkData& walk, PointRecord& record);

}  // namespace longnet
