// Measures and checks one point on virtual ranks: one device walks the programs of all of them,
// unit by unit, into a journal, from which the record is made.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "execute/tolerances.h"
#include "run/backend.h"
#include "run/shard_journal.h"
#include "schedule/accounting.h"

namespace longnet {

inline constexpr int64_t kFewestSamples = 256;  // rows that a walk checks, whatever a config says

// Units of a walk, in its order.
struct UnitPlan {
  std::vector<WalkUnit> units;
  std::vector<RankAccount> accounts;  // one a unit
  double flops = 0;                   // work of these units
  double all_flops = 0;               // work of the whole point
  double unit_share = 1;              // share of each unit's pairs that is run
  std::set<Rank> ranks() const;
};

// All ranks, or those of `replay`, for each part of the batch; of a sampled point a few, spread
// evenly.
UnitPlan plan_units(const PointPlan& plan, const std::vector<Rank>& replay);

// Describes a walk as text: only a walk with the same text resumes a journal.
std::string text_of(const UnitPlan& units, const PointPlan& plan, int walks,
                    const CheckConfig& check);

// "0,17,4095" as ranks in ascending order; throws UsageError.
std::vector<Rank> parse_ranks(const std::string& text);

struct WalkProgress {
  int64_t units_done = 0, units = 0;
  double share_done = 0;    // share of the point's FLOPs, in (0, 1]
  double tokens_per_s = 0;  // over the units that this process ran
  double left_s = 0;
};

struct VirtualRun {
  std::string directory{};     // result folder, where the journal lies; "": none is kept
  std::vector<Rank> replay{};  // only these ranks; empty: all
  VirtualConfig config{};
  std::function<void(const WalkProgress&)> progress = {};
  std::function<bool()> stop = {};  // asked after each unit
};

// A walk, and what it found.
struct WalkData {
  PointPlan plan;
  const RunnerOptions& options;
  const VirtualRun& run;
  const Backend& backend;
  int walks;
  ShardedProblem sharded;  // with the whole batch
  UnitPlan units{};
  SampleChoice choice{};  // samples among the ranks that are walked
  KeyChoice keys{};       // keys that a backward pass compares
  std::vector<UnitLine> lines{};
  int64_t resumed_units = 0;                     // the first lines, which an earlier process wrote
  std::map<std::string, int64_t> held_by_tag{};  // peaks of this process
  int64_t held_bytes = 0;                        // the same of all tags together
  std::optional<int64_t> resident_growth_bytes{};
  Pass pass() const { return plan.point.params.pass; }
  int warmup() const { return int(options.measure.warmup); }
  CheckOutcome judged(const SampleErrors& errors, int64_t nan_values) const {
    return judge(errors, nan_values, sharded,
                 output_tolerance(rounds_probabilities(), options.check.tolerance,
                                  sharded.problem.output_dtype == DType::kBFloat16));
  }
  bool rounds_probabilities() const { return backend.rounds_probabilities(plan.point.params); }
};

// From the journal of a walk to the record of its point: timing, content, check, memory and
// metrics; also the source, and a status that is not ok when something contradicts the prediction
// or the reference.
void fill_walk_record(const WalkData& walk, PointRecord& record);

// Nothing when it was stopped early: what is done lies in the journal, and the same call goes on.
// measure.warmup + measure.min_samples walks are made. A point is ok only when its sampled rows
// agree with the reference, no value of the output was left unwritten, and memory and received
// bytes are the predicted ones.
std::optional<PointRecord> walk_point(const PointPlan& plan, const RunnerOptions& options,
                                      const VirtualRun& run);

}  // namespace longnet
