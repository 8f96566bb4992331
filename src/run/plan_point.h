// From the parameters of a point to its problem, its options and the programs of its ranks; a
// prediction, and whether it can run here.
//
// ring, N = 16, P = 4, batch 4, replicas 2: shards of 8 tokens, two ranks and two sequences in each
// group, and the ring's program for ranks 0 and 1.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention_kernel.h"
#include "model/model_program.h"
#include "run/world.h"
#include "schedule/accounting.h"
#include "schedule/lower_collectives.h"
#include "schedule/program.h"

namespace longnet {

inline bool is_virtual(const PointParams& params) { return params.mode == Mode::kVirtual; }
// Replaces options that the algorithm chooses or limits itself by their actual values.
void resolve_options(PointParams& params);
// Beyond so many ranks an account takes a few ranks' maxima, and the pattern's own pair count.
inline constexpr int kMaxAccountedRanks = 64;
// That limit for one point: kMaxAccountedRanks, or fewer for a large model, whose programs are made
// op by op.
int max_accounted(const PointParams& params);

// Returns the problem of one group of ranks (PointParams::replicas): their batch and shards.
ShardedProblem sharded_problem(const PointParams& params);
// Shape of the point's model; with Scope::kLayer it has one layer.
ModelShape model_shape(const PointParams& params);
// Options of the point's step: scope, pass, replicas and head groups by the parameters, the rest as
// in `others`.
StepOptions step_options(const PointParams& params, StepOptions others = {});
CollectiveChoice collective_choice(const PointParams& params);
Schedule unlowered_schedule(const PointParams& params,
                            const StepOptions& step = {});  // with collectives
Schedule one_layer_schedule(PointParams params);  // unlowered; its collectives are those of all
// Why such a point has no program, whatever runs it; empty: it has one.
std::string why_no_program(const PointParams& params);
// Why such a point does not run, wherever there is room: it has no program, or its kernel, walk or
// collective does not take it; empty: it runs.
std::string why_cannot_run(const PointParams& params);
// `step`: how a model's weights are updated.
Schedule make_schedule(const PointParams& params, const StepOptions& step = {});
Schedule make_schedule(PointParams params, int64_t batch);  // with so many sequences
inline AttendOptions attend_options(const PointParams& p) {
  return {.head_dim = p.problem.head_dim,
          .dtype = p.problem.dtype,
          .causal = p.problem.causal,
          .output_dtype = p.problem.output_dtype};
}

struct PointPlan {
  Point point;                                  // status and reason filled in
  WorldAccount account{};                       // zeros where the point cannot run
  std::vector<std::string> collectives_used{};  // "all_gather: bruck"
  int64_t workspace_bytes = 0;                  // the kernels', per rank
  int64_t device_limit_bytes = 0;               // that a rank on a GPU may take; 0: what there is
  int64_t check_bytes = 0;  // for a model's gradients in bf16: an fp32 run's, on the host
  double check_s = 0;       // for a model on a GPU: that run's seconds on the cores
  int64_t memory_bytes() const { return account.max_memory_bytes() + workspace_bytes; }  // per rank
  double estimated_s = 0;  // one run, from the machine's peak
  // Virtual ranks: sequences of the batch that are walked together, and the share of the pairs that
  // is run (exact algorithms; below 1 the point is extrapolated).
  int64_t batches_at_once = 0;
  double share = 1;
};

// Why a rank cannot run a point, for the others to know (gather).
struct Refusal {
  PointStatus status = PointStatus::kOk;  // it can
  std::string reason{};
  static void fields(auto& r, auto&& visit) {
    visit("status", r.status);
    visit("reason", r.reason);
  }
};

// Applies support, memory and time limits, in this order. `threads` of each rank; `ranks_here` is
// the most ranks that share this machine's memory.
PointPlan plan_point(const Point& point, const MachineLimits& limits, int threads, int ranks_here);

// A lower bound of a rank's bytes, without its program's ops: of a model or a layer; 0 of others.
int64_t least_slots(const PointParams& p);
// Bytes of the largest rank's slots, from a few ranks alone: cheap at any P. `period`: of the
// schedule (AlgorithmInfo::period), where ranks that do the same need no second look; 0: not known.
int64_t predicted_slots(const Schedule& schedule, int max_ranks = kMaxAccountedRanks,
                        int period = 0);
// The cheapest halving or doubling of one thing that makes a point fit: "batch=2"; "" if none.
std::string cheapest_change(const PointParams& original,
                            const std::function<bool(const PointParams&)>& fits);
// Skips a point that needs more bytes of memory than are allowed (`where`: " on H100", or ""), and
// names the cheapest change that `fits`.
void skip_for_memory(Point& point, int64_t needed, int64_t allowed, std::string_view where,
                     const std::function<bool(const PointParams&)>& fits);

// The fp32 run of the same point whose gradients check those of a model or layer in bf16: on the
// host's cores where the point runs on a GPU. None for other points.
std::optional<PointParams> checking_run(const PointParams& params);

// The cost of measuring a point, by the estimate of its plan.
struct PointCost {
  double runs = 0, run_s = 0;  // samples, warm-ups and ablations
  // Filling the inputs, and the reference for the sampled queries, which regenerates every key that
  // they see.
  double other_s = 0;
  double seconds() const { return runs * run_s + other_s; }
};
PointCost point_cost(const PointPlan& plan, const MeasureConfig& measure);

}  // namespace longnet
