// From a config to points that may run: what both `plan` and `run` need to know of each.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "io/config.h"
#include "io/point.h"
#include "lnbench/options.h"
#include "schedule/accounting.h"
#include "schedule/lower_collectives.h"
#include "schedule/program.h"

namespace longnet {

KnownNames known_names();
Config read_config(const Options& options);
// The points of a config, as `run` would see them on `world_size` ranks.
std::vector<Point> read_points(const Options& options, const Config& config, int world_size,
                               const std::string& transport, bool limit_ranks);
// What the algorithm really uses in place of options that it chooses or limits itself.
void resolve_options(PointParams& params);
// What the ranks of one group (PointParams::replicas) do together: their batch, their shards.
ShardedProblem sharded_problem(const PointParams& params);
CollectiveChoice collective_choice(const PointParams& params);
Schedule make_schedule(const PointParams& params);
// "virtual" when the config asks for it, else `launched`; throws UsageError under mpirun.
std::string transport_of(const Config& config, const std::string& launched);
bool is_virtual(const PointParams& params);

// Bytes of the largest rank's slots, from a few ranks alone: cheap at any P.
// `period`: of the schedule (AlgorithmInfo::period), where ranks that do the same need no second
// look; 0: not known.
int64_t predicted_slots(const Schedule& schedule, int period = 0);
// The cheapest change (halving or doubling one thing) that makes a point fit: "batch=2"; "" if
// none.
std::string cheapest_change(const PointParams& original,
                            const std::function<bool(const PointParams&)>& fits);

// Prediction for one point, and whether it can run here.
struct PointPlan {
  Point point;                                  // status and reason filled in
  WorldAccount account{};                       // of points that can run
  std::vector<std::string> collectives_used{};  // "all_gather: bruck"
  int64_t workspace_bytes = 0;                  // of the kernel, per rank
  int64_t device_limit_bytes = 0;               // that a rank on a GPU may take; 0: what there is
  int64_t memory_bytes() const { return account.max_memory_bytes + workspace_bytes; }  // per rank
  double estimated_s = 0;  // one forward, from the machine's peak
  // Of the virtual transport: sequences of the batch that are walked together, and the share of the
  // pairs that is run (exact algorithms; below 1 the point is extrapolated).
  int64_t batches_at_once = 0;
  double share = 1;
  std::string fits_if{};  // for skipped_memory: the cheapest change that makes it fit
};

// Throws UsageError where run.transport moves the memory of GPUs and a point's kernel works on the
// CPU.
void require_fitting_transport(const Config& config, const std::vector<Point>& points);

// What the machine offers, as far as predictions need it.
struct MachineLimits {
  int64_t memory_bytes = 0;   // of the machine, for all its ranks
  double flops_per_rank = 0;  // attainable by one rank
  double point_timeout_s = 0;
  int cores =
      0;  // hardware threads for the ranks of this machine together; 0: as many as they want
  VirtualConfig virtual_ranks{};
  int replayed_ranks = 0;  // 0: all run
  // Of the GPUs; 0: unknown, and not asked.
  int devices = 0;
  int64_t device_memory_bytes = 0;  // of one
  bool device_limit_given = false;  // by memory.limit_bytes: buffers beyond it are refused
  double device_flops = 0;          // attainable by one
  bool to_run = false;              // points that need a GPU are refused where there is none
};
// Ranks that a run without mpirun starts as threads: one per usable core, or per GPU where every
// kernel of the configuration runs on GPUs.
int default_world_size(const Config& config);
MachineLimits machine_limits(const Config& config, double peak_flops_per_rank);
// Where the config leaves a batch's tokens to the device: the largest power of two up to 2^30 with
// which every point of the shortest sequence fits on one GPU of this machine, if it has any.
void scale_batch_to_device(Config& config);

// Bytes of the slots by tag that a walk over `ranks` holds, `batches` sequences at a time.
std::map<std::string, int64_t> walk_memory_by_tag(const PointParams& params, int64_t batches,
                                                  const std::vector<Rank>& ranks);

// Applies support, memory and time limits, in this order. `threads` of each rank; `ranks_here` is
// the most ranks that share this machine's memory.
PointPlan plan_point(const Point& point, const MachineLimits& limits, int threads, int ranks_here);

// Share of the FMA peak that a forward pass can be expected to reach; used for estimates only.
inline constexpr double kExpectedShareOfPeak = 0.7;
// The same of a GPU's tensor cores: attention spends as long on exponentials as on products.
inline constexpr double kExpectedShareOfDevicePeak = 0.3;

}  // namespace longnet
