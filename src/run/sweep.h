// The points of a configuration, with the names that this build knows, and their plans, on which
// all ranks agree before the run.
#pragma once
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "io/expand.h"
#include "run/walk_point.h"

namespace longnet {

// Overrides of a config by a command. Empty and 0: as the config or the machine says.
struct SweepRequest {
  std::string config;             // path of a JSON file
  std::vector<std::string> sets;  // overrides, "sweep.ranks=1,2,4"
  std::string filter;
  int ranks = 0;          // ranks as threads; of virtual ranks: sweep.ranks
  std::string mode;       // run.mode
  std::string transport;  // run.transport
  std::string replay;     // ranks of a virtual run, "0,17,4095"
  std::string max_time;   // "90s", "30m", "1.5h"
};

KnownNames known_names();
Config read_config(const SweepRequest& request);
// The points of a config, by the names and the algorithms that this build knows.
std::vector<Point> read_points(const Config& config, ExpandOptions options);
// Returns the first point of each pattern on each problem, of those that differ only in ranks,
// kernel or algorithm.
std::vector<Point> distinct_patterns(const std::vector<Point>& points);
// Returns the name of the host's transport, "mpi" or "threads"; "" in the mode virtual, which
// throws UsageError when this process was `launched`.
std::string transport_of(const Config& config, const HostTransport* launched);
// Throws UsageError where run.transport moves the memory of GPUs and a kernel works on the CPU.
void require_fitting_transport(const Config& config, const std::vector<Point>& points);

// The sweep as known before any rank starts. Errors in it are found before MPI starts.
struct Sweep {
  Config config;
  std::vector<Point> points;
  int world_size = 1;     // the number that "world" stands for
  std::string transport;  // moves bytes; "" in the mode virtual
  std::vector<Rank> replay;
  double stop_at_s = std::numeric_limits<double>::infinity();  // on the clock of steady_seconds
  double busy_share = std::numeric_limits<double>::quiet_NaN();
  bool is_virtual() const { return config.run.mode == Mode::kVirtual; }
  bool on_devices() const { return std::ranges::any_of(points, on_gpu, &Point::params); }
};
Sweep read_sweep(const SweepRequest& request);
// Where the config leaves a batch's tokens to the device: the largest power of two up to 2^30 with
// which every point of the shortest sequence fits on one GPU of this machine, if it has any.
void scale_batch_to_device(Config& config);

// The points as they will run here. Ranks on unequal machines agree on the least of each limit, so
// that all skip the same points.
struct Plan {
  std::vector<PointPlan> points;
  RunnerOptions runner;
  int threads = 1;

  double cost(size_t i) const { return point_cost(points[i], runner.measure).seconds(); }
  double cost_after(size_t index, const std::vector<bool>& todo) const {
    double seconds = 0;
    for (size_t i = index + 1; i < points.size(); ++i)
      if (todo[i]) seconds += cost(i);
    return seconds;
  }
};
Plan make_plan(const Sweep& sweep, World& world);

// Measures or walks a point, or says why it is skipped. Collective over the world; nothing when a
// walk over virtual ranks was stopped early.
std::optional<PointRecord> run_point(World& world, const PointPlan& plan,
                                     const RunnerOptions& runner, const VirtualRun& walk);
// The record of a point that broke.
PointRecord failed_record(const PointPlan& plan, const std::string& what);

}  // namespace longnet
